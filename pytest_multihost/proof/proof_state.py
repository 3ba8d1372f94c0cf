"""Whether a world hangs, by proof: no wait in it can end before the deadline.

The argument has four parts.

1. Every thread of every process of the world waits, and for each wait we can name all that could
   end it: a timer, another thread, a peer of a socket, the writer of a pipe, the holder of a lock,
   a signal (`blockers`, `thread_blockers`, `descriptor_blockers`).
2. The world is closed: each of these is itself a waiting thread of the world, or a timer that
   strikes only after the deadline. Whatever is outside, may be outside or cannot be read counts as
   something that may end the wait, a *blocker* of the proof. Calling a world hung that is not costs
   more than waiting for the deadline.
3. So none of the waits can be the first to end: a deadlock. That is a stable property: once it
   holds it holds for good, so it need not be caught at one instant.
4. But the parts of a snapshot are read one after the other, and a wakeup could slip through between
   two of them. A second snapshot confirms the first: a thread that has left its wait in between has
   been on a processor, which counts in its `wait_key` for ever (`Interval.has_not_moved`).

Two intervals in a row are needed, each of `INTERVAL_S`: data that have left one queue and not
reached the next are in no table (delayed acknowledgements take up to 0.04 s, retransmissions 0.2 s
and more), a runtime's thread that polls every half second is between two polls, and a process that
is on its way out has no waits any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.model.process import Process
from pytest_multihost.proof.blockers import blockers
from pytest_multihost.proof.snapshot import Snapshot

INTERVAL_S = 1.0
"""How far two deep snapshots must be apart to show anything."""

_ENOUGH = 0.9
"""Part of an interval that is enough: whoever comes each second is never quite on time."""


@dataclass(frozen=True, slots=True)
class ProofState:
    """How far a proof has come; feed it with deep snapshots at least `INTERVAL_S` apart.

    Attributes:
        last: The last snapshot that counted.
        quiet: Intervals in a row, up to now, without a blocker.
        blockers: What blocked the proof in the last one: one sentence each.
    """

    last: Snapshot | None = None
    quiet: int = 0
    blockers: tuple[str, ...] = ()

    @property
    def is_proof(self) -> bool:
        """Whether two intervals in a row have shown that no wait can end before the deadline."""
        return self.quiet >= 2  # noqa: PLR2004 - the definition of a proof

    @property
    def next_s(self) -> float | None:
        """When the next snapshot counts; None where none has been taken: at any time."""
        return None if self.last is None else self.last.kernel.at_s + INTERVAL_S

    def after(self, now: Snapshot, *, deadline_s: float) -> ProofState:
        """Return the state after one more snapshot; one that comes too early changes nothing."""
        if self.last is None:
            return ProofState(now)
        if now.kernel.at_s < self.last.kernel.at_s + INTERVAL_S * _ENOUGH:
            return self
        found = blockers(self.last, now, deadline_s=deadline_s)
        return ProofState(now, 0 if found else self.quiet + 1, found)


def is_still(now: Snapshot, *, deadline_s: float) -> bool:
    """Return whether a shallow snapshot shows a world of which a deep one is worth its price.

    Every main thread is in a wait that does not end by itself before the deadline, or in an
    operation.
    """
    return all(_is_still(each, now, deadline_s) for each in now.kernel.processes)


def _is_still(process: Process, now: Snapshot, deadline_s: float) -> bool:
    main = process.main
    if process.is_dead or main is None or now.awaited_operations(process.rank, main.tid):
        return True
    return main.state == "S" and (main.ends_s is None or main.ends_s > deadline_s)
