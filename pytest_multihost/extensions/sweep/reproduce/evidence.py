"""Finds a weakness in the output of the script that is to show it. It is pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.sweep.reproduce.trial import Trial
from pytest_multihost.extensions.sweep.result import DisturbedRun

_STATED = re.compile(r"rank (\d+): (.+?) = (.*)$", re.MULTILINE)
_TRACEBACK = re.compile(
    r"^(?P<head>.*)Traceback \(most recent call last\):\n(?:(?P=head)[ \t].*\n)+(?P=head)\S.*$",
    re.MULTILINE,
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')

_LAUNCHER = "torch/distributed/run.py"
"""In the stack of torchrun itself."""

_STACK = re.compile(
    r"^.*(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):\n(?:.*  File \".*\n?)+",
    re.MULTILINE,
)


def why_not_shown(trial: Trial, run: DisturbedRun) -> str:
    """Return why the output does not show the weakness; empty if it shows it."""
    if run.outcome == "wrong":
        return "" if stated_differently(trial.output) else "all ranks have stated the same values"
    if trial.code == 0:
        return f"all ranks ended well, after {trial.seconds:.1f} s"
    if run.error is not None and (kind := run.error.partition(":")[0]) not in trial.output:
        return f"no rank raised {kind}"
    if run.waiting is not None and not is_at(trial.output, run.waiting):
        return f"no rank was seen at {run.waiting.file}:{run.waiting.line}, where they are to wait"
    if run.outcome == "hung" and trial.code is not None:
        return f"it ended by itself after {trial.seconds:.1f} s, with exit code {trial.code}"
    return ""


def is_at(output: str, place: Place) -> bool:
    """Return whether an output has a frame at a line."""
    name = re.escape(place.file.rpartition("/")[2])
    return bool(re.search(rf'File "[^"]*{name}", line {place.line}\b', output))


def stated_differently(output: str) -> Mapping[str, Mapping[str, str]]:
    """Return the values that ranks have stated differently, by name and rank."""
    found: dict[str, dict[str, str]] = {}
    for rank, name, value in _STATED.findall(output):
        found.setdefault(name, {})[rank] = value
    return {name: values for name, values in found.items() if len({*values.values()}) > 1}


def first_traceback(output: str, error: str | None) -> str:
    """Return the first traceback of a rank's exception; empty without one.

    A launcher that is ended raises an exception, too, which is none of a rank.

    Args:
        error: The exception that the sweep has seen: its traceback comes first, also if it was
            raised while another one was handled.
    """
    found = [e[0] for e in _TRACEBACK.finditer(output) if _LAUNCHER not in e[0]]
    kind = (error or "").partition(":")[0]
    wanted = [each for each in found if kind and kind in each.splitlines()[-1]]
    return next(iter([*wanted, *found]), "")


def frames_of(stack: str) -> list[Place]:
    """Return the frames of a printed stack, the innermost first."""
    return [Place(file, int(line), name, "") for file, line, name in _FRAME.findall(stack)]


def stack_at(output: str, place: Place | None) -> str:
    """Return the first printed stack of a thread that is at a line; empty without one."""
    stacks = [each[0] for each in _STACK.finditer(output)]
    return next((e for e in stacks if place is not None and is_at(e, place)), "")
