"""Folders of dumps made by hand: worlds that hang, with their culprits, and innocents.

Each world is written as its ranks' programs: what each has launched, and what of it has ended.
`write` makes a folder of it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flight_dumps import START_S, WORLD, dump, ended, op, p2p

Entries = Sequence[Mapping[str, Any]]

_LATE_S = 600.0
"""When dumps are taken, in seconds after the start, unless a folder says otherwise."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of dumps.

    Attributes:
        dumps: By rank, the content of its file; a rank may be missing.
        culprits: Whom an explanation must name, all of them and nobody else.
        confidence: How sure it must be; empty if that does not matter.
        dumped_s: When ranks were dumped, in seconds after the start.
    """

    name: str
    dumps: Mapping[int, Mapping[str, Any]]
    culprits: tuple[int, ...] = ()
    confidence: str = ""
    dumped_s: Mapping[int, float] = field(default_factory=dict)


def write(folder: Folder, directory: Path) -> None:
    """Write the files of a folder."""
    for rank, content in folder.dumps.items():
        path = directory / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dict(content)))
        at_s = START_S + folder.dumped_s.get(rank, _LATE_S)
        os.utime(path, (at_s, at_s))


def guilty() -> Iterator[Folder]:
    """Yield worlds that hang because of some of their ranks."""
    yield from _pipelines()
    yield from _without_dumps()
    yield from _overwritten()
    yield from _mismatches()
    yield from _chains()
    yield from _on_hosts()


def innocents() -> Iterator[Folder]:
    """Yield worlds in which nobody is to blame, though somebody looks late or odd."""
    yield from _moving()
    yield from _all_ended()
    yield from _uneven()


# Pipelines


def _stage(rank: int, stages: Sequence[int], late: int, name: str, done: int = 3) -> Entries:
    """Return what a stage of a pipeline has launched, if stage `late` is late after some rounds.

    A round brings something forward from the first stage to the last. In the group of a pipeline
    the stages' own counts differ: inner ones receive and send, outer ones do one of both.
    """
    at, launched, number = stages.index(rank), list[dict[str, Any]](), 0

    def add(text: str, *, is_over: bool) -> None:
        nonlocal number
        number += 1
        state = {"state": "completed", "retired": True} if is_over else {}
        launched.append(p2p(text, number, name, **state))

    for turn in range(done + 1):
        is_last = turn == done
        if at > 0 and not (is_last and at == late):
            add(f"recv {at}<-{at - 1}", is_over=not is_last or at < late)
        if at < len(stages) - 1 and not (is_last and at == late):
            add(f"send {at}->{at + 1}", is_over=not is_last or at < late - 1)
    if at < late < len(stages):  # what comes back to it has to pass the late stage
        add(f"recv {at}<-{at + 1}", is_over=False)
    return launched


def _pipelined(
    count: int,
    depth: int,
    late: Mapping[int, int],
    name: str,
    **more: Any,  # noqa: ANN401
) -> Folder:
    """Return pipelines, in each of which stage `late` is late, and data-parallel groups across."""
    size = count * depth
    lines = {f"{10 + n}": tuple(range(n * depth, (n + 1) * depth)) for n in range(count)}
    across = {f"{20 + n}": tuple(range(n, size, depth)) for n in range(depth)}
    dumps, culprits = {}, []
    for number, (line, stages) in enumerate(lines.items()):
        for at, rank in enumerate(stages):
            groups = {WORLD: range(size), line: stages, f"{20 + at}": across[f"{20 + at}"]}
            first = [ended("all_reduce", 1), ended("all_reduce", 1, f"{20 + at}")]
            stage = late.get(number)
            if stage is None:  # this pipeline has come to the all_reduce of its gradients
                theirs = [*_stage(rank, stages, depth, line), op("all_reduce", 2, f"{20 + at}")]
            else:
                theirs = list(_stage(rank, stages, stage, line))
            dumps[rank] = dump(*first, *theirs, groups=groups)
        if late.get(number, depth) < depth:
            culprits.append(stages[late[number]])
    return Folder(name, dumps, tuple(culprits), **more)


def _pipelines() -> Iterator[Folder]:
    yield _pipelined(
        2, 4, {0: 1, 1: 2}, "a straggler in each of two pipelines", confidence="certain"
    )
    yield _pipelined(2, 4, {0: 3, 1: 3}, "the last stages of two pipelines are late")
    yield _pipelined(4, 4, {0: 2, 3: 1}, "stragglers in two stages of four pipelines")
    yield _pipelined(4, 2, {0: 1, 1: 1, 2: 1, 3: 1}, "a straggler in each of four pipelines")
    yield _pipelined(3, 3, {1: 1}, "one straggler in three pipelines")
    yield _two_groups_late()
    lines = {**_line((0, 1, 2, 3), 1), **_line((4, 5, 6, 7), 2)}
    yield Folder("two pipelines in the group of all", lines, (1, 6), "certain")
    without = {rank: each for rank, each in lines.items() if rank != 6}
    yield Folder("of two such pipelines one straggler left no dump", without, (1, 6), "likely")
    without = {rank: each for rank, each in without.items() if rank != 1}
    yield Folder("of two such pipelines both stragglers left no dump", without, (1, 6), "likely")


def _line(stages: Sequence[int], late: int) -> dict[int, Mapping[str, Any]]:
    """Return the dumps of a pipeline of eight ranks' default group."""
    dumps = {}
    for rank in stages:
        theirs = [
            {**each, "name": _renamed(str(each["name"]), stages)}
            for each in _stage(rank, stages, late, WORLD)
        ]
        dumps[rank] = dump(*theirs, groups={WORLD: range(8)})
    return dumps


