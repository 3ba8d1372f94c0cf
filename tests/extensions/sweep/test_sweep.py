"""Sweeps of real tests: what they find, what they leave alone, and what they say of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from runtimes import needs

from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import SweepResult

pytestmark = needs("torch")

HEAD = """
import pytest, time
import torch, torch.distributed as dist
"""

# Rank 1 looks for a file that rank 0 has written long before, and nothing says that it has to.
RACE = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_race(world, shared_tmp_path):
    marker = shared_tmp_path / "marker"
    dist.barrier()
    if world.rank == 0:
        marker.write_text("done")
    else:
        time.sleep(0.3)
    if marker.exists():
        dist.all_reduce(torch.ones(1))
    dist.barrier()
"""
)

# Only rank 0 writes, and nobody else learns whether it could.
PRIMARY = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_primary(world, shared_tmp_path):
    if world.rank == 0:
        (shared_tmp_path / "checkpoint").write_text("weights")
    dist.barrier()
"""
)

ROBUST = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_robust(world, shared_tmp_path):
    failed = torch.zeros(1)
    if world.rank == 0:
        try:
            (shared_tmp_path / "checkpoint").write_text("weights")
        except OSError:
            failed += 1
    dist.broadcast(failed, 0)
    if failed:
        raise RuntimeError("the primary could not write")
    dist.barrier()
"""
)


def swept(worlds: Any, test: str) -> SweepResult:  # noqa: ANN401 - of conftest.py
    """Return what the sweep of a test has written."""
    return read_sweep(worlds.directory(test) / "sweep.json")


def line_of(source: str, text: str) -> int:
    """Return the line of a source text, as pytester writes it, that contains a text."""
    lines = source.strip().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.claim("find hangs that my passing tests hide")
@pytest.mark.program(RACE, "--multihost-sweep=late")
def test_a_file_that_is_not_waited_for_is_found(worlds) -> None:
    """The test passes, because rank 1 is slow enough; a sweep shows where it hangs if it is not."""
    worlds.run.assert_outcomes(failed=1)
    assert worlds.verdicts["test_race"]["status"] == "passed"
    result = swept(worlds, "test_race")
    assert result.status == "failed"
    lines = {each.witness.waiting.line for each in result.weaknesses if each.witness.waiting}
    assert lines <= {line_of(RACE, "all_reduce"), len(RACE.strip().splitlines())}
    worlds.run.stdout.fnmatch_lines(["*HANGS*", "*survives * of * injections*"])


# Each rank resumes from the newest checkpoint that it sees itself.
RESUME = """
import pytest

def newest(folder):
    return max((int(each.name) for each in folder.iterdir()), default=0)

@pytest.mark.multihost(ranks=2, timeout=30)
def test_each(world, shared_tmp_path):
    if world.rank == 0:
        (shared_tmp_path / "7").write_text("weights")
    world.barrier("written")
    step = newest(shared_tmp_path)
    world.barrier("read")
    world.same("step", step)

@pytest.mark.multihost(ranks=2, timeout=30)
def test_agreed(world, shared_tmp_path):
    if world.rank == 0:
        (shared_tmp_path / "7").write_text("weights")
    world.barrier("written")
    step = world.gather(newest(shared_tmp_path))[0]
    world.same("step", step)
"""


@pytest.mark.program(RESUME, "--multihost-sweep=differs")
def test_ranks_that_go_on_from_different_steps_are_wrong(worlds) -> None:
    """No rank fails and none waits; a decision of all ranks survives the same faults."""
    worlds.run.assert_outcomes(failed=1, passed=1)
    result = swept(worlds, "test_each")
    (found,) = result.weaknesses
    assert found.witness.outcome == "wrong"
    assert found.witness.summary.startswith("ranks differ in 'step': rank 0 has 7")
    assert found.repeated[0] == found.repeated[1] > 1
    assert found.witness.culprit is not None
    assert found.witness.culprit.line == line_of(RESUME, "folder.iterdir()")
    assert swept(worlds, "test_agreed").weaknesses == ()
    worlds.run.stdout.fnmatch_lines(["WRONG  when rank 1 did not see *"])


