"""Whether a world hangs, by proof: no wait in it can end before the deadline.

That is shown by two windows in a row in which nothing is found that may end a wait. Whatever
cannot be read may end one: to call a world hung that is not costs more than to wait for the
deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_multihost.model.process import KernelSnapshot, Process
from pytest_multihost.proof.snapshot import Snapshot
from pytest_multihost.proof.wait_ends import Window

WINDOW_S = 1.0
"""How far two looks must be apart to show anything."""

_EARLY = 0.9
"""Part of a window that is enough: whoever looks each second is never quite on time."""


@dataclass(frozen=True, slots=True)
class ProofState:
    """How far a proof has come; feed it with looks at least `WINDOW_S` apart.

    Attributes:
        last: The last snapshot that counted.
        quiet: Windows in a row, up to now, in which nothing was found that may end a wait.
        blockers: What was found in the last one: one sentence each.
    """

    last: Snapshot | None = None
    quiet: int = 0
    blockers: tuple[str, ...] = ()

    @property
    def is_proof(self) -> bool:
        """Whether two windows in a row have shown that no wait can end before the deadline."""
        return self.quiet >= 2  # noqa: PLR2004 - the definition of a proof

    def after(self, now: Snapshot, *, deadline_s: float, planned: Sequence[str] = ()) -> ProofState:
        """Return the search after one more look; one that comes too early changes nothing."""
        if self.last is None:
            return ProofState(now)
        if now.kernel.at_s < self.last.kernel.at_s + WINDOW_S * _EARLY:
            return self
        found = blockers(self.last, now, deadline_s=deadline_s, planned=planned)
        return ProofState(now, 0 if found else self.quiet + 1, found)


def is_still(now: Snapshot, *, deadline_s: float) -> bool:
    """Tell from a glance whether a closer look is worth its price.

    Every main thread is in a wait that does not end by itself before the deadline, or in an
    operation.
    """
    return all(_stays(each, now, deadline_s) for each in now.kernel.processes)


def _stays(process: Process, now: Snapshot, deadline_s: float) -> bool:
    main = process.main
    if process.is_dead or main is None or now.waited(process.rank, main.tid):
        return True
    return main.state == "S" and (main.ends_s is None or main.ends_s > deadline_s)


def blockers(
    before: Snapshot, now: Snapshot, *, deadline_s: float, planned: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return all that may end a wait of the world before the deadline, one sentence each.

    Args:
        before: A look at everything.
        now: The next one.
        deadline_s: When the world is ended in any case, on the monotonic clock.
        planned: What the harness itself is still going to do to the world.
    """
    found = list(planned)
    if not (before.kernel.is_deep and now.kernel.is_deep):
        found.append("only main threads were looked at")
    living = [each for each in now.kernel.processes if not each.is_dead]
    if not any(each.is_rank for each in living):
        found.append("no rank is alive")
    for process in living:
        was = before.kernel.process(process.pid)
        if was is None:
            found.append(f"{_name(process)} has just begun")
        else:
            view = Window(was, process, before, now, deadline_s)
            found += [f"{_name(process)} {each}" for each in view.blockers()]
    found += [
        f"{_name(each)} has just ended"
        for each in before.kernel.processes
        if not each.is_dead and _is_gone(each, now.kernel)
    ]
    return tuple(dict.fromkeys(found))


def _is_gone(process: Process, look: KernelSnapshot) -> bool:
    found = look.process(process.pid)
    return found is None or found.is_dead


def _name(process: Process) -> str:
    whose = f"rank {process.rank}:" if process.rank is not None else "orphan:"
    return whose if process.is_rank else f"{whose} child process `{process.name}` {process.pid}"
