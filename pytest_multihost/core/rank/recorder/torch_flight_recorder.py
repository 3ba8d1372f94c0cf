"""Answer the watchdog's requests for operations that only torch's flight recorder knows.

The flight recorder numbers groups on each rank separately, so these numbers are never compared
between ranks. It has no transfers and no waits for stores. `retired` does not mean success: torch
retires an entry when its watchdog is done with it, even after a failure. So an entry that is not
retired is an open collective, and a retired entry means nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import CLOCK_REALTIME, clock_gettime_ns
from types import FrameType
from typing import Any

from pytest_multihost.core.cpython_private import current_frames
from pytest_multihost.core.model.event import now, now_ns
from pytest_multihost.core.model.history import CallSite, History
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    GroupKey,
    Operation,
    Operations,
    tensor_text,
)
from pytest_multihost.core.model.stack import Frame, inside_the_test, is_library, is_ours
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import Group, Groups
from pytest_multihost.core.rank.recorder.torch_process_groups import OpenWorks
from pytest_multihost.core.slots import FlightMailbox, read_slots
from pytest_multihost.core.torch_private import (
    flight_traces,
    flight_traces_with_stacks,
    group_names,
    has_flight_recorder,
)

THREAD_NAME = "multihost-flight-recorder"

_ASKED_BYTES = 4096

Entry = Mapping[str, Any]
Span = tuple[GroupKey, int, float]
"""A group, and a time span (monotonic ns) in which an operation of the slot page was launched."""


@dataclass(slots=True, eq=False)
class FlightRecorderThread:
    """The thread that answers requests."""

    recorder: Recorder
    groups: Groups
    works: OpenWorks
    _is_started: bool = False

    def start(self) -> None:
        """Start the thread, once. It costs nothing while there are no requests."""
        is_late = self._is_started or self.recorder.is_in_child
        if is_late or not has_flight_recorder():
            return
        self._is_started = True
        mailbox = FlightMailbox(self.recorder.page.path.parent, self.recorder.rank)
        os.mkfifo(mailbox.fifo, 0o600)
        # Opened for writing as well, so that open() does not wait for a writer, and read() returns
        # no end of file when the last writer has closed.
        descriptor = os.open(mailbox.fifo, os.O_RDWR | os.O_CLOEXEC)
        serve = partial(self._serve, descriptor, mailbox)
        threading.Thread(target=serve, name=THREAD_NAME, daemon=True).start()

    def _serve(self, descriptor: int, mailbox: FlightMailbox) -> None:
        while asked := os.read(descriptor, _ASKED_BYTES):
            with contextlib.suppress(Exception):  # another version of torch; a full disk
                self.works.end_completed()
                self.works.streams.end_completed()
                at_s = now()
                mailbox.write(at_s, self._operations())
                if mailbox.asks_for_histories(asked):
                    histories: tuple[History, ...] = ()  # sent even if empty, to end the wait
                    with contextlib.suppress(Exception):
                        histories = self._histories()
                    mailbox.write_histories(at_s, histories)

    def _groups(self) -> dict[str, Group]:
        named = group_names(self.groups.module)
        return {name: self.groups.get(pg) for name, pg in named.items()}

    def _histories(self) -> tuple[History, ...]:
        """Return the operations entered in each group, with the stacks, which the JSON lacks."""
        groups = self._groups()
        found: dict[str, dict[int, Entry]] = {name: {} for name in groups}
        for each in (e for trace in flight_traces_with_stacks() for e in trace.get("entries", ())):
            name = each["process_group"][0]
            if name in groups and not each["is_p2p"]:
                found[name].setdefault(each["collective_seq_id"], each)
        ahead_ns = clock_gettime_ns(CLOCK_REALTIME) - now_ns()
        rank = self.recorder.rank
        return tuple(
            _history(rank, _flight_key(groups[name]), entries, ahead_ns)
            for name, entries in found.items()
        )

    def _operations(self) -> Operations:
        groups, spans = self._groups(), list(self._recorded())
        ahead_ns = clock_gettime_ns(CLOCK_REALTIME) - now_ns()  # torch uses the wall clock
        unseen: list[Operation] = []
        entered: dict[GroupKey, int] = {}
        for trace in flight_traces():
            entries = [each for each in trace.get("entries", ()) if not each["is_p2p"]]
            unseen += self._unseen(entries, groups, spans, ahead_ns)
            for key, count in _entered(trace, entries, groups).items():
                entered[key] = max(count, entered.get(key, 0))
        return Operations(self.recorder.rank, tuple(unseen), entered)

    def _unseen(
        self,
        entries: Sequence[Entry],
        groups: Mapping[str, Group],
        spans: Sequence[Span],
        ahead_ns: int,
    ) -> Iterator[Operation]:
        """Yield the open operations that the slot page lacks."""
        for each in entries:
            group, at_ns = groups.get(each["process_group"][0]), each["time_created_ns"] - ahead_ns
            if each["retired"] or group is None:
                continue
            if not any(key == group.key and start <= at_ns <= end for key, start, end in spans):
                yield self._operation(each, group, at_ns / 1e9)

    def _recorded(self) -> Iterator[Span]:
        """Yield groups and time spans in which the slot page's open operations were launched."""
        page = self.recorder.page
        begun = set()
        for pending in list(self.works.pending.values()):
            for at in pending.records:
                begun.add(page.began_ns(at))
                if pending.group is not None:
                    yield pending.group.key, page.began_ns(at), pending.launched_ns
        for launched in self.works.streams:
            for _, began_ns in launched.records:
                begun.add(began_ns)
                if launched.group is not None:
                    yield launched.group.key, began_ns, launched.at_ns
        for operation in read_slots(page.path, rank=self.recorder.rank).open:
            began_ns = round(operation.since_s * 1e9)
            if operation.kind == "collective" and began_ns not in begun:
                yield operation.group_key, began_ns, float("inf")

    def _operation(self, entry: Entry, group: Group, since_s: float) -> Operation:
        ranks, ordinal, scope = _flight_key(group)
        is_waited, frame = _main_thread()
        is_waited = is_waited or self.works.streams.is_waiting(threading.main_thread().ident)
        return Operation(
            name=_name(entry),
            kind="collective",
            group=ranks,
            ordinal=ordinal,
            scope=scope,
            sequence=entry["collective_seq_id"],
            detail=_detail(entry),
            since_s=since_s,
            waited_s=since_s if is_waited else None,
            thread=os.getpid(),
            frame=frame,
            source="flight-recorder",
        )