def _renamed(name: str, stages: Sequence[int]) -> str:
    """Return the name of a transfer between stages as one between their ranks."""
    kind, _, ends = name.partition(" ")
    arrow = "->" if "->" in ends else "<-"
    return f"{kind} {arrow.join(str(stages[int(each)]) for each in ends.split(arrow))}"


def _two_groups_late() -> Folder:
    groups = {"1": (0, 1, 2, 3), "2": (4, 5, 6, 7)}
    first = {"1": ended("all_reduce", 4, "1"), "2": ended("all_gather_base", 9, "2")}
    then = {"1": op("all_reduce", 5, "1"), "2": op("all_gather_base", 10, "2", at_s=90.0)}
    late = (2, 5, 6)
    dumps = {
        rank: dump(first[name], *([] if rank in late else [then[name]]), groups={name: ranks})
        for name, ranks in groups.items()
        for rank in ranks
    }
    return Folder("two groups that never meet, each with late ranks", dumps, late)


# Ranks without a dump


def _without(size: int, gone: Sequence[int], late: Sequence[int] = ()) -> Mapping[int, Any]:
    groups = {WORLD: range(size)}
    waiting = dump(ended("all_reduce", 1), op("all_reduce", 2), groups=groups)
    idle = dump(ended("all_reduce", 1), groups=groups)
    return {rank: idle if rank in late else waiting for rank in range(size) if rank not in gone}


