"""The files with which pytest tells its watcher the test that runs, and the watcher answers.

pytest tells four times for each test, so it writes in place: a file that is made anew each time
costs a hundred times as much. A checksum shows a line that was read while it was written.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_multihost.core import files
from pytest_multihost.core.model.json_values import from_json, to_json

_TEST, _ANSWER = ".test", ".answer"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told:
    """The message of a process of pytest.

    Attributes:
        number: Counts the tests of this process, each time that one is run.
        test: Its id; empty between two tests.
        has_alarm: Whether a signal SIGALRM only fails the test.
        is_call: Whether the test's function runs, not its setup or teardown.
        controller: The process that has told this one to run the test; 0: none.
        workers: How many processes it has told so at first; 0: none.
    """

    number: int
    test: str = ""
    has_alarm: bool = False
    is_call: bool = False
    controller: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The watcher's findings about a test.

    Attributes:
        number: The test's number, as its process has told.
        page: The page of the job that it has started.
        verdict: The verdict as JSON.
        is_proven: Whether it is proven that nothing can move.
        has_ended: Whether the watcher has ended the ranks.
    """

    number: int
    page: str
    verdict: str
    is_proven: bool
    has_ended: bool = False


def tell(folder: Path, pid: int, told: Told) -> None:
    """Tell which test a process runs.

    Raises:
        OSError: The folder is gone, or the disk is full.
    """
    text = json.dumps(to_json(told)).encode()
    file = os.open(f"{folder}/{pid}{_TEST}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, b"%08x %s\n" % (zlib.crc32(text), text))  # the rest of a longer line stays
    finally:
        os.close(file)


def told_in(folder: Path) -> dict[int, Told]:
    """Return the messages of processes, by process id."""
    found = {}
    for path in folder.glob(f"*{_TEST}"):
        each = _told(path)
        if each is not None and path.stem.isdecimal():
            found[int(path.stem)] = each
    return found


_TRIES = 5


def _told(path: Path) -> Told | None:
    """Return the message of a process; None if its line is never whole."""
    for _ in range(_TRIES):
        try:
            checksum, _, text = path.read_bytes().partition(b"\n")[0].partition(b" ")
            if int(checksum, 16) == zlib.crc32(text):
                return from_json(Told, json.loads(text))
        except (OSError, ValueError):
            continue
    return None


def answer(folder: Path, pid: int, found: Answer | None) -> None:
    """Answer a process; None takes the answer back."""
    path = folder / f"{pid}{_ANSWER}"
    if found is None:
        path.unlink(missing_ok=True)
    else:
        files.write(path, json.dumps(to_json(found)))


def answer_to(folder: Path, pid: int, number: int) -> Answer | None:
    """Return the answer about a test; None if there is none."""
    found = _read(folder / f"{pid}{_ANSWER}", Answer)
    return found if found is not None and found.number == number else None


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return from_json(kind, json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return None
