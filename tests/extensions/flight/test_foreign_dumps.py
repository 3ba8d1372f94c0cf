"""Folders of dumps that somebody else has made, as `multihost explain` reads them."""

from __future__ import annotations

import os
import pickle
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign import CONTROL, HOSTILE_PICKLES, SECRET_LINE, job_dumps, require_printable

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.flight.plain_pickle import unpickled
from pytest_multihost.extensions.flight.recording import read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.testing import JsonError, SourceContext


def explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> str:
    """Return what `multihost explain` prints."""
    monkeypatch.setattr(sys, "argv", ["multihost", "explain", *map(str, arguments)])
    main()
    found = capsys.readouterr()
    return found.out + found.err


def plain(path: Path) -> Any:  # noqa: ANN401 - of a dump
    """Return the content of a dump."""
    return unpickled(path.read_bytes())


def change_entries(folder: Path, **fields: object) -> None:
    """Change fields of every operation; the files keep their times."""
    for path in folder.iterdir():
        content = plain(path)
        for entry in content["entries"]:
            entry.update(fields)
        times = path.stat()
        path.write_bytes(pickle.dumps(content, protocol=2))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def name_file(folder: Path, file: str) -> None:
    """Make the innermost frame of every operation of a file."""
    change_entries(folder, frames=[{"name": "f", "filename": file, "line": 2}])


def test_a_file_that_a_frame_names_is_shown_only_below_a_named_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither on the terminal nor in the page or the verdict, until the user names it."""
    dumps, here, secret = tmp_path / "dumps", tmp_path / "here", tmp_path / "elsewhere" / "s.py"
    for each in (dumps, here, secret.parent):
        each.mkdir()
    secret.write_text(f"{SECRET_LINE}\n" * 9)
    (here / "link.py").symlink_to(secret)
    monkeypatch.chdir(here)
    job_dumps(dumps, 4, 6, late=1)
    for named in (secret, here / "link.py"):
        name_file(dumps, str(named))
        shown = explained(monkeypatch, capsys, dumps, "--into", here / "out")
        assert "rank 1" in shown
        written = "".join(path.read_text() for path in (here / "out").iterdir())
        assert SECRET_LINE not in shown + written
    asked = (dumps, "--source-root", secret.parent, "--into", here / "named")
    explained(monkeypatch, capsys, *asked)
    assert SECRET_LINE in (here / "named" / "report.html").read_text()


def test_a_fifo_among_dumps_is_left_out_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other ranks are judged."""
    job_dumps(tmp_path, 8, 6, late=1)
    (tmp_path / "trace_rank_7").unlink()
    os.mkfifo(tmp_path / "trace_rank_7")
    shown = explained(monkeypatch, capsys, tmp_path)
    assert "trace_rank_7 cannot be used: it is a FIFO" in " ".join(shown.split())
    assert "rank 1 never reached" in shown


def test_hostile_texts_of_a_dump_are_printable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of groups, of operations, of files and of functions are."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    job_dumps(dumps, 4, 6, late=1)
    hostile = "\x1b[31m\n::error::x\r\u202e"
    for path in dumps.iterdir():
        content = plain(path)
        for entry in content["entries"]:
            entry["frames"] = [{"name": hostile, "filename": f"/x/{hostile}", "line": 2}]
            entry["process_group"] = (entry["process_group"][0], hostile)
            entry["profiling_name"] += hostile.replace(":", "")
        path.write_bytes(pickle.dumps(content, protocol=2))
        os.utime(path, ns=(10**18, 1_795_000_100 * 10**9))
        path.rename(path.with_name(path.name.replace("trace", f"tr{hostile}")))
    shown = explained(monkeypatch, capsys, dumps, "--into", tmp_path / "out")
    assert "rank 1" in shown
    require_printable(shown)
    assert not CONTROL.search((tmp_path / "out" / "report.html").read_text())


def test_a_size_that_no_tensor_has_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number of elements would have more digits than Python prints."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    job_dumps(dumps, 4, 6, late=1)
    change_entries(dumps, input_sizes=[[1 << 62] * 400])
    assert "rank 1" in explained(monkeypatch, capsys, dumps)


@pytest.mark.parametrize("data", HOSTILE_PICKLES, ids=lambda data: ascii(data[:12]))
def test_a_hostile_pickle_takes_no_memory(data: bytes) -> None:
    """It is read within what it has, or refused in one sentence."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        unpickled(data)
    except JsonError as error:
        assert "\n" not in str(error)  # noqa: PT017 - some of them are values
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_plain_values_are_read_as_pickle_reads_them(protocol: int) -> None:
    """Whatever writes them: torch uses protocol 2."""
    shared = [1, -1, 255, 256, 65_536, 1 << 40, (1 << 64) - 1, -(1 << 63), 1.5]
    value = {"a": [None, True, False, "é" * 300, ""], "b": (shared, (), (1,), (1, 2), (1, 2, 3))}
    assert unpickled(pickle.dumps({**value, "c": shared}, protocol)) == {**value, "c": shared}


def test_a_pickle_of_more_values_than_a_dump_has_is_refused() -> None:
    """The largest buffers that jobs use, of 20,000 operations with stacks, are read."""
    stack = [{"name": f"f{line}", "filename": "a.py", "line": line} for line in range(30)]
    entry = {**{f"field {n}": n for n in range(27)}, "sizes": [[1, 2], [3, 4]], "frames": stack}
    entries = [{**entry, "number": n, "at_ns": 10**18 + n} for n in range(20_000)]
    found: Any = unpickled(pickle.dumps(entries, 2))
    assert len(found) == 20_000
    with pytest.raises(JsonError, match="it has more than 1500000 values"):
        unpickled(b"\x80\x02](" + b"K\x01" * 1_600_000 + b"e.")


def test_one_late_rank_of_many_is_named(tmp_path: Path) -> None:
    """The rank that is late is named among many."""
    job_dumps(tmp_path, 256, 4)
    judged = judge_dumps(read_dumps(tmp_path), "dumps", SourceContext("/"))
    assert judged.diagnosis is not None
    assert judged.diagnosis.culprits == (7,)