# Each rank decides by the loss of its own data, or by its own clock.
ALONE = """
import math, random
import pytest
from time import monotonic

def loss_of(rank, step):
    return random.Random(rank).random() / (step + 1)

def is_finite(loss):
    return math.isfinite(loss)

def is_primary(rank):
    return rank == 0

def with_world(test):
    return pytest.mark.multihost(ranks=2, timeout=30)(test)

@with_world
def test_loss(world):
    steps = 0
    for step in range(3):
        if is_finite(loss_of(world.rank, step)):
            steps += 1
    world.same("steps", steps)

@with_world
def test_time(world):
    begun, steps = monotonic(), 0
    for _ in range(3):
        if monotonic() - begun > 600:
            break
        steps += 1
    world.same("steps", steps)

@with_world
def test_agreed(world):
    begun, late = monotonic(), False
    for step in range(3):
        loss = sum(world.gather(loss_of(world.rank, step)))
        late = any(world.gather(late or monotonic() - begun > 600))
        if is_finite(loss) and not late:
            world.barrier()
        if is_primary(world.rank):
            print(loss)
    assert monotonic() - begun < 600
    world.barrier()
"""


@pytest.mark.program(ALONE, "--multihost-sweep=differs")
def test_decisions_from_what_a_rank_alone_sees_are_found_without_their_names(worlds) -> None:
    """A vote survives the same, and nothing is done to a function of the rank."""
    worlds.run.assert_outcomes(failed=2, passed=1)
    for test, kind, line in (
        ("test_loss", "returns", "if is_finite(loss_of"),
        ("test_time", "elapsed_time", "if monotonic() - begun > 600:"),
    ):
        (found,) = swept(worlds, test).weaknesses
        assert found.witness.disturbance.fault.kind == kind
        assert found.witness.culprit is not None
        assert found.witness.culprit.line == line_of(ALONE, line)
        assert found.repeated[0] == found.repeated[1] > 1
    agreed = swept(worlds, "test_agreed")
    changed = {each.fault.at.name.rpartition(":")[2] for each in agreed.plan.disturbances}
    assert agreed.weaknesses == ()
    assert "loss_of" in changed
    assert changed.isdisjoint({"is_primary", "is_finite"})


# Each rank reads the learning rate itself, and falls back to another one.
RATE = (
    HEAD
    + """
import torch._dynamo  # which DDP would import in each rank of each world
from torch.nn.parallel import DistributedDataParallel

def rate(path):
    try:
        return float(path.read_text())
    except OSError:
        return 0.1

def train(lr, rank):
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model(torch.randn(4, 3) * (rank + 1)).square().sum().backward()
    optimizer.step()

@pytest.fixture
def path(world, shared_tmp_path):
    (shared_tmp_path / f"{world.rank}.txt").write_text("0.01")
    return shared_tmp_path / f"{world.rank}.txt"

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_each(world, path):
    train(rate(path), world.rank)

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_agreed(world, path):
    lr = torch.tensor([rate(path)])
    dist.broadcast(lr, 0)
    train(float(lr), world.rank)
"""
)


@pytest.mark.worlds
@pytest.mark.program(RATE, "--multihost-sweep=fails")
def test_modules_of_ddp_that_part_are_wrong(worlds) -> None:
    """The test states nothing; the buffers of a batch norm, which differ always, are fine."""
    result = swept(worlds, "test_each")
    wrong = [each.witness for each in result.weaknesses if each.witness.outcome == "wrong"]
    assert wrong
    name = "parameters of DistributedDataParallel #1"
    assert all(each.summary.startswith(f"ranks differ in {name!r}") for each in wrong)
    assert {each.culprit.line for each in wrong if each.culprit} == {
        line_of(RATE, "except OSError:")
    }
    agreed = swept(worlds, "test_agreed").weaknesses
    assert [each for each in agreed if each.witness.outcome == "wrong"] == []


