"""The threads of a rank that wait for locks, and the threads that hold these, in lines."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    LockHolder,
    LockWait,
    SourceContext,
    innermost_user_frame,
)

_MAX_THREADS = 4


def lock_lines(judged: Judgement) -> Iterator[str]:
    """Yield the waits of the threads of a rank to blame, and the holders.

    If the holder of the main thread's lock is not known, yield the lines of the other threads: one
    of them may hold it.
    """
    diagnosis = judged.diagnosis
    blamed = diagnosis.blamed if diagnosis is not None else ()
    for dump in judged.dumps:
        seen = judged.result.last_seen.get(dump.rank)
        is_locked = seen is not None and seen.activity is not None and seen.activity.is_lock
        if dump.rank not in blamed or not is_locked:
            continue
        known = [(each, each.holder) for each in dump.locks if each.holder is not None]
        known.sort(key=lambda each: not each[0].is_main)
        waiting = {wait.ident for wait, _ in known}
        free = {each.ident: each for _, each in known if each.ident not in waiting}
        lines = [_lock_wait(wait, each, judged.context) for wait, each in known]
        lines += [f"{e.thread} is at {_line(e.at, judged.context)}" for e in free.values()]
        if not any(wait.is_main for wait, _ in known):
            lines += _other_threads(dump, judged.context)
        if (more := len(lines) - _MAX_THREADS) > 0:
            lines[_MAX_THREADS:] = [f"and {more} more lines of its threads"]
        yield from (f"{judged.result.spec.names.rank(dump.rank)}: {line}" for line in lines)


def _lock_wait(wait: LockWait, holder: LockHolder, context: SourceContext) -> str:
    """Return a thread's line, and the thread that it waits for there."""
    where = _line(wait.at, context)
    if not wait.lock:
        return f"{wait.thread} waits for the end of {holder.thread} at {where}"
    taken = context.place(holder.taken_at) if holder.taken_at is not None else None
    since = f" since {taken.file}:{taken.line}" if taken is not None else ""
    if holder.ident == wait.ident:
        return f"{wait.thread} holds {wait.lock} itself{since}, and waits for it at {where}"
    return f"{holder.thread} holds {wait.lock}{since}; {wait.thread} waits for it at {where}"


def _line(frame: Frame, context: SourceContext) -> str:
    at = context.place(frame)
    return f"{at.file}:{at.line}" + (f"  » {at.source}" if at.source else "")


def _other_threads(dump: Dump, context: SourceContext) -> Iterator[str]:
    for thread in dump.threads:
        frame = innermost_user_frame(thread.frames) if thread is not dump.main else None
        if frame is not None:
            yield f"another thread is at {_line(frame, context)}"
