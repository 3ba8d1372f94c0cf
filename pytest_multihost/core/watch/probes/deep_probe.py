"""Probe ranks whose records do not show which ranks they wait for, once the world is judged.

Probes that need the rank's help or briefly stop its threads run only now: torch's flight recorder,
the native frames below a jitted function, the holder of the GIL. Each is omitted if unavailable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_multihost.core.blame.divergence import find_partings
from pytest_multihost.core.blame.inferred import operation_of, plain_name, waits_at_sockets
from pytest_multihost.core.model.operation import History, Operations, Parting
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.result import RankSnapshot, WorldSnapshot
from pytest_multihost.core.model.stack import NativeThread
from pytest_multihost.core.slots import FlightMailbox, slots_path
from pytest_multihost.core.slots.readers import read_histories
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.probes.dump import gil_holders

# Read the native frames of all threads of ranks: what they wait for below Python.
#
# Each thread in turn is stopped for well under a millisecond and then continues, with the same
# results. Yet this is for a world that is suspected to hang, not for periodic use. Ranks that are
# stopped or in uninterruptible sleep are not read: the former need no further explanation, and
# ptrace(2) on the latter would block until the sleep ends.


BUDGET_S = 5.0
"""How long one process may take to be read: far more than it takes on an idle machine."""

_READER = Path(__file__).with_name("native_reader.py")
_WHY_NOT = {
    "T": "it is stopped",
    "t": "it is traced by a debugger",
    "D": "it is in uninterruptible sleep",
    "Z": "it has ended",
    "X": "it has ended",
    "": "it has ended",
}
"""By the state of a process (proc(5), /proc/PID/stat): why it is not read."""

_STATE_READS = 20
_STATE_INTERVAL_S = 0.01
_TOO_LONG = "reading it took too long"
_INSTALL = "pystack is not installed (pip install pytest-multihost-hangs[stacks])"
_ALLOW = "allow ptrace (kernel.yama.ptrace_scope=0, or SYS_PTRACE in a container)"


@dataclass(frozen=True, slots=True)
class NativeStacks:
    """The native frames of a world's ranks at one instant.

    Attributes:
        threads: All threads of each rank that could be read.
        unobserved: What could not be read, why, and what would help: one sentence each.
    """

    threads: Mapping[int, tuple[NativeThread, ...]] = field(default_factory=dict)
    unobserved: tuple[str, ...] = ()


@dataclass(slots=True)
class NativeReader:
    """A process that reads native frames once. It takes 0.1 s to start. Close it in the end."""

    _process: subprocess.Popen[bytes] | None = None

    def start(self, likely: Iterable[int] = ()) -> None:
        """Start it, if it is not running: it may be asked soon, and for `likely` processes."""
        if self._process is None and _has_pystack():
            self._process = subprocess.Popen(
                # -P: modules beside the reader must not stand in for those of the library
                [sys.executable, "-P", str(_READER), *map(str, likely)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )

    def read(self, pids: Sequence[int], budget_s: float) -> str:
        """Return what it writes about processes; only its begin if it takes too long."""
        self.start()
        process, self._process = self._process, None
        if process is None:
            return ""
        with process:
            try:
                asked = " ".join(map(str, pids)).encode()
                output, _ = process.communicate(asked, timeout=budget_s * len(pids))
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                for pid in pids:  # it was ended between stopping a process and waiting for that
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGCONT)
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        """End it, if nobody has asked it."""
        if self._process is not None:
            with self._process:
                self._process.kill()
            self._process = None


def native_threads(
    pids: Mapping[int, int], *, budget_s: float = BUDGET_S, reader: NativeReader | None = None
) -> NativeStacks:
    """Return all threads of ranks with their native frames, within the budget of all together.

    Args:
        pids: Process id of each rank to look at. Ranks of jax cost 0.15 CPU seconds for the symbols
            of its library, and 0.05 for each rank.
        budget_s: Seconds for each process.
        reader: Reads them; may have been started before.
    """
    states = {rank: _lasting_state(pid) for rank, pid in pids.items()}
    reasons = {rank: _WHY_NOT[state] for rank, state in states.items() if state in _WHY_NOT}
    readable = {rank: pid for rank, pid in pids.items() if rank not in reasons}
    has_pystack = _has_pystack()
    errors = dict.fromkeys(readable.values(), _TOO_LONG if has_pystack else _INSTALL)
    threads: dict[int, tuple[NativeThread, ...]] = {}
    reader = reader or NativeReader()
    output = reader.read(list(errors), budget_s) if has_pystack and readable else ""
    for line in output.splitlines():
        with suppress(ValueError, TypeError, KeyError):  # a warning; or it was ended meanwhile
            answer = json.loads(line)
            threads[answer["pid"]] = tuple(
                NativeThread(tid, tuple(map(plain_name, symbols)))
                for tid, symbols in answer.get("threads", ())
            )
            errors[answer["pid"]] = " ".join(answer.get("error", "").split())[:200]
    for rank, pid in readable.items():
        is_refused = "not permitted" in errors[pid].lower() or "permission" in errors[pid].lower()
        if errors[pid]:
            reasons[rank] = f"{errors[pid]}; {_ALLOW}" if is_refused else errors[pid]
    unobserved = [f"no native frames of rank {rank}: {why}" for rank, why in reasons.items()]
    found = {rank: threads[pid] for rank, pid in readable.items() if rank not in reasons}
    return NativeStacks(found, tuple(unobserved))


def _lasting_state(pid: int) -> str:
    """Return the letter of a state, of an uninterruptible sleep only if it lasts.

    A page that is read from a disk takes milliseconds, and a rank at work passes many.
    """
    state = ""
    for _ in range(_STATE_READS):
        stat = read_stat(f"/proc/{pid}")
        state = stat.state if stat is not None else ""
        if state != "D":
            break
        time.sleep(_STATE_INTERVAL_S)
    return state


def _has_pystack() -> bool:
    return importlib.util.find_spec("pystack") is not None


FLIGHT_S = 0.2
"""How long a rank may take to answer; it needs a few milliseconds."""

_MAY_HOLD_GIL = frozenset({"BLOCKED", "SLEEPING", "IO", "DISK", "CHILD", "RUNNING"})
"""Labels of main threads that may hold the GIL: they wait, for which it should have been released,
or compute, for which it must be released now and then; the stacks tell which."""

_POLL_S = 0.002


def probe_unclear_ranks(
    ranks: Sequence[RankSnapshot],
    kernel: KernelSnapshot,
    *,
    pids: Mapping[int, int],
    alive: Sequence[int],
    scratch: Path,
    may_run_jax: bool,
    at_s: float,
    reader: NativeReader | None = None,
) -> tuple[tuple[RankSnapshot, ...], tuple[str, ...]]:
    """Return ranks with what probes have found, and what could not be read.

    Args:
        ranks: All ranks, as shallow and deep snapshots show them.
        kernel: The last deep snapshot.
        pids: Process ids of the ranks that may be read.
        alive: Ranks that may answer for themselves.
        scratch: The world's directory.
        may_run_jax: Whether operations can go on beside the main thread, unseen by a recorder.
        at_s: When the last shallow snapshot was taken.
        reader: Reads native frames; may have been started before.
    """
    if not any(_is_unclear(seen) and seen.rank in pids for seen in ranks):
        return tuple(ranks), ()
    ranks = _with_flight(ranks, scratch, alive)
    unclear = [seen for seen in ranks if seen.rank in pids and _is_unclear(seen)]
    asked = {
        seen.rank: pids[seen.rank]
        for seen in unclear
        if _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
    }
    with ThreadPoolExecutor(1) as pool:  # two sorts of readers, which both start slowly
        reading = pool.submit(native_threads, asked, reader=reader) if asked else None
        may_hold = {s.rank: pids[s.rank] for s in unclear if s.label in _MAY_HOLD_GIL}
        holders = gil_holders(may_hold)
    stacks = reading.result() if reading is not None else NativeStacks()
    at_sockets = waits_at_sockets(kernel)  # which no recorder sees
    found = []
    for each in ranks:
        seen = replace(each, holds_gil=True) if each.rank in holders else each
        # Asked again, since the holder of the GIL is now known.
        is_asked = _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
        if seen.rank in stacks.threads and is_asked:
            seen = _with_native(seen, stacks.threads[seen.rank], pids[seen.rank], len(ranks), at_s)
        if seen.rank in at_sockets and _is_unclear(seen):
            seen = replace(seen, operations=(*seen.operations, at_sockets[seen.rank]))
        found.append(seen)
    return tuple(found), stacks.unobserved


def needs_native_frames(ranks: Sequence[RankSnapshot], *, may_run_jax: bool) -> bool:
    """Return whether `probe_unclear_ranks` is going to read native frames of some of the ranks."""
    return any(
        _is_unclear(seen) and _may_be_in_native_operation(seen, may_run_jax=may_run_jax)
        for seen in ranks
    )


def _may_be_in_native_operation(seen: RankSnapshot, *, may_run_jax: bool) -> bool:
    is_at_work = may_run_jax and not (seen.holds_gil and seen.label != "RUNNING")
    return seen.label == "BLOCKED" or is_at_work


def _with_native(
    seen: RankSnapshot, threads: Sequence[NativeThread], pid: int, size: int, at_s: float
) -> RankSnapshot:
    """Add the operation that a rank's native frames show, and the frames of its threads.

    Of the threads only the main one is kept, and the one that is in the operation.
    """
    operation = operation_of(threads, group=tuple(range(size)), at_s=at_s)
    new = (operation,) if operation is not None else ()
    tids = {pid, *(each.thread for each in new)}
    native = tuple(each for each in threads if each.thread in tids)
    return replace(seen, operations=(*seen.operations, *new), native=native)


def _is_unclear(seen: RankSnapshot) -> bool:
    """Return whether a rank's records show no wait for other ranks, at most for its own devices."""
    waited = [each for each in seen.operations if each.waited_s is not None]
    return all(each.kind == "wait" and len(each.group) == 1 for each in waited)