# A rank that cannot read the shift has another one, in a module that DDP has wrapped already.
ASSIGNED = (
    HEAD
    + """
import torch._dynamo  # which DDP would import in each rank of each world
from torch.nn.parallel import DistributedDataParallel

class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(1))
        self.head = torch.nn.Linear(1, 1)

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_assigned(world, shared_tmp_path):
    torch.manual_seed(0)
    model = DistributedDataParallel(Shifted(), broadcast_buffers=False)
    path = shared_tmp_path / f"{world.rank}.txt"
    try:
        path.write_text("0.01")
        shift = float(path.read_text())
    except OSError:
        shift = 0.1
    model.module.shift = torch.tensor([shift])
"""
)


@pytest.mark.program(ASSIGNED, "--multihost-sweep=fails")
def test_buffers_that_are_assigned_later_are_compared(worlds) -> None:
    """DDP has made them equal when it wrapped the module, and the program has replaced them."""
    found = swept(worlds, "test_assigned").weaknesses
    wrong = [each.witness.summary for each in found if each.witness.outcome == "wrong"]
    name = "buffers of DistributedDataParallel #1"
    assert wrong
    assert all(each.startswith(f"ranks differ in {name!r}") for each in wrong)


def test_a_replay_shows_that_modules_of_ddp_part(run_worlds) -> None:
    """The test passes on each rank, and fails all the same."""
    found = run_worlds(RATE, "--multihost-sweep=fails", "-k", "each")
    result = read_sweep(found.directory("test_each") / "sweep.json")
    witness = next(e.witness for e in result.weaknesses if e.witness.outcome == "wrong")
    again = run_worlds(RATE, "--multihost-replay", witness.token, "-k", "each")
    again.run.assert_outcomes(failed=1)
    assert "ranks differ in 'parameters of DistributedDataParallel #1'" in again.stdout


# Shards whose failure is only logged, and a mark that says that all are there.
MARKED = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_marked(world, shared_tmp_path):
    try:
        (shared_tmp_path / f"shard-{world.rank}.json").write_text("[1.0]")
    except OSError as error:
        print("not saved:", error)
    dist.barrier()
    if world.rank == 0:
        (shared_tmp_path / "_SUCCESS").touch()
"""
)


def test_a_replay_shows_that_files_are_wrong(run_worlds) -> None:
    """All ranks pass, and the test fails with the sentence of the sweep; other replays pass."""
    found = run_worlds(MARKED, "--multihost-sweep=fails,differs")
    result = read_sweep(found.directory("test_marked") / "sweep.json")
    witness = next(e.witness for e in result.weaknesses if e.witness.wrong_by == "files")
    harmless = next(each for each in result.runs if each.outcome == "survived")
    run_worlds(MARKED, "--multihost-replay", harmless.token).run.assert_outcomes(passed=1)
    again = run_worlds(MARKED, "--multihost-replay", witness.token)
    again.run.assert_outcomes(failed=1)
    assert witness.summary in again.stdout
    verdict = again.verdicts["test_marked"]
    assert verdict["wrong"] == {"by": "files", "summary": witness.summary}


UNSWEPT = """
import os, time
import pytest

def helper():
    return 1.0

@pytest.mark.multihost(ranks=2, timeout=30)
def test_unswept(world):
    used = (helper, time.monotonic, open, os.stat, os.environ.__class__.__getitem__)
    assert [each for each in used if hasattr(each, "__wrapped__")] == []
"""


@pytest.mark.program(UNSWEPT)
def test_a_test_that_is_not_swept_records_nothing(worlds) -> None:
    """The functions of the user, the clocks and the files are those of Python."""
    worlds.run.assert_outcomes(passed=1)


# The order of a set of texts depends on the seed of their hashes.
SET = """
import pathlib
import pytest

