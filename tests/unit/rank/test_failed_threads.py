"""Threads that an exception ends: a rank writes them down at once, for its page."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from pytest_multihost.core.rank.after_fork import note_failed_threads
from pytest_multihost.testing import FailedThread, from_json


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of exceptions that the handler has got which was there before."""
    found: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type.__name__))
    return found


def fill() -> None:
    """Fail."""
    raise KeyError("image_17")


def test_a_thread_that_an_exception_ends_is_written_down(
    tmp_path: Path, handled: list[str]
) -> None:
    """With its name, the exception and the line; who handled it before still does."""
    note_failed_threads(f"{tmp_path}/rank-0.threads")
    for target in (fill, sys.exit):
        thread = threading.Thread(target=target, name="prefetch")
        thread.start()
        thread.join()
    (line,) = Path(tmp_path, "rank-0.threads").read_text(encoding="utf-8").splitlines()
    found = from_json(FailedThread, json.loads(line))
    assert (found.name, found.error) == ("prefetch", "KeyError: 'image_17'")
    assert found.frame is not None
    assert found.frame.function == "fill"
    assert found.text.endswith(f"KeyError: 'image_17' at {Path(__file__).name}:{found.frame.line}")
    assert handled == ["KeyError", "SystemExit"]


def test_an_exception_without_a_text_is_no_error(tmp_path: Path, handled: list[str]) -> None:
    """Nor is a folder that is gone."""

    class Mute(Exception):  # noqa: N818 - not our own
        def __str__(self) -> str:
            raise ValueError

    def fail() -> None:
        raise Mute

    note_failed_threads(f"{tmp_path}/gone/rank-0.threads")
    for target in (fail, fill):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert handled == ["Mute", "KeyError"]
