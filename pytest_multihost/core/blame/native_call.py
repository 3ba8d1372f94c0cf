"""The call of a rank whose native code holds the GIL: its name, and the file that it works on."""

from __future__ import annotations

import re
from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.model.result import RankSnapshot, WorldResult
from pytest_multihost.core.model.stack import Frame, SourceContext, inside_the_test, is_library
from pytest_multihost.core.outcome.fault_progress import firings

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib(?:64)?/python3\.\d+)/")


def native_call(cause: Cause, result: WorldResult, context: SourceContext) -> str:
    """Return where native code holds the GIL, as in "in torch.save (file ckpt.pt)".

    Empty if the cause is another one, or if nothing shows it.
    """
    if cause.kind != "gil_held" or len(cause.culprits) != 1:
        return ""
    (rank,) = cause.culprits
    dump = next((each for each in result.dumps if each.rank == rank and each.main), None)
    frames = inside_the_test(dump.main.frames) if dump is not None and dump.main else []
    name = _name(frames, context)
    path = _file(result.last_seen.get(rank)) or _slow_file(rank, result)
    return " ".join(filter(None, (name, f"(file {path})" if path else "")))


def _name(frames: list[Frame], context: SourceContext) -> str:
    """Return the innermost public function of a library, in the user's words if these name it.

    If the user's line calls native code directly, return the only call in that line, or the line.
    """
    own = next((n for n, each in enumerate(frames) if not is_library(each.file)), len(frames))
    at = context.place(frames[own]) if own < len(frames) else None
    calls = _CALL.findall(at.source) if at is not None else []
    public = next((each for each in frames[:own] if each.function[:1] not in ("_", "<")), None)
    if public is not None:
        named = (each for each in calls if each.rpartition(".")[2] == public.function)
        return f"in {next(named, _dotted(public))}"
    if own == 0 and len(calls) == 1:
        return f"in {calls[0]}"
    return f"at {PurePath(at.file).name}:{at.line}" if at is not None else ""


def _dotted(frame: Frame) -> str:
    module = _INSTALLED.sub("", frame.file).removesuffix(".py").removesuffix("/__init__")
    return f"{module.strip('/').replace('/', '.')}.{frame.function}"


def _file(seen: RankSnapshot | None) -> str:
    """Return the name of the file that the main thread opens, reads or writes in the kernel."""
    target = seen.activity.target if seen is not None and seen.activity is not None else ""
    return PurePath(target).name if target.startswith("/") else ""


def _slow_file(rank: int, result: WorldResult) -> str:
    """Return the files that a fault slows down in a rank that sleeps for it."""
    seen = result.last_seen.get(rank)
    if seen is None or seen.sleep is None:
        return ""
    slow = (
        f"{fault.params['path']}, which faults.slow_io slows down"
        for index, fault in enumerate(result.spec.faults)
        if fault.kind == "slow_io" and rank in firings(result, index)
    )
    return next(slow, "")
