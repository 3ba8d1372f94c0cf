"""Processes that leave letters for each other in a directory."""

import time
from pathlib import Path

from pytest_multihost import operation

_mine = {}


def join(directory, rank, size):
    """Take part as `rank` of `size`."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    _mine.update(directory=Path(directory), rank=rank, size=size, sent={}, received={})


def send(to, text):
    """Leave a letter for another rank."""
    number = _mine["sent"][to] = _mine["sent"].get(to, 0) + 1
    letter = _mine["directory"] / f"{_mine['rank']}-to-{to}-{number}"
    draft = letter.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(letter)


def receive(sender, *, patience_s=600.0):
    """Wait for the next letter of `sender`, and return it."""
    number = _mine["received"][sender] = _mine["received"].get(sender, 0) + 1
    letter = _mine["directory"] / f"{sender}-to-{_mine['rank']}-{number}"
    with operation("receive", peers=[sender]):
        end = time.monotonic() + patience_s
        while not letter.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"letters: none of rank {sender}")
            time.sleep(0.01)
    return letter.read_text()


def from_left_to_right(text):
    """Send a letter to the next rank, and return that of the rank before."""
    rank, size = _mine["rank"], _mine["size"]
    send((rank + 1) % size, text)
    return receive((rank - 1) % size)
