"""Runs the programs of `shapes`, and reads what their verdicts say of lines and ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import shapes

Verdict = Mapping[str, Any]

SOURCE = Path(shapes.__file__)

_PROGRAM = """
import pytest
import torch.distributed as dist
import shapes

@pytest.mark.multihost(ranks={size}, backend="simulated", startup_timeout=600, timeout={timeout_s})
@pytest.mark.parametrize("is_mended", [
    pytest.param(False, id="guilty", marks={marks}), pytest.param(True, id="mended")])
@pytest.mark.parametrize("name", {names!r})
def test_shape(world, shared_tmp_path, name, is_mended):
    if {is_nccl}:
        dist.init_process_group("nccl")
    shapes.PROGRAMS[name](world, shared_tmp_path, is_mended)
"""


def run_shapes(
    folder: Path,
    size: int,
    names: Sequence[str],
    semantics: str = "gloo",
    marks: str = "()",
    plugins: Sequence[str] = (),
) -> Mapping[str, Verdict]:
    """Run programs at a size, each guilty and mended; return their verdicts by test.

    Args:
        folder: An empty directory for the run.
        semantics: Whose rules the default group follows; it is one of NCCL except with "gloo".
        marks: Marks of the guilty ones.
        plugins: Further plugins of pytest.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(SOURCE, folder)
    is_nccl, timeout_s = semantics != "gloo", max(60, size)
    program = _PROGRAM.format(
        size=size, names=list(names), is_nccl=is_nccl, timeout_s=timeout_s, marks=marks
    )
    (folder / "test_worlds.py").write_text(program)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs"]
    command += ["--multihost-semantics", semantics, *(f"-p{each}" for each in plugins)]
    subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True)
    lines = (folder / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    found = map(json.loads, lines)
    return {each["nodeid"].partition("[")[2].rstrip("]"): each for each in found}


def marked(name: str, word: str) -> set[int]:
    """Return the numbers of the lines of a function that have a word in their last comment."""
    lines = SOURCE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"def {name}("))
    code = shapes.PROGRAMS[name].__code__
    last = max((line for *_, line in code.co_lines() if line), default=start)
    inside = range(start, last)
    called = [i for i, line in enumerate(lines) if line.startswith("def _reduce_losses")]
    if name == "stages_without_such_layers":
        inside = range(start, called[0] + 4)
    return {i + 1 for i in inside if word in re.findall(r"\w+", lines[i].rpartition("#")[2])}


def told(verdict: Verdict) -> set[int]:
    """Return the lines of `shapes` that a verdict names."""
    text = json.dumps(verdict["diagnosis"])
    pairs = re.findall(r'"file": "([^"]*)", "line": (\d+)', text)
    found = {int(line) for file, line in pairs if file.endswith("shapes.py")}
    return found | {int(line) for line in re.findall(r"shapes\.py:(\d+)", text)}


def sides(verdict: Verdict) -> Mapping[int, frozenset[int]]:
    """Return the ranks of each side at which a verdict says that ranks part, by line."""
    divergence = (verdict["diagnosis"] or {}).get("divergence") or {}
    found: dict[int, frozenset[int]] = {}
    for each in divergence.get("sides", ()):
        if (line := _line(each)) is not None:
            found[line] = found.get(line, frozenset()) | frozenset(each["ranks"])
    return found


def _line(side: Mapping[str, Any]) -> int | None:
    numbers = re.findall(r'"file": "[^"]*shapes\.py", "line": (\d+)', json.dumps(side))
    return int(numbers[0]) if numbers else None