def _without_dumps() -> Iterator[Folder]:
    for name, size, gone in (
        ("one rank", 4, (2,)),
        ("two ranks", 8, (3, 7)),
        ("half of the ranks", 8, (0, 2, 4, 6)),
    ):
        yield Folder(f"{name} left no dump", _without(size, gone), gone, "likely")
    groups = {"1": (0, 1, 2, 3), "2": (4, 5, 6, 7)}
    waiting = {
        name: dump(ended("all_reduce", 1, name), op("all_reduce", 2, name), groups={name: ranks})
        for name, ranks in groups.items()
    }
    late = dump(ended("all_reduce", 1, "2"), groups={"2": groups["2"]})
    yield Folder(
        "one rank left no dump, and one of another group is late",
        {0: waiting["1"], 1: waiting["1"], 3: waiting["1"]}
        | {4: waiting["2"], 5: late, 6: waiting["2"], 7: waiting["2"]},
        (2, 5),
        "likely",
    )
    pipeline = dict(_pipelined(2, 4, {0: 2, 1: 1}, "").dumps)
    del pipeline[2]
    yield Folder("the straggler of one of two pipelines left no dump", pipeline, (2, 5), "likely")
    beside = dict(_pipelined(1, 4, {0: 2}, "").dumps)
    del beside[1]
    yield Folder("a rank without a dump may wait for one that is late", beside, (2,))
    both = dict(_mismatched(4, {1: {"input_sizes": [[5]]}}))
    del both[3]
    yield Folder("a rank left no dump, and another passes another size", both, (1,), "likely")
    blank = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
    yield Folder("a rank's dump is blank", {**_without(4, ()), 1: blank}, (1,), "likely")
    unused = dump(groups={WORLD: range(4)})
    yield Folder(
        "a rank's dump is empty, but it took part before",
        {**_without(4, ()), 1: unused},
        (1,),
        "likely",
    )
    first = dump(op("all_reduce", 1), groups={WORLD: range(4)})
    yield Folder(
        "a rank has never launched anything",
        {0: first, 1: unused, 2: first, 3: first},
        (1,),
        "certain",
    )
    counted = dump(groups={WORLD: range(4)}, status={WORLD: (1, 1)})
    waiting = dump(
        ended("all_reduce", 1),
        op("all_reduce", 2),
        groups={WORLD: range(4)},
        status={WORLD: (2, 1)},
    )
    yield Folder(
        "a rank's entries were left out, its counts tell",
        {0: waiting, 1: waiting, 2: counted, 3: waiting},
        (2,),
        "certain",
    )


# Records that were overwritten


def _overwritten() -> Iterator[Folder]:
    groups = {WORLD: (0, 1, 2)}
    busy = [ended("all_reduce", each) for each in range(40, 44)]
    receives = p2p("recv 1<-0", 12, collective_seq_id=43)
    yield Folder(
        "a receive whose sends were overwritten",
        {
            0: dump(*busy, groups=groups, first=300),
            1: dump(*busy, receives, groups=groups, first=300),
            2: dump(*busy, groups=groups, first=300),
        },
        (0,),
        "likely",
    )
    yield Folder(
        "a receive whose sender's recorder began late",
        {
            0: dump(*busy, groups=groups),
            1: dump(*busy, receives, groups=groups, first=300),
            2: dump(*busy, groups=groups),
        },
        (0,),
        "likely",
    )
    sends = [
        p2p(f"send 0->{to}", number, state="completed", collective_seq_id=43)
        for number, to in enumerate((1, 2, 1, 2, 1), 31)
    ]
    taken = [
        p2p("recv 1<-0", number, state="completed", collective_seq_id=43) for number in (9, 10, 11)
    ]
    yield Folder(
        "a receive whose last sends were recorded",
        {
            0: dump(*sends, groups=groups, first=300),
            1: dump(*taken, receives, groups=groups, first=300),
            2: dump(*busy, groups=groups, first=300),
        },
        (0,),
    )
    yield Folder(
        "a send whose receives were overwritten",
        {
            0: dump(*busy, p2p("send 0->2", 77, collective_seq_id=43), groups=groups, first=300),
            1: dump(*busy, groups=groups, first=300),
            2: dump(*busy, groups=groups, first=300),
        },
        (2,),
        "likely",
    )
    apart = {**groups, "1": (0, 1), "2": (1, 2)}
    yield Folder(
        "a group's entries were overwritten in the only rank that can be late",
        {
            0: dump(op("all_reduce", 9, "1"), groups=apart, first=300),
            1: dump(ended("all_reduce", 50, "2"), groups=apart, first=300),
            2: dump(ended("all_reduce", 50, "2"), groups=apart, first=300),
        },
        (1,),
        "likely",
    )


# Mismatches


def _mismatched(size: int, odd: Mapping[int, Mapping[str, Any]], **usual: Any) -> Mapping[int, Any]:  # noqa: ANN401
    """Return a world in which some ranks pass other things to the last collective."""
    groups = {WORLD: range(size)}
    return {
        rank: dump(
            ended("all_reduce", 1),
            op(**{"name": "all_reduce", "sequence": 2, **usual, **odd.get(rank, {})}),
            groups=groups,
        )
        for rank in range(size)
    }


