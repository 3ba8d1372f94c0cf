"""What ranks were doing when their world ended: a tree of their stacks, a rank in a few words.

The tree shows equal parts once and each branch with its ranks, as LLNL's Stack Trace Analysis Tool
does (https://github.com/LLNL/STAT). Frames of libraries are left out if there are frames of the
user's; a chain of frames with the same ranks is one node; of two branches the one with fewer ranks
comes first, because readers look for the outlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.blame import Judgement
from pytest_multihost.model.operation import CALLEE_SCOPE, Operation, group_by_value
from pytest_multihost.model.result import RankSnapshot, WorldResult
from pytest_multihost.model.stack import Dump, Frame, inside_the_test, is_library
from pytest_multihost.model.verdict import Place, RankOutcome

_INNERMOST = 6
"""How many frames are shown of a stack without frames of the user's."""


@dataclass(frozen=True, slots=True)
class Node:
    """Frames that the same ranks are in, outermost first, and the branches below them."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    children: tuple[Node, ...] = ()


def merge_stacks(dumps: Iterable[Dump]) -> tuple[Node, ...]:
    """Return the tree of the main threads of dumps; ranks without a stack are not in it."""
    stacks = {}
    for dump in dumps:
        if dump.main is not None:
            inside = list(reversed(inside_the_test(dump.main.frames)))  # the outermost first
            own = [frame for frame in inside if not is_library(frame.file)]
            stacks[dump.rank] = own or inside[-_INNERMOST:]
    return _nodes({rank: frames for rank, frames in stacks.items() if frames})


def _nodes(stacks: Mapping[int, Sequence[Frame]]) -> tuple[Node, ...]:
    parts = ((each[0], (rank, each[1:])) for rank, each in sorted(stacks.items()) if each)
    nodes = []
    for frame, rest in group_by_value(parts).items():
        node = Node(tuple(rank for rank, _ in rest), (frame,), _nodes(dict(rest)))
        if len(node.children) == 1 and node.children[0].ranks == node.ranks:
            [only] = node.children
            node = Node(node.ranks, (frame, *only.frames), only.children)
        nodes.append(node)
    return tuple(sorted(nodes, key=lambda node: (len(node.ranks), node.ranks)))


def walk(nodes: Sequence[Node], prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node with the lines that lead to it, parents first."""
    for index, node in enumerate(nodes):
        is_last = index == len(nodes) - 1
        yield f"{prefix}{'└─ ' if is_last else '├─ '}", node
        yield from walk(node.children, f"{prefix}{'   ' if is_last else '│  '}")


def rank_places(judged: Judgement) -> dict[int, Place]:
    """Return where each rank is: as the diagnosis says, else its main thread's innermost frame."""
    found: dict[int, Place] = {}
    for _, node in walk(merge_stacks(judged.dumps)):
        at = judged.context.place(node.frames[-1])
        found.update(dict.fromkeys(node.ranks, at))  # children come later: the innermost is kept
    for each in judged.diagnosis.places if judged.diagnosis is not None else ():
        found[each.rank] = Place(each.file, each.line, each.function, each.source)
    return found


def rank_activity(
    outcome: RankOutcome,
    seen: RankSnapshot | None,
    result: WorldResult,
    in_call: Operation | None = None,
) -> tuple[str, str]:
    """Return a rank's state and its details: ``waiting``, ``in all_reduce #3``.

    Args:
        outcome: What happened to the rank.
        seen: The last snapshot of it.
        result: Its world.
        in_call: What its thread is in that the diagnosis is about, if that runs a function for
            another rank.
    """
    if outcome not in ("hung", "collateral") or seen is None:
        return outcome, ""
    if in_call is not None and in_call.scope == CALLEE_SCOPE:
        return "serving", f"runs {in_call.detail}"
    waited = [each for each in seen.operations if each.waited_s is not None]
    # A collective says more than a wait within it, as for a key of the store.
    most = next((e for e in waited if e.kind != "wait"), waited[0] if waited else None)
    operation = in_call or most
    if operation is not None:
        return "waiting", f"in {operation.describe(result.spec.size, names_world=False)}"
    if outcome == "collateral":
        return outcome, ""
    return (seen.label or "hung").lower(), str(seen.activity or "")
