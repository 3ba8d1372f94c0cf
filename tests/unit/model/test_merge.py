"""Dumps as faulthandler writes them, and ranks with equal stacks put together."""

from __future__ import annotations

import pytest

from pytest_multihost.core.cpython_private import parse_faulthandler
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    StackGroup,
    ThreadStack,
    group_by_main_stack,
)
from pytest_multihost.testing import make_dump

PY311 = """\
Thread 0x00007f4c6ffff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/u/loader.py", line 8 in <lambda>

Current thread 0x00007f4c757c2b80 (most recent call first):
  File "/home/u/storage.py", line 17 in read_shard
  File "/home/u/test it.py", line 31 in test_restore
"""
PY314 = """\
Thread 0x00007f4c6ffff6c0 [loader [1]] (most recent call first):
  File "/usr/lib/python3.14/threading.py", line 324 in wait
  File "/home/u/loader.py", line 8 in make.<locals>.<lambda>

Current thread 0x00007f4c757c2b80 [python] (most recent call first):
  Garbage-collecting
  File "/home/u/storage.py", line 17 in Store.read_shard
  File "/home/u/test it.py", line 31 in test_restore
"""


def test_the_text_of_python_3_11_to_3_13_is_read() -> None:
    """Threads in the order they were printed, frames innermost first, names where there are any."""
    assert parse_faulthandler(PY311, rank=2) == Dump(
        rank=2,
        source="faulthandler",
        threads=(
            ThreadStack(
                name="0x00007f4c6ffff6c0",
                frames=(
                    Frame("/usr/lib/python3.11/threading.py", 324, "wait"),
                    Frame("/home/u/loader.py", 8, "<lambda>"),
                ),
            ),
            ThreadStack(
                name="0x00007f4c757c2b80",
                frames=(
                    Frame("/home/u/storage.py", 17, "read_shard"),
                    Frame("/home/u/test it.py", 31, "test_restore"),
                ),
                current=True,
            ),
        ),
    )


def test_the_text_of_python_3_14_is_read() -> None:
    """It has names, qualified functions, and says when garbage is collected."""
    loader, main = parse_faulthandler(PY314, rank=0).threads
    assert (loader.name, main.name) == ("loader [1]", "python")
    assert loader.frames[1] == Frame("/home/u/loader.py", 8, "make.<locals>.<lambda>")
    assert main.frames[0] == Frame("/home/u/storage.py", 17, "Store.read_shard")
    assert [thread.current for thread in (loader, main)] == [False, True]


def test_the_main_thread_need_not_be_the_current_one() -> None:
    """A signal may be taken by any thread; the main thread is printed last all the same."""
    text = PY311.replace("Thread", "Current thread", 1).replace("\nCurrent thread", "\nThread")
    dump = parse_faulthandler(text, rank=0)
    assert dump.main is not None
    assert dump.main.frames[0].function == "read_shard"


def test_a_thread_without_frames_is_a_thread() -> None:
    """It has just started, or runs no Python."""
    text = "Current thread 0x1 (most recent call first):\n  <no Python frame>\n"
    [thread] = parse_faulthandler(text, rank=0).threads
    assert thread.frames == ()


def test_frames_that_were_left_out_are_noted() -> None:
    """After a hundred frames come dots."""
    [thread] = parse_faulthandler(
        "Thread 0x1 (most recent call first):\n"
        + '  File "a.py", line 3 in deep\n' * 100
        + "  ...\n",
        rank=0,
    ).threads
    assert len(thread.frames) == 100


def test_a_line_that_faulthandler_could_not_tell_is_zero() -> None:
    """The frame still says which function it is."""
    text = 'Thread 0x1 (most recent call first):\n  File "a.py", line ??? in f\n'
    frames = parse_faulthandler(text + '  File "b.py", line 7 in g\n', rank=0).threads[0].frames
    assert frames == (Frame("a.py", 0, "f"), Frame("b.py", 7, "g"))


def test_text_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    """A rank may be killed while it writes: what is whole counts, and nothing is made up."""
    whole = parse_faulthandler(PY311, rank=0)
    for size in range(len(PY311)):
        found = parse_faulthandler(PY311[:size], rank=0)
        for thread, expected in zip(found.threads, whole.threads, strict=False):
            assert thread.name == expected.name
            # Only of the last frame anything may be missing, and only of its function's name.
            assert thread.frames[:-1] == expected.frames[: len(thread.frames)][:-1]
            for frame, other in zip(thread.frames, expected.frames, strict=False):
                assert (frame.file, frame.line) == (other.file, other.line)
                assert other.function.startswith(frame.function)
    # The loop proves nothing if what is whole is not found.
    assert len(parse_faulthandler(PY311[:-1], rank=0).threads) == 2