def _with_flight(
    ranks: Sequence[RankSnapshot], scratch: Path, asked: Sequence[int]
) -> tuple[RankSnapshot, ...]:
    """Add operations of `asked` ranks that only torch's flight recorders have."""
    since_s = time.monotonic()
    mailboxes = [FlightMailbox(scratch, rank) for rank in asked]
    waiting = [each for each in mailboxes if each.ask()]
    deadline_s = since_s + FLIGHT_S
    found: dict[int, Operations] = {}
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        answers = {each.rank: each.read(since_s=since_s) for each in waiting}
        found |= {rank: answer for rank, answer in answers.items() if answer is not None}
        waiting = [each for each in waiting if each.rank not in found]
    return tuple(
        replace(
            seen,
            operations=(*seen.operations, *found[seen.rank].recent),
            entered=(*seen.entered, *found[seen.rank].entered.items()),
        )
        if seen.rank in found
        else seen
        for seen in ranks
    )


def with_probe_results(
    failure: WorldSnapshot, end: WorldSnapshot, unmoved: frozenset[int]
) -> WorldSnapshot:
    """Add to the snapshot at the first failure what probes found at the end.

    At the failure there was no time for probes. What they found later was so then, too, of ranks
    that have not run in between.

    Args:
        failure: The snapshot at the first failure.
        end: The last one, with what probes have found.
        unmoved: Ranks that have not run in between.
    """
    probed = {seen.rank: seen for seen in end.ranks if seen.rank in unmoved}
    ranks = (
        replace(
            seen,
            operations=later.operations,
            entered=later.entered,
            native=later.native,
            holds_gil=later.holds_gil,
        )
        for seen in failure.ranks
        for later in (probed.get(seen.rank, seen),)
    )
    return replace(failure, ranks=tuple(ranks))


