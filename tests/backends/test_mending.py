"""What docs/patterns.md shows: before, a rank is left waiting; after, none is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "patterns.md"
PROGRAM = """
import os, time
from contextlib import contextmanager

import torch
import torch.distributed as dist

def should_stop():
    return False

def loader():
    for _ in range(4):
        yield torch.ones(1)
"""
TEST = """
import pytest
import torch.distributed as dist
from pytest_multihost import at, faults
import {module}

@pytest.mark.multihost(ranks=3, backend="gloo", timeout=8, faults=[faults.{fault}])
def test_{module}(world, shared_tmp_path):
    root = shared_tmp_path / "steps"
    if world.is_primary:
        for step in (3, 5):
            (root / str(step)).mkdir(parents=True)
    world.barrier("prepared")
    {call}
"""
# How each function is called, and what its disturbed ranks may raise afterwards.
CALLS = {
    "agree-on-errors": 'program.save(torch.ones(1), shared_tmp_path / "weights.pt")',
    "broadcast-decisions": "program.train(4)",
    "sort-listings": "program.resume(root, 8)",
    "join-uneven-inputs": "program.train()",
    "wait-by-an-operation": 'program.publish(shared_tmp_path / "answer")',
    "launch-in-one-order": "program.reduce_gradients({n: dist.new_group() for n in ('a', 'b')})",
}
RAISE = {"agree-on-errors", "wait-by-an-operation"}
"""Patterns after which every rank raises."""


def sections() -> dict[str, tuple[str, str, str]]:
    """Return the code before, the code after, and the fault of each section."""
    found = {}
    parts = re.split(
        r'^## .*<a id="([\w-]+)"></a>$', PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    for anchor, text in zip(parts[1::2], parts[2::2], strict=True):
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if blocks:
            [fault] = re.findall(r"^Fault: `(.*)`$", text, re.MULTILINE)
            found[anchor] = (*blocks, fault)
    return found


SECTIONS = sections()
AGREED = SECTIONS["agree-on-errors"][1].partition("def save")[0]


def test_every_section_with_code_is_tried() -> None:
    """A pattern that nobody has run is a guess."""
    assert SECTIONS.keys() == CALLS.keys()


@pytest.mark.parametrize("anchor", CALLS)
def test_before_ranks_are_left_behind_and_after_none_is(
    anchor: str, run_worlds, pytester: pytest.Pytester
) -> None:
    """With the fault that the page names."""
    *blocks, fault = SECTIONS[anchor]
    source = ""
    for module, block in zip(("before", "after"), blocks, strict=True):
        pytester.makepyfile(
            **{module: PROGRAM + AGREED * (anchor == "wait-by-an-operation") + block}
        )
        call = CALLS[anchor].replace("torch.ones", "program.torch.ones")
        call = call.replace("program.", f"{module}.")
        if module == "after" and anchor in RAISE:
            call = f"with pytest.raises((OSError, RuntimeError)): {call}"
        source += TEST.format(
            module=module, fault=fault.replace("program:", f"{module}:"), call=call
        )
    worlds = run_worlds(source)
    before, after = worlds.verdicts["test_before"], worlds.verdicts["test_after"]
    assert after["status"] == "passed", worlds.stdout
    assert before["status"] == "failed"
    assert before["ended_by"] == "harness"