with pathlib.Path(__file__).with_name("imports").open("a") as file:
    file.write("x")

@pytest.mark.multihost(ranks=4, timeout=30)
def test_set(world):
    world.same("order", list({"weight", "bias", "scale", "mean"}))
"""


@pytest.mark.program(SET, "--multihost-sweep=differs")
def test_an_order_that_depends_on_hashes_is_found(worlds) -> None:
    """The worlds of two seeds and their repeats need one interpreter for each seed."""
    worlds.run.assert_outcomes(failed=1)
    result = swept(worlds, "test_set")
    (found,) = result.weaknesses
    assert found.witness.disturbance.fault.kind == "hash_seed"
    assert found.repeated[0] == found.repeated[1] > 1
    imports = (worlds.path / "imports").read_text()
    assert len(imports) <= 2 + 3  # pytest's process and its server; the others' seed, and 1 and 2


def test_a_file_after_the_bare_option_is_a_test_file(run_worlds) -> None:
    """`--multihost-sweep test_a.py` sweeps that file: it is no list of families."""
    plain = "def test_plain(world): world.barrier('x')"
    worlds = run_worlds(
        f"import pytest\n@pytest.mark.multihost(ranks=2)\n{plain}",
        "--multihost-sweep",
        "test_worlds.py",
    )
    worlds.run.assert_outcomes(passed=1)
    assert "injections" in worlds.stdout


def test_a_family_that_does_not_exist_is_a_usage_error(run_worlds) -> None:
    """It is no test file either, so the error names the families."""
    worlds = run_worlds("def test_plain(): pass", "--multihost-sweep", "lat,fails")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no fault class 'lat'" in worlds.run.stderr.str()
    assert "Did you mean late?" in worlds.run.stderr.str()


def test_a_missing_test_file_after_the_bare_option_is_pytests_own_error(run_worlds) -> None:
    """`--multihost-sweep test_typo.py` says that the file is missing."""
    worlds = run_worlds("def test_plain(): pass", "--multihost-sweep", "test_typo.py")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "file or directory not found: test_typo.py" in worlds.run.stderr.str()


def test_the_token_of_a_weakness_repeats_it(run_worlds) -> None:
    """In an ordinary run of the test, which is not swept then."""
    worlds = run_worlds(PRIMARY, "--multihost-sweep=fails")
    token = swept(worlds, "test_primary").weaknesses[0].witness.token
    again = run_worlds(PRIMARY, "--multihost-sweep=fails", f"--multihost-replay={token}")
    again.run.assert_outcomes(failed=1)
    assert again.verdicts["test_primary"]["diagnosis"]["waiting"] == [1]
    assert "injections" not in again.stdout


def test_a_primary_that_cannot_write_leaves_the_others_waiting(run_worlds) -> None:
    """The culprit is the line that writes, the others wait at the barrier; all of it is on disk."""
    worlds = run_worlds(PRIMARY, "--multihost-sweep=fails")
    worlds.run.assert_outcomes(failed=1)
    result = swept(worlds, "test_primary")
    (weakness,) = result.weaknesses
    witness = weakness.witness
    assert (witness.outcome, witness.waiting_ranks) == ("left waiting", (1,))
    assert witness.culprit is not None
    assert witness.culprit.line == line_of(PRIMARY, "write_text")
    assert witness.waiting is not None
    assert witness.waiting.line == line_of(PRIMARY, "dist.barrier")
    assert weakness.repeated == (5, 5)
    assert witness.directory is not None
    kept = worlds.path / ".pytest_multihost" / witness.directory
    assert {"verdict.json", "report.html", "facts.json"} <= {each.name for each in kept.iterdir()}
    assert (worlds.directory("test_primary") / "sweep.html").exists()
    assert len(worlds.all_verdicts) == 1, "disturbed runs have no verdict of their own"


@pytest.mark.program(ROBUST, "--multihost-sweep=fails")
def test_a_test_that_agrees_on_failures_passes(worlds) -> None:
    """All ranks raise when one cannot write; that is no weakness."""
    worlds.run.assert_outcomes(passed=1)
    result = swept(worlds, "test_robust")
    assert result.status == "passed"
    assert result.count("told") == len(result.runs) > 0
    worlds.run.stdout.fnmatch_lines(["*test_robust: survives * of * injection* (0 weaknesses)*"])


@pytest.mark.program(
    """
    import pytest
    pytestmark = pytest.mark.multihost(ranks=2)

    def test_fails(world):
        assert world.rank == 0

    def test_is_skipped(world):
        pytest.skip("not here")

    @pytest.mark.multihost_expect("straggler")
    @pytest.mark.multihost(timeout=2)
    def test_hangs(world):
        if world.rank == 0:
            import time
            time.sleep(60)
        world.barrier()
    """,
    "--multihost-sweep",
)
def test_what_does_not_pass_is_not_swept(worlds) -> None:
    """It is reported as without a sweep, and why it was not swept is said."""
    worlds.run.assert_outcomes(failed=1, skipped=1, passed=1)
    assert swept(worlds, "test_fails").reason == "the first run failed"
    worlds.run.stdout.fnmatch_lines(
        [
            "*test_fails: not swept: the first run failed",
            "*test_is_skipped: not swept: the first run was skipped",
            "*test_hangs: not swept: it is expected to hang (multihost_expect)",
        ]
    )


def test_the_marker_sweeps_one_test_always(run_worlds) -> None:
    """With its own families; other tests are not swept without the option."""
    source = PRIMARY.replace(
        "@pytest", "@pytest.mark.multihost_sweep(families='late', budget=5)\n@pytest"
    )
    worlds = run_worlds(source + ROBUST.removeprefix(HEAD))
    result = swept(worlds, "test_primary")
    assert result.families == ("late",)
    assert result.budget_s == 5
    assert not (worlds.directory("test_robust") / "sweep.json").exists()


def test_a_sweep_without_time_says_what_it_left_out(run_worlds) -> None:
    """Each disturbance has been run, or is counted."""
    worlds = run_worlds(ROBUST, "--multihost-sweep=fails", "--multihost-sweep-budget=0.001")
    worlds.run.assert_outcomes(passed=1)
    found = swept(worlds, "test_robust")
    planned = found.plan.disturbances
    assert sum(each.count for each in found.left_out) == len(planned) - len(found.runs) > 0
    worlds.run.stdout.fnmatch_lines(["*left out * for lack of time*"])


def test_an_option_of_earlier_versions_says_what_to_use(run_worlds) -> None:
    """Before a test runs."""
    worlds = run_worlds(ROBUST, "--multihost-sweep-continue")
    worlds.run.stderr.fnmatch_lines(["*--multihost-sweep-budget=SECONDS*"])


def test_a_weakness_that_is_accepted_fails_nothing(run_worlds, pytester) -> None:
    """The reason is told, and so is an entry that is met by nothing."""
    accepted = """
        [[accepted]]
        test = "test_worlds.py::test_primary"
        culprit = "test_worlds.py:test_primary"
        reason = "the launcher ends the job"

        [[accepted]]
        test = "test_worlds.py::*"
        culprit = "test_worlds.py:another_function"
        reason = "was mended long ago"
        """
    pytester.makefile(".toml", **{"multihost-accepted": accepted})
    worlds = run_worlds(PRIMARY, "--multihost-sweep=fails")
    worlds.run.assert_outcomes(passed=1)
    result = swept(worlds, "test_primary")
    assert result.weaknesses[0].accepted == "the launcher ends the job"
    assert [each for each in result.unmet_acceptances if "another_function" in each]
    worlds.run.stdout.fnmatch_lines(["*1 weakness, accepted*another_function*no longer occurs*"])


def test_sweeps_run_in_the_workers_of_xdist(run_worlds) -> None:
    """Their results reach the controller's summary."""
    source = PRIMARY + ROBUST.removeprefix(HEAD)
    worlds = run_worlds(source, "--multihost-sweep=fails", "-p", "xdist", "-n", "2")
    worlds.run.assert_outcomes(failed=1, passed=1)
    worlds.run.stdout.fnmatch_lines_random(
        ["*HANGS*", "*survives * of * injection*", "*test_robust: survives*"]
    )


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--multihost-sweep=sideways", "*There are: late, fails, differs*"),
        ("--multihost-sweep-budget=soon", "*a positive number of seconds*"),
        ("--multihost-sweep-accept=nowhere.toml", "*nowhere.toml*"),
    ],
)
def test_an_option_that_cannot_be_used_is_an_error(run_worlds, option: str, complaint: str) -> None:
    """Before any test runs, with what would do."""
    worlds = run_worlds(PRIMARY, "--multihost-sweep", option)
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    worlds.run.stderr.fnmatch_lines([complaint])


