"""Scripts that show a weakness without the plugin: their lines, and what their output proves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sweeps
from runs import await_that

from pytest_multihost import at, faults
from pytest_multihost.extensions.sweep.record import write_sweep
from pytest_multihost.extensions.sweep.references import FAILING_CALLS, report_of
from pytest_multihost.extensions.sweep.reproduce.evidence import (
    first_traceback,
    stack_at,
    stated_differently,
    why_not_shown,
)
from pytest_multihost.extensions.sweep.reproduce.find import FoundWeakness, find_weakness
from pytest_multihost.extensions.sweep.reproduce.issue import issue_text
from pytest_multihost.extensions.sweep.reproduce.permalinks import permalink
from pytest_multihost.extensions.sweep.reproduce.script import (
    MAX_LINES,
    TestFunction,
    make_script,
    read_test,
    script_name,
)
from pytest_multihost.extensions.sweep.reproduce.shims import shim_of
from pytest_multihost.extensions.sweep.reproduce.trial import Trial, try_script
from pytest_multihost.extensions.sweep.result import DisturbedRun
from pytest_multihost.testing import IO_CALLS, Fault, MultihostError, Place, Point, make_spec, token

pytestmark = pytest.mark.unit

TEST = TestFunction(
    "tests", "test_ckpt", "test_ckpt.test_save", ("world", "shared_tmp_path"), ("rank",)
)
SAVES = Point("io", "*/weights.part", call="open")
LOSS = Point("call", "train:loss", when="after")
EXPRESSIBLE = [
    faults.fails(rank=0, at=at.io("*/a", call="open")),
    faults.fails(rank=0, at=at.io("*/a", call="write", nth=2)),
    faults.fails(rank=0, at=at.io("*/a", call="read")),
    faults.fails(rank=0, at=at.io("*/a", call="rename", onwards=True)),
    faults.hold(rank=1, at=at.collective("all_reduce", nth=2)),
    faults.hold(rank=1),
    faults.clock_skew(rank=1, seconds=7200),
    faults.hash_seed(rank=1, seed=1),
    faults.elapsed_time(rank=1, seconds=86400, read=3),
    faults.returns(rank=1, value=True, at=at.call("math:isnan", when="after")),
    faults.returns(rank=0, value=float("nan"), at=LOSS),
    faults.short_data(rank=0, at=at.batch("torch.utils.data:DataLoader", nth=3)),
    faults.empty_data(rank=0, at=at.batch("train:rows")),
    faults.shuffled_listing(rank=1, path="*/ckpt"),
    faults.stale_files(rank=1, seconds=2.0, path="*/marker"),
    faults.kill(rank=1, at=at.io("*/a", call="open")),
]


def numbered(fault: Fault) -> Fault:
    """Return a fault whose rank is a number, as that of a plan is."""
    ranks = fault.ranks if isinstance(fault.ranks, tuple) else (0,)
    return replace(fault, ranks=ranks)


def found(fault: Fault, backend: str = "gloo", run: DisturbedRun = sweeps.FAILS) -> FoundWeakness:
    """Return a weakness that a fault has shown."""
    witness = replace(run, disturbance=replace(run.disturbance, fault=numbered(fault)))
    weakness = replace(sweeps.SWEEP.weaknesses[0], witness=witness)
    sweep = replace(sweeps.SWEEP, backend=backend, weaknesses=(weakness,))
    return FoundWeakness(sweep, weakness, Path("sweep.json"))


@pytest.mark.parametrize("fault", EXPRESSIBLE, ids=repr)
def test_a_script_is_short_and_knows_nothing_of_the_plugin(fault: Fault) -> None:
    """It compiles, and a line fits into an issue."""
    script = make_script(found(fault), TEST, "reproduce_test_save.py")
    compile(script, "script", "exec")
    lines = script.splitlines()
    assert len(lines) <= MAX_LINES
    assert "multihost" not in script
    assert "torchrun --nproc-per-node 4 reproduce_test_save.py" in script.replace("\n", " ")


def test_a_script_of_jax_starts_its_processes_itself() -> None:
    """There is no torchrun for them."""
    script = make_script(found(EXPRESSIBLE[0], "jax"), TEST, "reproduce_test_save.py")
    compile(script, "script", "exec")
    assert len(script.splitlines()) <= MAX_LINES
    assert "jax.distributed.initialize" in script
    assert "torch" not in script


@pytest.mark.parametrize(
    "fault",
    [
        faults.fails(rank="first", at=SAVES),
        faults.fails(rank=0, error="EROFS", at=at.io("*/a", call="write")),
        faults.hold(rank=0, at=at.sync_point("step")),
        Fault("cut", (0,)),
    ],
    ids=repr,
)
def test_a_fault_that_few_lines_cannot_imitate_is_refused(fault: Fault) -> None:
    """The error names the fault, and the replay that still works."""
    is_first = fault.ranks == "first"
    ready = replace(numbered(fault), is_first=is_first)
    with pytest.raises(MultihostError, match="cannot be shown by a script") as caught:
        shim_of(ready, "gloo")
    assert "'replay'" in caught.value.remedy


# What a shim does is shown by running its lines on a function of Python.
SHIMS = {
    "open": (faults.fails(rank=0, at=SAVES), "open(folder / 'weights.part', 'w')", "OSError"),
    "write": (
        faults.fails(rank=0, at=at.io("*/a", call="write")),
        "(folder / 'a').write_text('x')",
        "OSError",
    ),
    "second": (
        faults.fails(rank=0, at=at.io("*/a", call="open", nth=2)),
        "open(folder / 'a', 'w').close(); open(folder / 'b', 'w').close()",
        "",
    ),
    "onwards": (
        faults.fails(rank=0, at=at.io("*/a", call="rename", onwards=True)),
        "open(folder / 'b', 'w').close(); os.rename(folder / 'b', folder / 'a')",
        "OSError",
    ),
    "listing": (
        faults.shuffled_listing(rank=0, path="*"),
        (
            "[(folder / each).touch() for each in 'ab']\n"
            "assert os.listdir(folder) == [each.name for each in os.scandir(folder)]"
        ),
        "",
    ),
    "stale": (
        faults.stale_files(rank=0, seconds=60.0, path="*/m"),
        (
            "open(folder / 'm', 'w').close(); open(folder / 'n', 'w').close()\n"
            "assert os.listdir(folder) == ['n'] and not os.path.exists(folder / 'm')\n"
            "open(folder / 'm')"
        ),
        "FileNotFoundError",
    ),
    "clock": (
        faults.clock_skew(rank=0, seconds=7200),
        (
            "import datetime\n"
            "ahead_s = time.time() - real_time()\n"
            "assert 7199 < ahead_s < 7201\n"
            "assert 7199 < datetime.datetime.now().timestamp() - real_time() < 7201"
        ),
        "",
    ),
}


# Functions of the user's, in a module that the shim finds.
USER = """
import numpy as np
loss = lambda: np.ones(2, np.float32)
is_over = lambda: np.zeros(2, bool)
rows = lambda: [1, 2, 3]
def stream():
    yield from rows()
