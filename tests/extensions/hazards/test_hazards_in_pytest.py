"""What is told of tests that pass, and can hang elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.extensions.hazards import pytest_multihost_hazard_rules

Worlds = Any  # of tests/conftest.py
RunWorlds = Callable[..., Worlds]

DOCS = Path(__file__).parents[3] / "docs" / "hazards.md"
EXAMPLES = dict(
    re.findall(
        r"^### (\w+)\n(?:(?!^###).)*?```python\n(.*?)```",
        DOCS.read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
UNWAITED = EXAMPLES["unwaited"]


def hazards(worlds: Worlds) -> Any:  # noqa: ANN401 - JSON
    """Return what the one verdict of a run says of hazards."""
    [verdict] = worlds.all_verdicts
    return verdict["hazards"]


@pytest.mark.parametrize("rule", EXAMPLES)
@pytest.mark.claim("see in a CPU test what can hang on GPUs")
def test_the_examples_of_the_page_show_what_it_says(run_worlds: RunWorlds, rule: str) -> None:
    """Each passes, and its rule finds it; nobody can have waited for what somebody skips."""
    worlds = run_worlds(EXAMPLES[rule], "--multihost-hazard-rules=all")
    worlds.run.assert_outcomes(passed=1, warnings=2 if rule == "skipped" else 1)
    worlds.run.stdout.fnmatch_lines([f"*MultihostHazardWarning: {rule}: *"])
    found = {each["rule"] for each in hazards(worlds)["found"]}
    assert found == {rule} | ({"unwaited"} if rule == "skipped" else set())


@pytest.mark.program(UNWAITED, "--multihost-hazards=fail")
def test_a_hazard_fails_the_test_where_that_is_asked_for(worlds: Worlds) -> None:
    """The report has the line, and when it hangs."""
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(["*HAZARD  unwaited: *", "*async_op=True*", "*hangs *"])
    assert hazards(worlds)["found"][0]["rule"] == "unwaited"


def test_a_filter_of_pytest_makes_hazards_errors(run_worlds: RunWorlds) -> None:
    """As for any other warning; the report has nothing of ours in its traceback."""
    worlds = run_worlds(UNWAITED, "-W", "error::pytest_multihost.MultihostHazardWarning")
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(["*HAZARD  unwaited: *"])
    worlds.run.stdout.no_fnmatch_line("*warn_explicit*")


@pytest.mark.program(UNWAITED, "--multihost-hazards=off")
def test_hazards_are_not_looked_for_where_they_are_switched_off(worlds: Worlds) -> None:
    """The verdict has none, which is not the same as finding none."""
    worlds.run.assert_outcomes(passed=1)
    assert hazards(worlds) is None


@pytest.mark.worlds
@pytest.mark.program(UNWAITED, "--multihost-hazard-rules=order")
def test_only_the_rules_that_were_asked_for_are_applied(worlds: Worlds) -> None:
    """The verdict names them."""
    worlds.run.assert_outcomes(passed=1)
    assert hazards(worlds) == {"rules": ["order"], "found": [], "truncated": []}


@pytest.mark.parametrize("rule", ["ordre", "unguarded"])
def test_an_unknown_rule_is_refused(run_worlds: RunWorlds, rule: str) -> None:
    """With the names of those that exist; an earlier version had the second one."""
    worlds = run_worlds(UNWAITED, f"--multihost-hazard-rules={rule}")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    worlds.run.stderr.fnmatch_lines([f"*rules are order, threads, unwaited, skipped*not '{rule}'*"])


def test_each_rule_has_an_example_on_the_page() -> None:
    """A user who gets a warning looks its rule up there."""
    assert list(EXAMPLES) == [rule.name for rule in pytest_multihost_hazard_rules()]


OWN_RULE = """
import pytest
from pytest_multihost.extensions.hazards.rule import Found, HazardRule

def find(records):
    for rank, record in records.items():
        yield Found(((rank, record.launches[-1:]),))

@pytest.hookimpl(optionalhook=True)
def pytest_multihost_hazard_rules():
    return [
        HazardRule(
            name="last",
            find=find,
            summarize=lambda seen: f"{seen.ranks} ended with {seen.operation}",
            when="It hangs on Sundays.",
        )
    ]
"""
STEP = """
import pytest, torch.distributed as dist

@pytest.mark.multihost(ranks=2, backend="gloo")
def test_step(world):
    dist.barrier()