def _mismatches() -> Iterator[Folder]:
    larger, double = {"input_sizes": [[5]]}, {"input_dtypes": ["Double"]}
    for what, odd in (("size", larger), ("type", double)):
        for size, ranks in ((2, (1,)), (4, (2,)), (16, (11,)), (16, (3, 12))):
            yield Folder(
                f"{len(ranks)} of {size} ranks passes another {what}",
                _mismatched(size, dict.fromkeys(ranks, odd)),
                ranks if size > 2 else (0, 1),
                "likely",
            )
    gather = {"name": "_all_gather_base"}
    for size, ranks in ((4, (1,)), (16, (0, 9))):
        yield Folder(
            f"{len(ranks)} of {size} ranks is in another collective",
            _mismatched(size, dict.fromkeys(ranks, gather)),
            ranks,
            "certain",
        )
    yield Folder(
        "one of 4 ranks scatters other sizes",
        _mismatched(
            4, {3: {"input_sizes": [[32]]}}, name="_reduce_scatter_base", input_sizes=[[16]]
        ),
        (3,),
    )
    yield Folder(
        "one of 4 ranks gathers another type", _mismatched(4, {0: double}, name="all_gather"), (0,)
    )
    groups = {WORLD: range(3)}
    most = dump(ended("all_reduce", 1), op("all_reduce", 2), groups=groups)
    less = dump(
        ended("all_reduce", 1),
        ended("all_reduce", 2, input_sizes=[[1]]),
        op("all_reduce", 3),
        groups=groups,
    )
    yield Folder("who passed less has gone on", {0: most, 1: less, 2: most}, (1,))
    apart = {"1": (0, 1, 2, 3), "2": (4, 5, 6, 7)}
    yield Folder(
        "a size in one group, a type in another",
        {
            rank: dump(
                op("all_reduce", 1, name, **{1: larger, 6: double}.get(rank, {})),
                groups={name: ranks},
            )
            for name, ranks in apart.items()
            for rank in ranks
        },
        (1, 6),
    )
    pair = {WORLD: (0, 1)}
    yield Folder(
        "a send and its receive have different sizes",
        {
            0: dump(p2p("send 0->1", 1), groups=pair),
            1: dump(p2p("recv 1<-0", 1, output_sizes=[[8]], input_sizes=[[8]]), groups=pair),
        },
        (0, 1),
        "likely",
    )


# Chains


def _chains() -> Iterator[Folder]:
    groups = {WORLD: range(4), "1": (0, 1), "2": (1, 2), "3": (2, 3)}

    def of(rank: int) -> Mapping[str, Sequence[int]]:
        return {name: ranks for name, ranks in groups.items() if rank in ranks}

    first = [ended("all_reduce", 1)]
    yield Folder(
        "0 waits for 1, 1 for 2, 2 for 3, in three groups",
        {
            0: dump(*first, op("all_reduce", 1, "1"), groups=of(0)),
            1: dump(*first, op("broadcast", 1, "2"), op("all_reduce", 1, "1"), groups=of(1)),
            2: dump(*first, op("all_gather", 1, "3"), op("broadcast", 1, "2"), groups=of(2)),
            3: dump(*first, groups=of(3)),
        },
        (3,),
        "certain",
    )
    yield Folder(
        "0 waits for 1 in a group, 1 for 3 in a receive",
        {
            0: dump(*first, op("all_reduce", 1, "1"), groups=of(0)),
            1: dump(*first, p2p("recv 1<-3", 1), groups=of(1)),
            2: dump(*first, groups=of(2)),
            3: dump(*first, groups=of(3)),
        },
        (3,),
    )
    yield Folder(
        "at the end of the chain is a rank whose device has stopped",
        {
            0: dump(*first, op("all_reduce", 1, "1"), groups=of(0)),
            1: dump(*first, op("all_reduce", 1, "2"), op("all_reduce", 1, "1"), groups=of(1)),
            2: dump(*first, ended("all_reduce", 1, "3"), groups=of(2)),
            3: dump(*first, op("all_reduce", 1, "3"), op("all_reduce", 2), groups=of(3)),
        }
        | {
            2: dump(
                *first, ended("all_reduce", 1, "3"), op("all_reduce", 2, at_s=9.0), groups=of(2)
            )
        },
        (3,),
    )


