"""A failure of a rank stays one; `core.outcome.finding` has the rule and its exceptions."""

from __future__ import annotations

import pytest

OUTCOMES = """
    import os, sys, pytest
    from pytest_multihost import Role, faults

    multihost = pytest.mark.multihost
    usual = dict(ranks=2, backend="none", timeout=60)

    @pytest.fixture
    def part(world, request):
        if world.rank == 0:
            request.node.add_marker(pytest.mark.xfail(reason="rank 0 has no such file"))
        elif "dies" in request.node.name:
            os._exit(3)

    @multihost(**usual, faults=[faults.kill(rank="all")])
    def test_all_are_killed_fails(world):
        world.barrier()

    @multihost(**usual, faults=[faults.kill(rank=1)])
    def test_one_is_killed_passes(world):
        pass

    @multihost(**usual)
    def test_another_rank_dies_in_setup_fails(world, part):
        world.barrier()

    @multihost(**usual)
    def test_the_marked_rank_raises_xfails(world, part):
        assert world.rank != 0

    @pytest.mark.xfail
    @multihost(**usual)
    def test_all_are_marked_and_one_dies_xfails(world, part):
        pass


    def roles(code, **options):
        with open("program.py", "w") as file:
            file.write("import sys, time; how = sys.argv[1]\\n"
                       "time.sleep(60 if how == 'stays' else 0.3)\\n"
                       "sys.exit(0.0 if how == 'float' else 0)")
        return {"server": Role(1, run=f"program.py {code}", **options), "client": 1}

    @multihost(roles=roles("leaves", service=True), backend="none", timeout=60)
    def test_a_service_leaves_fails(world):
        import time; time.sleep(3)

    @multihost(roles=roles("stays", service=True), backend="none", timeout=60)
    def test_a_service_stays_passes(world):
        pass

    @multihost(roles=roles("leaves"), backend="none", timeout=60)
    def test_a_program_leaves_passes(world):
        import time; time.sleep(1)

    @multihost(roles=roles("float"), backend="none", timeout=60)
    def test_a_program_exits_with_a_float_fails(world):
        pass
"""


@pytest.mark.shared
@pytest.mark.program(OUTCOMES)
def test_a_failure_of_a_rank_fails_the_test(worlds) -> None:
    """The name of each test ends with what it does."""
    verbs = {"passed": "passes", "failed": "fails", "xfailed": "xfails"}
    found = {name: each["status"] for name, each in worlds.verdicts.items()}
    assert found == {name: each for name, each in found.items() if name.endswith(verbs[each])}
    assert len(found) == 9


@pytest.mark.worlds
def test_a_hook_in_the_process_of_pytest_may_fail_a_test_but_not_save_it(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """Around the call, and in the report."""
    pytester.makeconftest(
        """
        import os, pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(item):
            if "RANK" in os.environ:
                return (yield)
            try:
                yield
            except BaseException:
                if not {"saved", "checked"}.intersection(item.name.split("_")):
                    raise
            if "checked" in item.name:
                pytest.fail("a server is left")

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if "reported" in item.name and call.when == "call" and "RANK" not in os.environ:
                report.outcome, report.longrepr = "failed", "a server is left"
            return report
        """
    )
    worlds = run_worlds(
        """
        import pytest

        pytestmark = pytest.mark.multihost(ranks=2, backend="none", timeout=60)

        def test_checked(world): pass
        def test_reported(world): pass
        def test_saved(world): assert world.rank == 0

        @pytest.mark.xfail
        def test_expected_and_checked(world): assert False

        @pytest.mark.xfail
        def test_expected(world): assert False

        def test_passes(world): pass
        """
    )
    worlds.run.assert_outcomes(passed=1, failed=4, xfailed=1)
    assert worlds.stdout.count("a server is left") >= 3


@pytest.mark.worlds
@pytest.mark.parametrize(("name", "code"), [("shouldfail", 1), ("shouldstop", 2)])
def test_a_rank_may_stop_the_run(run_worlds, name: str, code: int) -> None:
    """As a test without ranks may."""
    worlds = run_worlds(
        f"""
        import pytest

        pytestmark = pytest.mark.multihost(ranks=2, backend="none", timeout=60)

        def test_a(world, request):
            if world.rank == 1:
                request.session.{name} = "the cluster is not usable"

        def test_b(world): pass
        """
    )
    worlds.run.assert_outcomes(passed=1)
    assert worlds.run.ret == code
    assert "the cluster is not usable" in worlds.stdout


@pytest.mark.worlds
def test_a_run_that_requires_worlds_fails_if_all_ranks_have_skipped(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """A world that has started is not yet one that has tested something."""
    pytester.makeini("[pytest]\nmultihost_require = true")
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2, backend="none", timeout=60)
        def test_a(world): pytest.skip("no data")
        """
    )
    assert worlds.run.ret == 1
    assert "it did not run in any rank" in worlds.stdout