"""


@pytest.mark.parametrize("names", ["last", "all", "order,last"])
def test_a_rule_of_a_third_party_is_asked_for_by_its_name(
    run_worlds: RunWorlds, pytester: pytest.Pytester, names: str
) -> None:
    """It judges even a run in which all ranks do the same, and has words of its own."""
    pytester.makeconftest(OWN_RULE)
    worlds = run_worlds(STEP, f"--multihost-hazard-rules={names}")
    worlds.run.assert_outcomes(passed=1, warnings=1)
    worlds.run.stdout.fnmatch_lines(
        ["*MultihostHazardWarning: last: ranks 0,1 ended with barrier", "*It hangs on Sundays."]
    )
    assert hazards(worlds)["rules"][-1] == "last"


def test_a_rule_of_a_third_party_is_known_but_not_applied_without_being_asked_for(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """It does not say that it is certain; a message about another name lists it."""
    pytester.makeconftest(OWN_RULE)
    run_worlds(STEP).run.assert_outcomes(passed=1)
    wrong = run_worlds(STEP, "--multihost-hazard-rules=lsat").run
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*rules are order, threads, unwaited, skipped, last, or all*"])


def test_a_conftest_with_a_rule_does_not_need_hazards(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """The plugin may be switched off."""
    pytester.makeconftest(OWN_RULE)
    worlds = run_worlds(STEP, "-p", "no:multihost_hazards")
    worlds.run.assert_outcomes(passed=1)


def test_an_accepted_hazard_is_silent(run_worlds: RunWorlds, pytester: pytest.Pytester) -> None:
    """The verdict still has it, with the reason."""
    entry = 'test = "*"\nhazard = "unwaited"\nculprit = "test_worlds.py:test_loss"'
    file = pytester.path / "multihost-accepted.toml"
    file.write_text(f'[[accepted]]\n{entry}\nreason = "known"\n')
    worlds = run_worlds(UNWAITED, "--multihost-hazards=fail")
    worlds.run.assert_outcomes(passed=1)
    assert hazards(worlds)["found"][0]["accepted"] == "known"


def test_operations_beyond_the_slot_page_are_judged(run_worlds: RunWorlds) -> None:
    """The record is whole: the first operations of many are what is wrong here."""
    worlds = run_worlds(
        """
import pytest, torch, torch.distributed as dist

@pytest.mark.multihost(ranks=2, backend="gloo")
def test_long(world):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    groups = (one, two) if world.rank == 0 else (two, one)
    works = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for group in groups]
    for work in works:
        work.wait()
    for _ in range(2500):
        dist.all_reduce(torch.ones(1))
"""
    )
    worlds.run.assert_outcomes(passed=1, warnings=1)
    assert [each["rule"] for each in hazards(worlds)["found"]] == ["order"]
    assert hazards(worlds)["truncated"] == []


DISTURBED = UNWAITED.replace(
    'backend="gloo"', 'backend="gloo", faults=[faults.delay(rank=0, seconds=0.01)]'
).replace("import pytest", "from pytest_multihost import faults\nimport pytest")


@pytest.mark.program(DISTURBED, "--multihost-hazards=fail")
def test_a_disturbed_run_is_not_judged(worlds: Worlds) -> None:
    """What it did may be the fault's doing."""
    worlds.run.assert_outcomes(passed=1)
    assert hazards(worlds) is None
    [fault] = worlds.verdicts["test_loss"]["faults"]
    assert set(fault["fired"]) == {"0"}


def test_hazards_are_on_the_page_of_the_run_and_on_github(
    run_worlds: RunWorlds, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning at the line, a table in the summary, and a sentence in the page."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    worlds = run_worlds(UNWAITED)
    worlds.run.stdout.fnmatch_lines(["::warning file=*.py,line=7,title=HAZARD unwaited*"])
    assert "Hazards" in (pytester.path / "summary.md").read_text()
    latest = pytester.path / ".pytest_multihost" / "latest"
    assert "hazard: unwaited" in (latest / "report.html").read_text()
    [page] = latest.glob("*/report.html")
    assert "<b>unwaited</b>" in page.read_text()


@pytest.mark.program(
    """
import pytest, torch, torch.distributed as dist
from pytest_multihost import faults

@pytest.mark.multihost(ranks=2, backend="gloo", faults=[faults.stream_order()])
def test_step(world):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    control = dist.new_group([0, 1], backend="gloo")
    x, peer = torch.ones(2), 1 - world.rank
    for _ in range(3):
        works = [dist.all_reduce(x, group=group, async_op=True) for group in (one, two)]
        if world.rank == 0:
            works.append(dist.all_reduce(torch.ones(1), group=control, async_op=True))
        batch = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, torch.ones(2), peer)]
        works += dist.batch_isend_irecv(batch)
        if world.rank == 1:
            works.append(dist.all_reduce(torch.ones(1), group=control, async_op=True))
        for work in works:
            work.wait()
"""
)
def test_what_is_launched_in_one_order_passes_in_that_order(worlds: Worlds) -> None:
    """Also works that are waited for later, batches of transfers, and groups for the CPU."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
    """
import time
import jax, jax.numpy as jnp, numpy as np, pytest
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytest_multihost import faults

@pytest.mark.multihost(
    ranks=2, backend="jax", local_devices=2, timeout=60, faults=[faults.stream_order()]
)
def test_step(world):
    rows = NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec("x"))
    x = jax.make_array_from_process_local_data(rows, np.ones(2), (4,))
    time.sleep(0.3 * world.rank)
    assert float(jax.jit(jnp.sum)(x)) == 4.0
    if world.rank == 0:
        assert float(jax.jit(jnp.max)(jnp.ones(4))) == 1.0
    sync_global_devices("between")
    assert float(jax.jit(jnp.mean)(x)) == 1.0
"""
)
def test_programs_of_jax_that_start_in_one_order_pass_in_that_order(worlds: Worlds) -> None:
    """On devices of all processes or of one, however late a process is, and between barriers."""
    worlds.run.assert_outcomes(passed=1)