def _on_hosts() -> Iterator[Folder]:
    """Yield worlds of gloo: no members, no states, no transfers."""
    groups = {WORLD: range(4)}
    done = {**ended("all_reduce", 1), "state": "scheduled"}
    waiting = dump(done, op("barrier", 2), groups=groups, backend="gloo")
    late = dump(done, groups=groups, backend="gloo")
    dumps = {0: waiting, 1: late, 2: waiting, 3: late}
    for each in (waiting, late):
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    yield Folder("two of four ranks of gloo are late", dumps, (1, 3))


# Large


def large(size: int, depth: int = 8, width: int = 8, turns: int = 16) -> Folder:
    """Return a world of honest ranks and one that is late for the collective of all.

    Each rank is in four groups, as with tensor, pipeline and data parallelism.

    Args:
        depth: Ranks of a pipeline.
        width: Ranks of a tensor group.
        turns: Collectives that each rank has ended.
    """
    late, block = size // 2 + 1, depth * width
    stack = [{"name": f"f{each}", "filename": "/job/train.py", "line": each} for each in range(8)]
    dumps = {}
    for rank in range(size):
        base, inner = rank - rank % block, rank % block
        groups = {
            WORLD: range(size),
            f"t{rank // width}": range(rank - rank % width, rank - rank % width + width),
            f"p{base}.{rank % width}": range(base + rank % width, base + block, width),
            f"d{inner}": range(inner, size, block),
        }
        numbers = dict.fromkeys(groups, 0)
        launched = []
        for turn in range(turns):
            name = [*groups][(1, 2, 1, 3, 1, 2, 1, 0)[turn % 8]]
            numbers[name] += 1
            launched.append(ended("all_reduce", numbers[name], name, frames=stack))
        if rank != late:
            launched.append(op("all_reduce", numbers[WORLD] + 1, frames=stack))
        dumps[rank] = dump(*launched, groups=groups)
    return Folder(f"{size} ranks", dumps, (late,), "certain")


# Innocents


def _moving() -> Iterator[Folder]:
    groups = {WORLD: range(3)}
    done = [ended("all_reduce", each, at_s=590.0 + each / 10) for each in range(1, 90)]
    ahead = dump(*done, op("all_reduce", 90, at_s=599.99), groups=groups)
    behind = dump(*done, groups=groups)
    yield Folder("a healthy skew of one operation", {0: ahead, 1: ahead, 2: behind})
    yield Folder("all are in one operation that has just begun", dict.fromkeys(range(3), ahead))
    first = ended("all_reduce", 1)
    on = dump(
        first, ended("all_reduce", 2, at_s=50.0), op("all_reduce", 3, at_s=50.1), groups=groups
    )
    yield Folder(
        "a rank was dumped before the others went on",
        {0: on, 1: on, 2: dump(first, groups=groups)},
        dumped_s={2: 40.0},
    )
    seen = ended("all_reduce", 2, at_s=1.0, time_discovered_completed_ns=int((START_S + 45) * 1e9))
    yield Folder(
        "a rank was dumped inside what has ended since",
        {
            0: dump(first, seen, groups=groups),
            1: dump(first, seen, groups=groups),
            2: dump(first, op("all_reduce", 2, at_s=1.0), groups=groups),
        },
        dumped_s={2: 40.0},
    )
    sends = dump(first, p2p("send 0->2", 1, at_s=70.0), groups=groups)
    yield Folder(
        "a rank was dumped before another sent to it",
        {0: sends, 1: dump(first, groups=groups), 2: dump(first, groups=groups)},
        dumped_s={2: 40.0},
    )


