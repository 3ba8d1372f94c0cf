"""The merged stacks of a world: what all ranks share first, then where they part."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.model.rank_set import rank_numbers, rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.report.stack_tree import Node, merge_stacks, walk
from pytest_multihost.report.text.spans import Line, Span, text_of

_MAX_BRANCHES = 9
_MAX_TASKS = 4
_MAX_HEAD = 48  # a longer branch pushes its own place to the right, and no other's


def stacks_text(result: WorldResult, context: SourceContext) -> str:
    """Return the merged stacks as plain text."""
    return text_of(stack_lines(result, context))


def stack_lines(result: WorldResult, context: SourceContext) -> Iterator[Line]:
    """Yield the merged stacks, and what must be known of how they were taken."""
    yield from _branches(result, context)
    for dump in result.dumps:
        for task in dump.tasks[:_MAX_TASKS]:
            yield (Span(f"task of rank {dump.rank}: {task}"),)
    moving = [dump.rank for dump in result.dumps if dump.has_moved]
    if moving:
        yield (Span(f"{rank_set(moving)} moved between two dumps"),)
    silent = [dump.rank for dump in result.dumps if not dump.threads]
    if silent:
        why = "it ignores the signal, or waits in the kernel"
        yield (Span(f"{rank_set(silent)} gave no stack: {why}"),)


def _branches(result: WorldResult, context: SourceContext) -> Iterator[Line]:
    nodes = merge_stacks(result.dumps)
    drawn = list(walk(nodes)) if len(nodes) > 1 else _under_the_root(nodes)
    shown = drawn[:_MAX_BRANCHES]
    names = max((len(_name(node, result)) for _, node in shown), default=0)
    heads = [f"{lead}{_name(node, result):<{names}}  {_chain(node)}" for lead, node in shown]
    width = min(_MAX_HEAD, max(map(len, heads), default=0))
    for head, (_, node) in zip(heads, shown, strict=True):
        at = context.place(node.frames[-1])
        source = (Span(f"  » {at.source}", "source"),) if at.source else ()
        yield (Span(f"{head:<{width}}  {at.file}:{at.line}"), *source)
    if len(drawn) > _MAX_BRANCHES:
        yield (Span(f"and {len(drawn) - _MAX_BRANCHES} more branches in verdict.json"),)


def _under_the_root(nodes: tuple[Node, ...]) -> list[tuple[str, Node]]:
    """Return the only tree's nodes with the root to the left of its branches."""
    return [entry for root in nodes for entry in (("", root), *walk(root.children, "  "))]


def _name(node: Node, result: WorldResult) -> str:
    if len(node.ranks) == result.spec.size > 1:
        return f"all {result.spec.size}"
    return f"[{rank_numbers(node.ranks)}]"


def _chain(node: Node) -> str:
    names = [frame.function for frame in node.frames]
    if len(names) > 3:  # noqa: PLR2004 - both ends and what was called in between
        names = [names[0], "…", names[-1]]
    return " → ".join(names)