# Read what ranks have entered so far: from slot pages, and from torch's flight recorders.


_ANSWER_S = 1.0
"""How long a rank may take to tell its flight recorder's stacks, once it has begun to answer."""


def probe_partings(scratch: Path, size: int, alive: Sequence[int]) -> tuple[Parting, ...]:
    """Return where the ranks of each group parted, if they did.

    Args:
        scratch: The world's directory.
        size: Number of ranks.
        alive: Ranks that may answer for themselves.
    """
    recorded = [
        each
        for rank in range(size)
        for each in read_histories(slots_path(scratch, rank), rank=rank)
    ]
    return find_partings(recorded, _flight_histories(scratch, alive))


def _flight_histories(scratch: Path, asked: Sequence[int]) -> Sequence[History]:
    since_s = time.monotonic()
    waiting = [
        each for rank in asked if (each := FlightMailbox(scratch, rank)).ask(for_histories=True)
    ]
    found: list[History] = []
    while waiting and (now_s := time.monotonic()) < since_s + _ANSWER_S:
        time.sleep(_POLL_S)
        if now_s > since_s + FLIGHT_S:
            waiting = [each for each in waiting if each.read(since_s=since_s) is not None]
        answers = [(each, each.read_histories(since_s=since_s)) for each in waiting]
        found += [history for _, answer in answers for history in answer or ()]
        waiting = [each for each, answer in answers if answer is None]
    return found