def _all_ended() -> Iterator[Folder]:
    groups = {WORLD: range(4)}
    kept = ended("all_reduce", 1)
    untold = {**ended("all_reduce", 2), "retired": False}
    plain = dump(kept, groups=groups)
    yield Folder(
        "completed and not retired", dict.fromkeys(range(4), dump(kept, untold, groups=groups))
    )
    gloo = dump(kept, untold, groups=groups, backend="gloo")
    yield Folder("completed and not retired, on the CPU", dict.fromkeys(range(4), gloo))
    yield Folder(
        "nothing is open, and one has done less",
        {**dict.fromkeys(range(3), dump(kept, ended("broadcast", 2), groups=groups)), 3: plain},
    )
    yield Folder(
        "different counts in pipelines",
        _pipelined(2, 4, {0: 4, 1: 4}, "").dumps,
    )
    late = [ended("all_reduce", each) for each in range(700, 705)]
    yield Folder("all recorders began late", dict.fromkeys(range(4), dump(*late, groups=groups)))
    pairs = {
        0: [p2p("send 0->1", each, state="completed") for each in (801, 802)],
        1: [p2p("recv 1<-0", each, state="completed") for each in (401, 402)],
    }
    yield Folder(
        "all recorders began late, in the middle of transfers",
        {rank: dump(*late, *pairs.get(rank, ()), groups=groups) for rank in range(4)},
    )
    yield Folder("no rank has launched anything", dict.fromkeys(range(4), dump(groups=groups)))
    yield Folder("a rank left no dump, and nobody waits", {0: plain, 1: plain, 3: plain})
    some = [[entry] for entry in (ended("all_reduce", 7, "1"), ended("all_reduce", 3, "2"))]
    apart = {"1": (0, 1), "2": (2, 3)}
    yield Folder(
        "groups that have done different numbers of operations",
        {
            rank: dump(*some[number], groups={name: ranks}, status={name: (7 - 4 * number,) * 2})
            for number, (name, ranks) in enumerate(apart.items())
            for rank in ranks
        },
    )


def _uneven() -> Iterator[Folder]:
    """Yield worlds whose ranks are all in one collective and pass, rightly, different sizes."""
    for name in ("all_gather", "all_to_all", "all_to_allv", "reduce_scatter", "gather", "scatter"):
        odd = {rank: {"input_sizes": [[4 + rank]]} for rank in range(4)}
        yield Folder(f"{name} of different sizes", _mismatched(4, odd, name=name))
    yield Folder(
        "the same tensor in different shapes",
        _mismatched(4, {1: {"input_sizes": [[2, 2]], "output_sizes": [[2, 2]]}}),
    )
    empty = {"input_sizes": [], "input_dtypes": []}
    yield Folder(
        "only the root of a scatter has inputs",
        _mismatched(4, dict.fromkeys((1, 2, 3), empty), name="scatter"),
    )
    base = {"name": "_all_gather_base"}
    yield Folder(
        "two names of one collective",
        _mismatched(4, {2: base}, name="all_gather"),
    )
    yield Folder(
        "sparse tensors of different sizes",
        _mismatched(4, {2: {"input_sizes": [[9]]}}, name="sparse_all_reduce"),
    )
    yield from map(_reshaped, (partial(_mismatched, 16),))


def _reshaped(made: Callable[..., Mapping[int, Any]]) -> Folder:
    odd = {rank: {"input_sizes": [[2, 8] if rank % 2 else [16]]} for rank in range(16)}
    return Folder("half of the ranks pass a matrix, the others a vector", made(odd))


def brief(size: int) -> Folder:
    """Return a world of which each rank has launched one collective of all, except a late one."""
    groups, late = {WORLD: range(size)}, size // 2 + 1
    waiting, idle = dump(op("all_reduce", 1), groups=groups), dump(groups=groups)
    dumps = {rank: idle if rank == late else waiting for rank in range(size)}
    return Folder(f"{size} ranks of one entry", dumps, (late,), "certain")
