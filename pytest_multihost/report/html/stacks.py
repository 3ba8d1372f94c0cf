"""Stacks on a page: all ranks as one tree, then each class of ranks in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.stack import Dump, Frame, StackGroup, ThreadStack, group_by_main_stack
from pytest_multihost.model.user_code import inside_the_test, is_library, short_path
from pytest_multihost.report.html.markup import Content, Markup, element
from pytest_multihost.report.html.story import Story
from pytest_multihost.report.html.timeline import role
from pytest_multihost.report.stack_tree import Node, merge_stacks

_MAX_CLASSES = 16
_MAX_THREADS = 24


def stacks(story: Story) -> Markup | None:
    """Return where the ranks were when the world was judged."""
    dumps = [each for each in story.result.dumps if each.rank not in story.parked]
    if not dumps:
        return None
    return element(
        "section",
        element("h2", "Stacks", id="stacks"),
        element(
            "p",
            "Main threads, merged: what ranks share stands once, the odd one out first.",
            class_="lead",
        ),
        element("ul", [_node(node, story) for node in merge_stacks(dumps)], class_="tree"),
        _remarks(dumps, story),
        element("h3", "In full"),
        _classes(dumps, story),
    )


def _node(node: Node, story: Story) -> Markup:
    size = story.result.spec.size
    name = f"all {size}" if len(node.ranks) == size > 1 else rank_set(node.ranks)
    roles = {role(rank, story.diagnosis) for rank in node.ranks}
    return element(
        "li",
        element(
            "div",
            element("span", name, class_="ranks"),
            element("ol", [_frame(frame, story) for frame in node.frames], class_="frames"),
            class_=f"node {roles.pop()}" if len(roles) == 1 else "node",
        ),
        element("ul", [_node(child, story) for child in node.children]) if node.children else None,
    )


def _frame(frame: Frame, story: Story) -> Markup:
    at = story.place(frame)
    return element(
        "li",
        element("span", at.function, class_="function"),
        " ",
        element("code", f"{at.file}:{at.line}", class_="at"),
        [" ", element("code", at.source, class_="source")] if at.source else None,
    )


def _remarks(dumps: Sequence[Dump], story: Story) -> Markup | None:
    lines: list[Content] = [
        [element("b", f"rank {dump.rank}"), " task ", element("code", task)]
        for dump in dumps
        for task in dump.tasks
    ]
    if moving := [dump.rank for dump in dumps if dump.has_moved]:
        lines.append(f"{rank_set(moving)} moved between two dumps")
    if silent := [dump.rank for dump in dumps if not dump.threads]:
        lines.append(
            f"{rank_set(silent)} gave no stack: it ignores the signal, or waits in the kernel"
        )
    if story.parked:
        lines.append(f"{rank_set(story.parked)} had left the test")
    return element("ul", [element("li", line) for line in lines], class_="notes") if lines else None


# Each class of ranks in full: every thread of one of them


def _classes(dumps: Sequence[Dump], story: Story) -> Iterator[Content]:
    by_rank = {dump.rank: dump for dump in dumps}
    groups = [group for group in group_by_main_stack(dumps) if group.frames]
    yield from (_class(group, by_rank[group.ranks[0]], story) for group in groups[:_MAX_CLASSES])
    if len(groups) > _MAX_CLASSES:
        yield element("p", f"and {len(groups) - _MAX_CLASSES} more in facts.json", class_="lead")


def _class(group: StackGroup, dump: Dump, story: Story) -> Markup:
    others = [thread for thread in dump.threads if thread is not dump.main]
    return element(
        "details",
        element(
            "summary",
            element("span", rank_set(group.ranks), class_="ranks"),
            f" main thread, {len(group.frames)} frames",
            f" and {_other_threads(len(others))} of rank {dump.rank}" if others else None,
        ),
        _thread(group.frames, story),
        _native(dump.rank, story),
        _others(others, story),
        class_="class",
    )


def _other_threads(count: int) -> str:
    return "another thread" if count == 1 else f"{count} other threads"


def _others(threads: Sequence[ThreadStack], story: Story) -> Iterator[Content]:
    """Yield the other threads, those with equal stacks once: a pool has many."""
    groups: dict[tuple[Frame, ...], list[ThreadStack]] = {}
    for each in threads:
        groups.setdefault(each.frames, []).append(each)
    for frames, alike in list(groups.items())[:_MAX_THREADS]:
        names = ", ".join(
            f"{each.name}{' (held the interpreter)' * each.current}" for each in alike
        )
        yield element("h4", f"thread{'s' if len(alike) > 1 else ''} {names}")
        yield _thread(frames, story)
    if len(groups) > _MAX_THREADS:
        yield element(
            "p", f"and {len(groups) - _MAX_THREADS} more stacks in facts.json", class_="lead"
        )


def _thread(frames: Sequence[Frame], story: Story) -> Markup:
    """Return a stack outermost first; what is further out than the test is folded."""
    inside = {id(frame) for frame in inside_the_test(frames)}
    outside = [frame for frame in reversed(frames) if id(frame) not in inside]
    shown = [frame for frame in reversed(frames) if id(frame) in inside]
    runs = groupby(shown, key=lambda frame: is_library(frame.file))
    return element(
        "div",
        _folded(outside, story, "what runs the test") if outside else None,
        [
            element(
                "ol",
                [_frame(frame, story) for frame in run],
                class_="frames library" if is_lib else "frames",
            )
            for is_lib, run in runs
        ],
        class_="thread",
    )


def _folded(frames: Sequence[Frame], story: Story, what: str) -> Markup:
    lines = [f"{short_path(story.context.root, f.file)}:{f.line}  {f.function}" for f in frames]
    count = f"{len(frames)} frame{'s' if len(frames) > 1 else ''} of {what}"
    return element(
        "details", element("summary", count), _listing("\n".join(lines), count), class_="fold"
    )


def _native(rank: int, story: Story) -> Iterator[Content]:
    seen = story.seen.get(rank)
    for thread in seen.native if seen is not None else ():
        name = f"native frames of thread {thread.thread} of rank {rank}, innermost first"
        yield element("h4", name)
        yield _listing("\n".join(thread.symbols), name)


def _listing(text: str, name: str) -> Markup:
    """Return lines that can be scrolled, also by keyboard."""
    return element("pre", text, class_="listing", tabindex=0, role="region", aria_label=name)