def _name(entry: Entry) -> str:
    return str(entry["profiling_name"]).rpartition(":")[2]


def _detail(entry: Entry) -> str:
    sent = zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    return " ".join(tensor_text(_SHORT.get(dtype, dtype), sizes) for dtype, sizes in sent)


_SHORT = {
    "Float": "f32",
    "Double": "f64",
    "Half": "f16",
    "BFloat16": "bf16",
    "Bool": "bool",
    "Byte": "u8",
    "Char": "i8",
    "Short": "i16",
    "Int": "i32",
    "Long": "i64",
    "ComplexFloat": "c64",
    "ComplexDouble": "c128",
}
"""The names of types in slot pages, by those of the flight recorder."""


def _history(rank: int, key: GroupKey, entries: Mapping[int, Entry], ahead_ns: int) -> History:
    """Return the entries of one group in sequence, back from the last one to the nearest gap."""
    last = max(entries, default=0)
    first = next((each for each in range(last, 0, -1) if each - 1 not in entries), 1)
    known = [entries[each] for each in range(first, last + 1)]
    sites = [
        CallSite(_name(each), None, _detail(each), _frames(each.get("frames", ())))
        for each in known
    ]
    numbers = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    return History(
        rank,
        key,
        first,
        tuple(numbers),
        order=tuple(numbers[site] for site in sites),
        times_s=tuple((each["time_created_ns"] - ahead_ns) / 1e9 for each in known),
    )


def _frames(frames: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
    found = tuple(Frame(each["filename"], each["line"], each["name"]) for each in frames)
    return tuple(each for each in inside_the_test(found) if not is_ours(each.file))


def _entered(
    trace: Mapping[str, Any], entries: Sequence[Entry], groups: Mapping[str, Group]
) -> dict[GroupKey, int]:
    """Return the number of the last collective of each group.

    A status has a group's number (`pg_id`), which only the entries link to its name. If a status
    has no entry any more, because its entries were overwritten, groups without entries are skipped.
    """
    names = {str(each["pg_id"]): each["process_group"][0] for each in entries}
    status = trace.get("pg_status", {})
    last = {} if status.keys() - names else dict.fromkeys(groups, 0)
    for each in entries:
        name = each["process_group"][0]
        last[name] = max(last.get(name, 0), each["collective_seq_id"])
    for number in status.keys() & names:
        enqueued = int(status[number].get("last_enqueued_collective", 0))
        last[names[number]] = max(last[names[number]], enqueued)
    return {_flight_key(groups[name]): count for name, count in last.items() if name in groups}


def _flight_key(group: Group) -> GroupKey:
    """Return the key of a group under which the flight recorder counts."""
    ranks, ordinal, scope = group.key
    return ranks, ordinal, replace(scope, kind=FLIGHT_SCOPE.kind)


def _main_thread() -> tuple[bool, Frame | None]:
    """Return whether the main thread is inside torch, and the user's line it is at."""
    frame: FrameType | None = current_frames().get(threading.main_thread().ident or 0)
    torch_s = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "")  # noqa: PTH118, PTH120 - a mere prefix
    is_inside = frame is not None and frame.f_code.co_filename.startswith(torch_s)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return is_inside, None
    return is_inside, Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
