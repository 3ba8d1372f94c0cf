"""The child processes of a rank to blame, in lines: it may wait for a data loader's."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.child_names import find_names
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.stack import innermost_user_frame

_MAX_PLACES = 4
_MAX_PIDS = 4


def child_lines(judged: Judgement) -> Iterator[str]:
    """Yield the user's lines in which child processes of the ranks to blame are."""
    diagnosis = judged.diagnosis
    blamed = diagnosis.blamed if diagnosis is not None else ()
    names, called = judged.result.spec.names, find_names(judged.result.operations)
    for dump in judged.dumps:
        frames = [
            (frame, child.pid)
            for child in (dump.children if dump.rank in blamed else ())
            if (frame := innermost_user_frame(child.own_frames)) is not None
        ]
        for frame, pids in list(group_by_value(frames).items())[:_MAX_PLACES]:
            at = judged.context.place(frame)
            source = f"  » {at.source}" if at.source else ""
            titles = [called.get(pid) or str(pid) for pid in pids[:_MAX_PIDS]]
            shown = ", ".join(titles) + (", ..." * (len(pids) > _MAX_PIDS))
            who = f"its child {shown} is" if len(pids) == 1 else f"its children {shown} are"
            yield f"{names.rank(dump.rank)}: {who} in {at.function} at {at.file}:{at.line}{source}"
