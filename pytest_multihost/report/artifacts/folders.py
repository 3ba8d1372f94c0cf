"""The artifacts directory: one folder per run, one per attempt in it, the last three runs kept."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.model.event import Event
from pytest_multihost.model.verdict import JsonVerdict

KEPT_RUNS = 3
_MAX_NAME = 120
_RUN_ID = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ-(\d+)")
_STACKS = re.compile(r"rank-.*\.(stacks|main)")
_IGNORE = "# Written by pytest-multihost-hangs.\n*\n"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run of pytest.

    Attributes:
        base: The artifacts directory.
        run_id: UTC time and process id of the controller.
    """

    base: Path
    run_id: str

    @classmethod
    def open(cls, base: Path, run_id: str) -> RunFolder:
        """Make a run's folder, point `latest` and `verdicts.jsonl` at it, drop old runs.

        The processes of one run may all call it; the first one makes the folder.
        """
        folder = cls(base, run_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        (base / ".gitignore").write_text(_IGNORE)
        (folder.path / "verdicts.jsonl").touch()
        _link(base / "latest", folder.run_id)
        _link(base / "verdicts.jsonl", "latest/verdicts.jsonl")
        _drop_old_runs(base)
        return folder

    @property
    def path(self) -> Path:
        """The run's own folder."""
        return self.base / self.run_id

    def attempt(self, nodeid: str, attempt: int) -> Path:
        """Make and return the folder of one attempt of one test."""
        path = self.path / attempt_name(nodeid, attempt)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def verdicts(self) -> list[JsonVerdict]:
        """Return the verdicts that the run's processes have written.

        Raises:
            OSError: The file cannot be read.
        """
        lines = (self.path / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def append_verdict(self, verdict: Mapping[str, object]) -> None:
        """Add a line to the run's verdicts.jsonl.

        One write to a file opened for appending: the lines of several processes do not mix.
        """
        line = json.dumps(verdict, allow_nan=False) + "\n"
        with (self.path / "verdicts.jsonl").open("ab", buffering=0) as file:
            file.write(line.encode())


def new_run_id() -> str:
    """Return a name for a run that starts now in this process."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    return f"{now}-{os.getpid()}"


def _link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target` in one step, replacing what was there."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.symlink_to(target)
    new.replace(path)


def _drop_old_runs(base: Path) -> None:
    found = filter(None, (_RUN_ID.fullmatch(path.name) for path in base.iterdir()))
    for run_id, process_id in sorted((each[0], each[1]) for each in found)[:-KEPT_RUNS]:
        if not Path("/proc", process_id).exists():
            shutil.rmtree(base / run_id, ignore_errors=True)


def attempt_name(nodeid: str, attempt: int) -> str:
    """Return a folder name for an attempt: readable, unique, and valid on every file system."""
    words = re.sub(r"[^\w.-]+", "-", nodeid, flags=re.ASCII).strip("-")[:_MAX_NAME]
    return f"{words}-{zlib.crc32(nodeid.encode('utf-8', 'surrogatepass')):08x}-{attempt}"


def write_attempt(
    directory: Path, verdict: Mapping[str, object], history: Iterable[Event], *, origin_s: float
) -> None:
    """Write one attempt's verdict and history, and remove empty stack files."""
    text = json.dumps(verdict, indent=1, allow_nan=False)
    (directory / "verdict.json").write_text(text + "\n", encoding="utf-8")
    encode = json.JSONEncoder(default=repr).encode
    lines = [encode(event.record(origin_s=origin_s)) + "\n" for event in history]
    (directory / "history.jsonl").write_text("".join(lines), encoding="utf-8")
    with os.scandir(directory) as entries:
        for entry in entries:
            if _STACKS.fullmatch(entry.name) and entry.stat().st_size == 0:
                with contextlib.suppress(OSError):
                    Path(entry).unlink()