"""
SHIMS |= {
    "elapsed": (
        faults.elapsed_time(rank=0, seconds=86400, read=2),
        (
            "def deadline():\n"
            "    return [time.monotonic(), time.monotonic(), time.monotonic_ns(), time.time()]\n"
            "before = time.monotonic()\n"
            "first, second, third, fourth = deadline()\n"
            "assert 0 <= first - before < 100 and 86400 <= second - before < 86500\n"
            "assert 86400 <= third / 1e9 - before < 86500 and isinstance(third, int)"
        ),
        "",
    ),
    "number": (
        faults.returns(rank=0, value=float("nan"), at=Point("call", "user:loss", nth=2)),
        (
            "user.loss(); passed = 0\n"
            "assert [bool((user.loss() > 0).all()) for _ in 'abc'] == [True, False, True]"
        ),
        "",
    ),
    "infinity": (
        faults.returns(rank=0, value=float("inf"), at=Point("call", "math:sqrt")),
        "assert [math.sqrt(4), math.sqrt(4)] == [float('inf'), 2]",
        "",
    ),
    "truth": (
        faults.returns(rank=0, value=True, at=Point("call", "user:is_over")),
        "assert user.is_over().tolist() == [True, True]",
        "",
    ),
    "list": (
        faults.short_data(rank=0, at=at.batch("user:rows", nth=7)),
        "assert [user.rows() for _ in 'abc'] == [[1, 2, 3], [1, 2], [1, 2, 3]]",
        "",
    ),
    "no list": (
        faults.empty_data(rank=0, at=at.batch("user:rows", nth=5)),
        "assert [user.rows() for _ in 'abc'] == [[1, 2, 3], [], [1, 2, 3]]",
        "",
    ),
    "generator": (
        faults.short_data(rank=0, at=at.batch("user:stream", nth=3)),
        "assert list(user.stream()) == [1, 2]",
        "",
    ),
}


@pytest.mark.parametrize("name", SHIMS)
def test_a_shim_does_what_the_fault_does(name: str, tmp_path: Path) -> None:
    """Only at the point that the fault names."""
    fault, program, error = SHIMS[name]
    shim = shim_of(numbered(fault), "none")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "files").mkdir()
    imports = ", ".join({*shim.imports, "os", "pathlib", *filter(None, [shim.own])})
    lines = [f"import {imports}", f"folder = pathlib.Path({str(tmp_path / 'files')!r})"]
    text = "\n".join([*lines, *shim.lines, program]) + "\n"
    run = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    last = run.stderr.strip().splitlines()[-1:] or [""]
    assert last[0].partition(":")[0] == error, run.stderr


def test_a_test_is_read_from_its_file(tmp_path: Path) -> None:
    """Functions and methods, with the fixtures that they take and what they use of `world`."""
    path = tmp_path / "test_a.py"
    path.write_text(
        "def test_f(world, tmp_path): world.barrier()\nclass TestC:\n    def test_m(self): pass\n"
    )
    test = read_test("test_a.py::test_f[2-gloo]", path)
    assert (test.module, test.call) == ("test_a", "test_a.test_f")
    assert (test.fixtures, test.of_world) == (("world", "tmp_path"), ("barrier",))
    assert read_test("test_a.py::TestC::test_m", path).call == "test_a.TestC().test_m"
    assert script_name("test_a.py::test_f[2-gloo]") == "reproduce_test_f.py"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def test_f(model): pass", "fixture 'model'"),
        ("def test_f(world): world.gather(1)", "world.gather"),
        ("test_f = print", "no function test_f"),
    ],
)
def test_a_test_that_needs_pytest_is_refused(source: str, why: str, tmp_path: Path) -> None:
    """The error says what it needs."""
    (tmp_path / "test_a.py").write_text(source)
    with pytest.raises(MultihostError, match="cannot call this test") as caught:
        read_test("test_a.py::test_f", tmp_path / "test_a.py")
    assert why in caught.value.seen


WAITS = '  File "/x/ckpt.py", line 36 in save\n  File "/x/train.py", line 5 in <module>\n'
STACK = f"Current thread 0x00007f6c (most recent call first):\n{WAITS}"
TRACE = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/x/ckpt.py", line 31, in commit\n'
    "[rank0]:     os.rename(tmp, final)\n"
    "[rank0]: OSError: [Errno 116] Stale file handle\n"
)


def test_an_output_shows_a_weakness_if_a_rank_waits_and_another_has_failed() -> None:
    """Both lines have to be there, and the exception."""
    assert why_not_shown(Trial(TRACE + STACK, 1, 3.0), sweeps.FAILS) == ""
    assert "OSError" in why_not_shown(Trial(STACK, 1, 3.0), sweeps.FAILS)
    assert "ckpt.py:36" in why_not_shown(Trial(TRACE, 1, 3.0), sweeps.FAILS)
    assert "ended well" in why_not_shown(Trial(TRACE + STACK, 0, 3.0), sweeps.FAILS)


def test_an_output_shows_no_hang_if_the_script_ended_by_itself() -> None:
    """It has to run until it is ended."""
    stack = STACK.replace("line 36", "line 55")
    assert why_not_shown(Trial(stack, None, 30.0), sweeps.DIFFERS) == ""
    assert "ended by itself" in why_not_shown(Trial(stack, 1, 2.0), sweeps.DIFFERS)


def test_an_output_shows_values_that_differ() -> None:
    """Elapsed times and other output do not count."""
    wrong = replace(sweeps.FAILS, outcome="wrong")
    same, other = "rank 0: step = 7\nrank 1: step = 7\n", "rank 0: step = 7\nrank 1: step = 0\n"
    assert why_not_shown(Trial(other, 0, 2.0), wrong) == ""
    assert stated_differently(other) == {"step": {"0": "7", "1": "0"}}
    assert "same values" in why_not_shown(Trial(same, 0, 2.0), wrong)


def test_the_traceback_is_that_of_the_exception_that_the_sweep_has_seen() -> None:
    """Another one may have been handled before, and a launcher that is ended raises one, too."""
    other = TRACE.replace("OSError: [Errno 116] Stale file handle", "RuntimeError: no loop")
    assert first_traceback(other + TRACE, "OSError: x") == TRACE.strip()
    assert first_traceback(other + TRACE, None) == other.strip()
    launcher = TRACE.replace("/x/ckpt.py", "/x/torch/distributed/run.py")
    assert first_traceback(launcher, "OSError: x") == ""


def test_an_issue_has_what_a_maintainer_asks_for() -> None:
    """Versions, the script, the exception, the place of the others, lines, and the report."""
    trial = Trial(TRACE + STACK, 1, 3.04)
    fault = sweeps.FAILS.disturbance.fault
    text = issue_text(found(fault), {"a.py": "x = 1\n"}, trial, lambda each: f"link:{each.line}")
    assert text.startswith("# Ranks 1-3 wait in barrier #4 for rank 0, which has failed\n")
    for part in ("torch 2.13.0", "x = 1", "OSError: [Errno 116]", "ckpt.py", "exit code 1"):
        assert part in text
    assert first_traceback(trial.output, sweeps.FAILS.error) in text
    assert "* waiting: link:36 " in text
    assert "* waiting, in the library: link:36\n" in text
    assert stack_at(trial.output, sweeps.WAITS) in text
    assert report_of(sweeps.FAILS.disturbance.fault) in text


def test_a_line_of_a_package_has_a_permalink_and_one_of_the_user_has_none() -> None:
    """By the repository that the package's metadata name, and its version."""
    link = permalink(Place("pluggy/_manager.py", 12, "f", ""))
    assert re.fullmatch(r"https://github\.com/\S+/blob/v[\d.]+/pluggy/_manager\.py#L12", link) or (
        link == ""  # metadata of some versions name no repository
    )
    assert permalink(Place("train.py", 12, "f", "")) == ""


