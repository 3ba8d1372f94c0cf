"""What the tasks of an event loop await, read from the memory of a process that does not help."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.core.watch.probes import spied_threads
from pytest_multihost.extensions.live.coroutines import awaited_by, line_at

pytestmark = pytest.mark.unit

JOB = """
import asyncio, functools, gc

async def numbers(reply):
    yield 1
    await reply

async def read(reply):
    async for _ in numbers(reply):
        pass

async def late():
    await asyncio.sleep(600)

async def done():
    return 1

async def main():
    loop = asyncio.get_running_loop()
    early = asyncio.create_task(late())
    await asyncio.create_task(done())
    gc.collect()
    loop.call_soon(functools.partial(print, "up", flush=True))
    loop.call_soon(gc.collect, 0)
    await asyncio.gather(read(loop.create_future()))

asyncio.run(main())
"""


def test_each_task_that_has_not_ended_shows_its_innermost_line(tmp_path: Path) -> None:
    """Also one in another generation of the garbage collector, and not one that has ended."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        try:
            assert job.stdout.readline() == b"up\n"
            threads, unread = spied_threads({0: job.pid})
            assert not unread
            found = awaited_by(job.pid, threads[0][0], str(tmp_path))
        finally:
            job.kill()
    texts = {each.text.partition(": ")[2] for each in found}
    assert {each.split(" → ")[-1] for each in texts} >= {"numbers job.py:6"}
    assert any(each.startswith("late job.py:13") for each in texts)
    assert any(each.startswith("main job.py:") for each in texts)
    assert not any("done" in each for each in texts)
    assert [each.frame.line for each in found if each.frame and "numbers" in each.text] == [6]


def test_a_process_whose_python_is_not_known_shows_nothing(tmp_path: Path) -> None:
    """Its objects may have another layout: a wrong line would be worse than none."""
    file = tmp_path / "job.py"
    file.write_text(JOB)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        try:
            assert job.stdout.readline() == b"up\n"
            [main, *_] = spied_threads({0: job.pid})[0][0]
            for version in ("python3.14", "python3.99"):
                own = f"python3.{sys.version_info[1]}"
                frames = (replace(e, file=e.file.replace(own, version)) for e in main.frames)
                assert awaited_by(job.pid, replace(main, frames=tuple(frames)), "") == ()
        finally:
            job.kill()
    assert awaited_by(job.pid, main, "") == ()  # it has ended


@pytest.mark.parametrize("function", [spied_threads, awaited_by, Path.read_text, subprocess.run])
def test_a_table_of_lines_is_read_as_the_interpreter_reads_it(function: object) -> None:
    """For each instruction of functions with loops, handlers and long lines."""
    code = function.__code__  # type: ignore[attr-defined]
    lines = [at[0] or 0 for at in code.co_positions()]
    found = [
        line_at(code.co_linetable, code.co_firstlineno, 2 * index) for index in range(len(lines))
    ]
    assert found == lines
    assert line_at(code.co_linetable, code.co_firstlineno, 2 * len(lines)) == 0