@pytest.mark.parametrize("text", ["", "\n\n", "no dump at all\n", "Thread 0x"])
def test_a_file_without_a_dump_has_no_threads(text: str) -> None:
    """A rank that gave no answer is no error."""
    assert parse_faulthandler(text, rank=1) == Dump(1, "faulthandler", ())


def test_of_two_dumps_the_last_counts_where_the_main_thread_answered() -> None:
    """The rank was asked twice: its main thread has moved in between."""
    text = PY311 + PY311.replace("line 17", "line 18")
    dump = parse_faulthandler(text, rank=0)
    assert dump.main is not None
    assert dump.main.frames[0].line == 18
    assert sum(thread.current for thread in dump.threads) == 1


def test_of_two_dumps_the_last_counts_with_all_its_threads() -> None:
    """Within one dump threads are parted by an empty line, and between two dumps there is none."""
    second = PY311.replace("line 17", "line 18")
    assert parse_faulthandler(PY311 + second, rank=0) == parse_faulthandler(second, rank=0)


def test_beyond_a_hundred_threads_no_other_is_taken_for_the_main_thread() -> None:
    """The oldest threads are left out, and the main thread is the oldest."""
    thread = 'Thread 0x{:x} (most recent call first):\n  File "pool.py", line 3 in work\n'
    text = "\n".join(thread.format(number) for number in range(100)) + "\n...\n"
    assert parse_faulthandler(text, rank=0).main is None


def test_a_thread_that_is_new_in_the_second_dump_belongs_to_it() -> None:
    """The newest thread is printed first, where the second dump begins without an empty line."""
    new = 'Thread 0xff (most recent call first):\n  File "new.py", line 3 in work\n\n'
    assert parse_faulthandler(PY311 + new + PY311, rank=0) == parse_faulthandler(
        new + PY311, rank=0
    )


def test_names_beyond_ascii_are_what_they_are() -> None:
    """Else a project in a directory like this is not recognised as the user's own code."""
    text = r"""Thread 0x1 (most recent call first):
  File "/home/j\xfcrgen/\u2603/test_it.py", line 3 in test_\xfc
"""
    [frame] = parse_faulthandler(text, rank=0).threads[0].frames
    assert frame == Frame("/home/jürgen/☃/test_it.py", 3, "test_ü")


def test_ranks_with_equal_stacks_are_one_group() -> None:
    """The smallest group first: the odd one out is what the reader looks for."""
    late = make_dump(2, "storage.py:17 read", "test_it.py:3 test_it")
    waiting = [make_dump(rank, "sync.py:8 wait", "test_it.py:3 test_it") for rank in (3, 0, 1)]
    groups = group_by_main_stack([*waiting, late])
    assert [group.ranks for group in groups] == [(2,), (0, 1, 3)]
    assert groups[0].frames[0] == Frame("storage.py", 17, "read")


def test_groups_of_one_size_come_in_order_of_rank() -> None:
    """So that the same world is always told in the same way."""
    dumps = [make_dump(rank, f"a.py:{rank + 1} f") for rank in (2, 0, 1)]
    assert [group.ranks for group in group_by_main_stack(dumps)] == [(0,), (1,), (2,)]


def test_another_line_is_another_stack() -> None:
    """Ranks in one function are not yet in one place."""
    assert len(group_by_main_stack([make_dump(0, "a.py:3 f"), make_dump(1, "a.py:4 f")])) == 2


def test_only_main_threads_are_compared() -> None:
    """Other threads, and the names of main threads, differ where the test does not."""
    one, other = (parse_faulthandler(text, rank=rank) for rank, text in enumerate((PY311, PY311)))
    differs = Dump(1, "faulthandler", (ThreadStack("x", ()), *other.threads[1:]))
    assert [group.ranks for group in group_by_main_stack([one, differs])] == [(0, 1)]


def test_ranks_without_an_answer_are_a_group() -> None:
    """With no frames, which the report says."""
    silent = [Dump(rank, "faulthandler", ()) for rank in (0, 2)]
    assert group_by_main_stack(silent) == (StackGroup((0, 2), ()),)