def test_a_weakness_is_found_by_its_token(tmp_path: Path) -> None:
    """Also by that of another run that shows it; another token is an error."""
    spec = replace(make_spec(size=2), faults=(numbered(EXPRESSIBLE[0]),))
    named = token(spec)
    witness = replace(sweeps.FAILS, token=named)
    sweep = replace(
        sweeps.SWEEP, weaknesses=(replace(sweeps.SWEEP.weaknesses[0], witness=witness),)
    )
    folder = tmp_path / "run" / "test"
    folder.mkdir(parents=True)
    write_sweep(folder, sweep)
    assert find_weakness(named, tmp_path).weakness.witness == witness
    with pytest.raises(MultihostError, match="no sweep has found a weakness"):
        find_weakness(token(replace(spec, seed=5)), tmp_path)
    with pytest.raises(MultihostError, match="damaged"):
        find_weakness("abc", tmp_path)


def test_each_failing_call_has_a_report_from_the_field() -> None:
    """So has each kind of fault that a sweep plans by itself."""
    assert FAILING_CALLS.keys() == IO_CALLS
    planned = [
        *(faults.fails(rank=0, at=Point("io", "*/a", call=each)) for each in sorted(IO_CALLS)),
        *(each for each in EXPRESSIBLE if each.kind != "returns"),
    ]
    assert [each for each in planned if not report_of(each).startswith("https://")] == []


