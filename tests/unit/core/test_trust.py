"""A file is trusted if nobody else may have made it, or may replace it or a folder above it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_multihost.core import preload, trust
from pytest_multihost.core.preload import _why_untrusted
from pytest_multihost.core.trust import (
    _read_proc,
    _read_sock_diag,
    listeners,
    require_own_listener,
    why_untrusted,
)
from pytest_multihost.testing import LaunchError

OTHER = 4711
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file in a folder in a folder, all of them the user's."""
    folder = tmp_path / "above/cache"
    folder.mkdir(parents=True)
    for each in (tmp_path, folder.parent, folder):
        each.chmod(0o755)
    path = folder / "lib.so"
    path.write_text("made")
    path.chmod(0o644)
    return path


def test_a_file_that_only_this_user_may_write_is_trusted(kept: Path) -> None:
    """Whatever others may read."""
    assert why_untrusted(kept) == ""


@pytest.mark.parametrize("level", [0, 1, 2])
def test_everybody_may_write_one_of_them(kept: Path, level: int) -> None:
    """Whoever may rename a folder may put another one in its place."""
    chosen = (kept, *kept.parents)[level]
    chosen.chmod(0o777)
    assert why_untrusted(kept) == f"other users can write {chosen}"


@as_root
@pytest.mark.parametrize("level", [0, 1, 2])
def test_one_of_them_is_another_users(kept: Path, level: int) -> None:
    """An owner can always give himself the right to write."""
    chosen = (kept, *kept.parents)[level]
    os.chown(chosen, OTHER, OTHER)
    assert why_untrusted(kept) == f"{chosen} belongs to the user with the id {OTHER}"


@as_root
def test_an_owner_without_a_number_here_makes_no_file_that_is_trusted(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user namespace root's folders have the number that all other users have."""
    monkeypatch.setattr(trust, "_owners", lambda: frozenset((0, OTHER)))
    os.chown(kept.parent.parent, OTHER, OTHER)
    assert why_untrusted(kept) == ""
    for each in (kept, kept.parent):
        os.chown(each, OTHER, OTHER)
        assert why_untrusted(kept) == f"{each} belongs to the user with the id {OTHER}"
        os.chown(each, 0, 0)


@as_root
def test_a_group_that_others_are_in_may_write_it(kept: Path) -> None:
    """0775 of the group of a project is for all its members."""
    os.chown(kept.parent, 0, OTHER)
    kept.parent.chmod(0o775)
    assert why_untrusted(kept) == f"other users can write {kept.parent}"
    os.chown(kept.parent, 0, 0)
    assert why_untrusted(kept) == ""  # the user's own


def test_a_link_does_not_hide_where_it_leads(kept: Path, tmp_path: Path) -> None:
    """What counts are the folders in which the file really is."""
    kept.parent.parent.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(kept)
    assert why_untrusted(link).startswith("other users can write")


def test_a_folder_as_tmp_is_no_danger(kept: Path) -> None:
    """Everybody may make files there, and replace only his own."""
    kept.parent.parent.chmod(0o1777)
    assert why_untrusted(kept) == ""
    kept.chmod(0o1777)
    assert why_untrusted(kept) != ""


@pytest.mark.parametrize("sign", [" ", ":", ";", "$", "\n"])
def test_a_path_that_the_loader_would_split_is_not_given_to_it(sign: str, tmp_path: Path) -> None:
    """LD_PRELOAD=/home/a b/c.so would load `b/c.so` of the current directory."""
    folder = tmp_path / f"a{sign}b"
    folder.mkdir()
    path = folder / "lib.so"
    path.write_text("made")
    assert "the dynamic loader would not read" in _why_untrusted(path)


def test_a_plain_path_is_loaded(kept: Path) -> None:
    """Signs of no meaning are in many paths."""
    plain = kept.with_name("lib-0.1+x@y_z~,=.so")
    plain.write_text("made")
    assert _why_untrusted(plain) == ""
    assert preload.preload_variables({}, [plain]) == {"LD_PRELOAD": str(plain)}


def test_own_listeners_and_ports_without_one_are_no_strangers() -> None:
    """A rank that comes before the primary listens finds nobody."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert listeners(port) == frozenset()
        assert not require_own_listener(port)
        held.listen()
        assert listeners(port) == {os.geteuid()}
        assert require_own_listener(port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_listeners_are_read_in_two_ways(address: str) -> None:
    """From sock_diag(7), and from /proc/net where a kernel has no sock_diag."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection((address, port)), socket.socket(family) as bound:
            bound.bind((address, 0))
            for found in (_read_sock_diag(), _read_proc()):
                assert {user for at, user in found if at == port} == {os.geteuid()}
                assert bound.getsockname()[1] not in {at for at, _ in found}


def test_without_sock_diag_listeners_are_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may refuse it, as gVisor does."""

    def refuse(_: bytes) -> list[bytes]:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(trust, "dump_sockets", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert require_own_listener(listening.getsockname()[1])


LISTEN = """
import os, socket, sys
os.setgid(4711); os.setuid(4711)
s = socket.socket(socket.AF_INET6 if sys.argv[2] == "::1" else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[2], int(sys.argv[1]))); s.listen(); print("listens", flush=True); sys.stdin.read()
"""


@as_root
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])  # noqa: S104 - the attacker's
def test_another_users_listener_is_a_stranger(address: str) -> None:
    """The kernel lets anybody listen at a port that was bound with SO_REUSEADDR."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", LISTEN, str(port), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            if not other.stdout.readline():
                pytest.fail("the other user could not listen")
            with pytest.raises(LaunchError, match=f"listens at port {port}"):
                require_own_listener(port)
            other.kill()