def test_the_marker_on_a_test_without_a_world_is_an_error(run_worlds) -> None:
    """It would silently do nothing."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost_sweep("late")
        def test_plain(): pass
        """
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    text = worlds.run.stderr.str()
    assert "test_plain: @pytest.mark.multihost_sweep is on a test that is not a multihost" in text


@pytest.mark.program(
    """
    import pytest
    pytestmark = pytest.mark.multihost_sweep("late")

    def test_plain(): pass
    """
)
def test_the_marker_of_a_module_is_for_its_multihost_tests(worlds) -> None:
    """Others in it run as ever."""
    worlds.run.assert_outcomes(passed=1)


def test_a_run_without_a_sweep_imports_nothing_that_sweeps(run_worlds, pytester) -> None:
    """Neither the lanes nor what plans and judges: only names and words."""
    pytester.makeconftest(
        """
        import sys
        def pytest_sessionfinish():
            names = ("lanes", "run", "plan", "judge", "html", "report", "result", "words")
            rooms = [f"pytest_multihost.extensions.sweep.{name}" for name in names]
            print("\\nimported:", [each for each in rooms if each in sys.modules])
        """
    )
    worlds = run_worlds(PRIMARY, "-s")
    worlds.run.assert_outcomes(passed=1)
    assert re.findall(r"^imported: (.*)$", worlds.stdout, re.MULTILINE) == ["[]"]


