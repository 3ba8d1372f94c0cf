"""Stacks of many ranks as one tree: equal parts once, each branch with its ranks.

As LLNL's Stack Trace Analysis Tool does (https://github.com/LLNL/STAT). Frames of libraries are
left out where there are the user's own; a chain of frames that the same ranks are in is one node;
of two branches the one with fewer ranks comes first, because the odd one out is what the reader
looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.model.stack import Dump, Frame, SourceContext, inside_the_test, is_library
from pytest_multihost.model.verdict import Place

_INNERMOST = 6
"""Frames that are shown of a stack without any of the user's."""


@dataclass(frozen=True, slots=True)
class Node:
    """Frames that the same ranks are in, outermost first, and where they part."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    children: tuple[Node, ...] = ()


def merge_stacks(dumps: Iterable[Dump]) -> tuple[Node, ...]:
    """Return the tree of the ranks' main threads; ranks without a stack are not in it."""
    stacks = {dump.rank: _shown(dump.main.frames) for dump in dumps if dump.main is not None}
    return _nodes({rank: frames for rank, frames in stacks.items() if frames})


def _shown(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a stack outermost first, without libraries if anything is left then."""
    inside = list(reversed(inside_the_test(frames)))
    own = [frame for frame in inside if not is_library(frame.file)]
    return tuple(own or inside[-_INNERMOST:])


def _nodes(stacks: Mapping[int, Sequence[Frame]]) -> tuple[Node, ...]:
    branches: dict[Frame, dict[int, Sequence[Frame]]] = {}
    for rank, frames in sorted(stacks.items()):
        if frames:
            branches.setdefault(frames[0], {})[rank] = frames[1:]
    nodes = [_node(frame, rest) for frame, rest in branches.items()]
    return tuple(sorted(nodes, key=lambda node: (len(node.ranks), node.ranks)))


def _node(frame: Frame, rest: Mapping[int, Sequence[Frame]]) -> Node:
    ranks = tuple(rest)
    children = _nodes(rest)
    if len(children) == 1 and children[0].ranks == ranks:
        [only] = children
        return Node(ranks, (frame, *only.frames), only.children)
    return Node(ranks, (frame,), children)


def walk(nodes: Sequence[Node], prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node with the lines that lead to it, parents first."""
    for index, node in enumerate(nodes):
        is_last = index == len(nodes) - 1
        yield f"{prefix}{'└─ ' if is_last else '├─ '}", node
        yield from walk(node.children, f"{prefix}{'   ' if is_last else '│  '}")


def innermost_places(dumps: Iterable[Dump], context: SourceContext) -> dict[int, Place]:
    """Return where the main thread of each rank was: the innermost frame that is of interest."""
    found: dict[int, Place] = {}
    for _, node in walk(merge_stacks(dumps)):
        at = context.place(node.frames[-1])
        found.update(dict.fromkeys(node.ranks, at))  # children come later: the innermost stays
    return found
