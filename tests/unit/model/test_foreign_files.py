"""Files that somebody else has named: only regular ones are read, and only where they may be."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.model.source import ANY_SOURCE, files_below

TEXT = "first\n  second\n"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "socket": _socket,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("/nonexistent"),
    "20 GB": _sparse,
}


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR)
def test_what_is_no_file_of_moderate_size_is_refused(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """It neither blocks nor takes memory; a source file of that name has no lines."""
    path = tmp_path / "named.py"
    make(path)
    with pytest.raises(OSError, match=r"."):
        read_regular(path, max_bytes=1 << 20)
    assert ANY_SOURCE.line(str(path), 1) == ""


@pytest.mark.parametrize("path", ["nul\0.py", "half \ud800.py", "x" * 5000])
def test_a_name_that_no_file_can_have_is_refused(path: str) -> None:
    """The error is that of a file which cannot be opened."""
    with pytest.raises(OSError, match=r"."):
        read_regular(path, max_bytes=1)
    assert ANY_SOURCE.line(path, 1) == ""


def test_a_file_without_a_size_is_not_read() -> None:
    """Reading a file of /proc may wait, or take from others what it has."""
    assert Path("/proc/self/environ").read_bytes()
    assert read_regular("/proc/self/environ", max_bytes=1 << 20) == b""


def test_a_link_is_refused_where_none_is_wanted(tmp_path: Path) -> None:
    """Where links are wanted, the same link is followed."""
    (tmp_path / "file").write_text(TEXT)
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", max_bytes=100) == TEXT.encode()
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(tmp_path / "link", max_bytes=100, follows=False)


def test_source_lines_are_read_below_the_roots_only(tmp_path: Path) -> None:
    """A link, or a path that leaves the root, does not lead out of it."""
    root, other = tmp_path / "root", tmp_path / "root-2"
    for each in (root, other):
        each.mkdir()
        (each / "code.py").write_text(TEXT)
    (root / "out.py").symlink_to(other / "code.py")
    (root / "in.py").symlink_to("code.py")
    (root / "folder").symlink_to(other)
    files = files_below([root])
    assert files.line(f"{root}/code.py", 2) == files.line(f"{root}/in.py", 2) == "second"
    outside = ("out.py", "folder/code.py", "../root-2/code.py", "../root-2/../root-2/code.py")
    assert not any(files.line(f"{root}/{each}", 2) for each in outside)
    assert list(files.lines(f"{root}/out.py")) == []


def test_of_ones_own_processes_only_source_files_are_read_elsewhere(tmp_path: Path) -> None:
    """A link with the name of a source file is judged by what it leads to."""
    (tmp_path / "root").mkdir()
    (tmp_path / "code.py").write_text(TEXT)
    (tmp_path / "secret").write_text(TEXT)
    (tmp_path / "link.py").symlink_to("secret")
    files = files_below([tmp_path / "root"], ".py")
    assert files.line(str(tmp_path / "code.py"), 1) == "first"
    assert files.line(str(tmp_path / "secret"), 1) == ""
    assert files.line(str(tmp_path / "link.py"), 1) == ""


def test_without_named_roots_installed_packages_and_the_working_directory_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is."""
    (tmp_path / "cwd").mkdir()
    for each in (tmp_path / "code.py", tmp_path / "cwd" / "code.py"):
        each.write_text(TEXT)
    monkeypatch.chdir(tmp_path / "cwd")
    files = files_below(None)
    assert files.line(str(tmp_path / "cwd" / "code.py"), 1) == "first"
    assert files.line(str(tmp_path / "code.py"), 1) == ""
    assert files.line(pytest.__file__, 1)
    assert files.line(os.__file__, 1)


def test_lines_are_numbered_as_python_numbers_them(tmp_path: Path) -> None:
    """A form feed ends no line; an encoding that is unknown does no harm."""
    (tmp_path / "code.py").write_bytes(b"# coding: rot13\r\nx = 1\x0c\ny = '\xff'\n")
    assert ANY_SOURCE.line(str(tmp_path / "code.py"), 3) == "y = '\ufffd'"
    assert [ANY_SOURCE.line(str(tmp_path / "code.py"), n) for n in (-1, 0, 99)] == ["", "", ""]