TWO = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.multihost(ranks=2, backend="none", timeout=30)
def test_writes(world, shared_tmp_path, name):
    (shared_tmp_path / f"{name}{world.rank}").write_text("weights")
    (shared_tmp_path / f"{world.rank}{name}").write_text("weights")
"""


def test_an_error_of_one_sweep_leaves_the_next_one_its_lanes(run_worlds, pytester) -> None:
    """The first sweep breaks while worlds run, as by a family of another plugin; they are ended."""
    pytester.makeconftest(
        """
        from pytest_multihost.extensions.sweep.run import one_sweep
        order, broken = one_sweep.order_rest, []
        def breaks_once(rest, runs, running=()):
            if len(running) and not broken:
                broken.append(running)
                raise RuntimeError("broken once")
            return order(rest, runs, running)
        one_sweep.order_rest = breaks_once
        """
    )
    worlds = run_worlds(TWO, "--multihost-sweep", "-p", "no:randomly")
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert "RuntimeError: broken once" in worlds.stdout
    assert swept(worlds, "test_writes[second]").status == "passed"


def test_nothing_is_left_of_disturbed_worlds(run_worlds, tmp_path: Path, monkeypatch) -> None:
    """No scratch directory, and of the artifacts only those of the witness."""
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    worlds = run_worlds(PRIMARY, "--multihost-sweep=fails")
    assert list(tmp_path.rglob("sweep-*")) == []
    attempt = worlds.directory("test_primary")
    assert [each.name for each in attempt.iterdir() if each.is_dir()] == ["weakness-1"]