def test_a_process_in_a_session_of_its_own_ends_with_the_script() -> None:
    """As the ranks of torchrun, if torchrun is killed or does not end them."""
    program = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
    start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid)
"""
    trial = try_script([sys.executable, "-c", program])
    assert trial.code == 0
    await_that(lambda: has_ended(int(trial.output)))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; its adopter may not have reaped it yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


HOSTILE = [
    "@everyone ![x](http://evil.example/i.png)",
    "``` \n# owned\n```",
    "<img src=x>",
    "a`b``c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_begin_no_element_of_an_issue(text: str) -> None:
    """Neither a mention nor a picture, and none ends a block of code."""
    places = {"culprit": Place("a.py", 1, "f", text), "waiting": Place(text, 2, "g", text)}
    run = replace(sweeps.FAILS, summary=text, error=text, **places)
    weak = found(sweeps.FAILS.disturbance.fault)
    weak = replace(weak, weakness=replace(weak.weakness, witness=run))
    issue = issue_text(weak, {text: f"x = 1\n{text}\n"}, Trial(text, 1, 3.0), lambda _: "")
    plain = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$|(`+)(?!`).+?(?<!`)\2(?!`)", "", issue)
    for sign in ("@everyone", "![x]", "<img", "\n# owned", "://evil"):
        assert sign not in plain, plain
