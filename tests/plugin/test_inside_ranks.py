"""Ordinary pytest works inside ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from runtimes import SUBTESTS


@pytest.mark.program(
    """
    import logging, os, pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world, capsys, caplog, monkeypatch):
        print("taken", world.rank)
        assert capsys.readouterr().out == f"taken {world.rank}\\n"
        logging.getLogger("x").warning("logged")
        assert caplog.messages == ["logged"]
        monkeypatch.setenv("RANK", "7")
        assert os.environ["RANK"] == "7"

    @pytest.mark.multihost(ranks=2)
    def test_fd(world, capfd):
        os.system("echo from a child")
        assert capfd.readouterr().out == "from a child\\n"
    """
)
def test_capsys_capfd_caplog_and_monkeypatch_work(worlds) -> None:
    """Each rank has its own, and what is captured by them is not in the log."""
    worlds.run.assert_outcomes(passed=2)
    assert worlds.output("test_it", 0) == ""


@pytest.mark.parametrize(
    ("launch", "capture"),
    [("fork", "fd"), ("fork", "sys"), ("fork", "tee-sys"), ("server", "fd"), ("spawn", "fd")],
)
def test_a_handler_made_at_import_writes_to_the_log(run_worlds, launch: str, capture: str) -> None:
    """It holds the stream that captured output while the module was imported, as Lightning's do."""
    worlds = run_worlds(
        """
        import logging, pytest, sys

        logging.getLogger("x").addHandler(logging.StreamHandler())
        STDOUT = sys.stdout

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            logging.getLogger("x").warning("logged by %s", world.rank)
            print("printed by", world.rank, file=STDOUT)
            assert world.rank
        """,
        f"--multihost-launch={launch}",
        f"--capture={capture}",
    )
    for rank in range(2):
        written = f"logged by {rank}\nprinted by {rank}\n"
        assert worlds.output("test_it", rank).endswith(written)
    assert "Logging error" not in worlds.stdout + worlds.run.stderr.str()


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        assert [world.rank, 1, 2] == [1, 1, 3]
    """
)
def test_assertions_show_their_values(worlds) -> None:
    """Assertion rewriting hooks on the protocol, which is why we call the hook."""
    assert "At index" in worlds.stdout


def test_fixtures_run_in_the_ranks_and_never_in_the_controller(run_worlds) -> None:
    """Function, class, module and session scope: once per rank and test."""
    worlds = run_worlds(
        """
        import os, pytest

        @pytest.fixture(params=["p"])
        def function(request):
            print("function", request.param, "RANK" in os.environ)
            yield
            print("function torn down")

        @pytest.fixture(scope="module")
        def module():
            print("module", "RANK" in os.environ)

        @pytest.fixture(scope="session", autouse=True)
        def session():
            print("session", "RANK" in os.environ)

        @pytest.mark.multihost(ranks=2)
        def test_it(world, module, function):
            print("test")
        """,
        "-s",
    )
    worlds.run.assert_outcomes(passed=1)
    expected = "session True\nmodule True\nfunction p True\ntest\nfunction torn down\n"
    assert [worlds.output("test_it[p]", rank) for rank in (0, 1)] == [expected, expected]
    assert "session False" not in worlds.stdout


def test_warnings_of_ranks_are_in_the_summary_once(run_worlds) -> None:
    """Recorded in the ranks, shown by pytest like any other."""
    worlds = run_worlds(
        """
        import pytest, warnings

        @pytest.mark.multihost(ranks=3)
        def test_it(world):
            warnings.warn("old call", DeprecationWarning)
        """
    )
    worlds.run.assert_outcomes(passed=1, warnings=1)
    assert "DeprecationWarning: old call" in worlds.stdout


@pytest.mark.program(
    """
    import pytest, warnings

    @pytest.mark.filterwarnings("error")
    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        if world.rank:
            warnings.warn("old call", DeprecationWarning)
    """
)
def test_filterwarnings_holds_in_the_ranks(worlds) -> None:
    """An error filter turns a rank's warning into its failure."""
    assert "rank 1: DeprecationWarning: old call" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world, tmp_path):
        world.barrier()
    """,
    "-W",
    "error",
)
def test_warnings_as_errors_do_not_disturb_the_harness(worlds) -> None:
    """-W error: neither the fork nor anything else of ours warns."""
    worlds.run.assert_outcomes(passed=1)


def subtests_shown(worlds) -> list[tuple[str, str, str]]:
    """Return description, parameter and outcome of each line about a subtest, in order.

    Pytest 9 writes "SUBPASSED[part] (i='0')"; the plugin for pytest 8, "[part] (i=0) SUBPASS".
    """
    found = []
    for line in worlds.stdout.splitlines():
        named = re.search(r"\[(part.*)\] \(i='?(\d)'?\)", line)
        outcome = re.search("SUB(PASS|FAIL)", line)
        if line.startswith("test_worlds.py::test_it ") and named and outcome:
            found.append((named[1], named[2], outcome[1]))
    return found


def test_subtests_are_folded_by_name_and_outcome(run_worlds) -> None:
    """A subtest that fails in one rank is named with it, and fails the test."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=3)
        def test_it(world, subtests):
            for i in range(2):
                with subtests.test("part", i=i):
                    assert (world.rank, i) != (2, 1)
        """,
        "-v",
        *SUBTESTS,
    )
    assert sorted(subtests_shown(worlds)) == [
        ("part", "0", "PASS"),
        ("part [rank 2]", "1", "FAIL"),
        ("part [ranks 0,1]", "1", "PASS"),
    ]
    assert "rank 2: contains 1 failed subtest" in worlds.stdout
    # The lines are pytest's, not output of the test or of its ranks.
    assert not re.search("Captured (stdout|rank)", worlds.stdout)
    assert worlds.run.ret == pytest.ExitCode.TESTS_FAILED


def test_subtests_that_pass_are_shown_as_in_ordinary_pytest(run_worlds) -> None:
    """Once for all ranks, and counted."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=3)
        def test_it(world, subtests):
            for i in range(2):
                with subtests.test("part", i=i):
                    print("checked")
        """,
        "-v",
        *SUBTESTS,
    )
    assert subtests_shown(worlds) == [("part", "0", "PASS"), ("part", "1", "PASS")]
    assert "1 passed, 2 subtests passed" in worlds.stdout


def test_properties_merge_with_rank_suffixes(run_worlds, pytester: pytest.Pytester) -> None:
    """Equal in all ranks: once. Different: each with its rank."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world, record_property):
            record_property("size", world.size)
            record_property("mine", world.rank)
        """,
        "--junitxml=out.xml",
    )
    text = (worlds.path / "out.xml").read_text()
    assert '<property name="size" value="2" />' in text
    assert '<property name="mine[rank 0]" value="0" />' in text
    assert '<property name="mine[rank 1]" value="1" />' in text


def test_output_of_a_failed_test_is_in_its_report(run_worlds) -> None:
    """What ranks print differently stands under each; what they print alike, once."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=3)
        def test_it(world):
            print("odd" if world.rank == 1 else "even")
            assert False
        """
    )
    assert "Captured ranks 0,2 output call" in worlds.stdout
    assert "Captured rank 1 output call" in worlds.stdout
    assert worlds.stdout.count("\neven\n") == 1


@pytest.mark.program(
    """
    import os, pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        if world.rank:
            print("last words")
            os.kill(os.getpid(), 9)
    """
)
def test_output_survives_a_kill(worlds) -> None:
    """What a rank printed before it died is what the reader needs most."""
    assert "last words" in worlds.stdout


def test_a_rank_has_its_own_random_numbers_and_the_same_in_every_run(run_worlds) -> None:
    """Forked ranks would share the generator's state, which hosts do not."""
    source = """
    import pytest, random

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        print(random.random())
    """
    first, second = run_worlds(source), run_worlds(source)
    numbers = [first.output("test_it", rank) for rank in range(3)]
    assert len(set(numbers)) == 3
    assert numbers == [second.output("test_it", rank) for rank in range(3)]


def test_nothing_of_another_world_is_inherited(run_worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun's variables are this world's, an outer launcher's and proxies are gone."""
    for name in ("RANK", "SLURM_PROCID", "HTTPS_PROXY", "https_proxy", "JAX_COORDINATOR_ADDRESS"):
        monkeypatch.setenv(name, "stray")
    worlds = run_worlds(
        """
        import os, pytest, socket

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            env = os.environ
            assert "stray" not in env.values()
            assert (env["RANK"], env["LOCAL_RANK"]) == (str(world.rank),) * 2
            assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("2", "2")
            assert (env["MASTER_ADDR"], env["OMP_NUM_THREADS"]) == ("127.0.0.1", "1")
            assert len(set(world.gather(env["MASTER_PORT"]))) == 1
            assert env["GLOO_SOCKET_IFNAME"] == "lo"
        """
    )
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
    """
    import os, pytest, socket

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        port = int(os.environ["MASTER_PORT"])
        strangers = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
        assert port not in [each.getsockname()[1] for each in strangers]
        if world.is_primary:
            listener = socket.create_server(("127.0.0.1", port))
        world.barrier()
        socket.create_connection(("127.0.0.1", port)).close()
        world.barrier()
    """
)
def test_the_rendezvous_port_is_held_for_the_world(worlds) -> None:
    """Nobody else is given it, and the primary can still listen on it."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.parametrize("stop", ["breakpoint()", "world.breakpoint()", "pytest.set_trace()"])
@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        $stop
    """
)
def test_a_breakpoint_without_a_terminal_is_an_error(worlds, stop: str) -> None:
    """A debugger that nobody can type into would be a hang."""
    assert "NoTerminalError: the debugger in a rank needs a terminal" in worlds.stdout
    assert "test_worlds.py:5" in worlds.stdout


def test_a_breakpoint_under_xdist_is_an_error(run_worlds) -> None:
    """A worker has no terminal, even if the run has one."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            breakpoint()
        """,
        *("-p", "xdist", "-n1"),
    )
    assert "Run pytest in a terminal, without -n." in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        if world.rank:
            pytest.exit("enough")
    """
)
def test_pytest_exit_in_a_rank_fails_the_test(worlds) -> None:
    """It leaves pytest's protocol in the rank, and is told all the same."""
    assert "rank 1: Exit: enough" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    class Unprintable(Exception):
        def __init__(self, a, b): pass
        def __str__(self): raise RuntimeError("no")
        __repr__ = __str__

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        raise Unprintable(1, 2)
    """
)
def test_an_exception_that_cannot_be_printed_is_told(worlds) -> None:
    """Neither str() nor pickle of a user's exception is relied on."""
    worlds.run.assert_outcomes(failed=1)
    assert "ranks 0,1: Unprintable: <its str() raises RuntimeError>" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.fixture
    def data(world):
        yield
        world.barrier("closing")

    @pytest.mark.multihost(ranks=3)
    def test_it(data):
        pass
    """
)
def test_barrier_works_in_fixture_teardown(worlds) -> None:
    """Ranks that have left the test body take part again when they tear down together."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        world.barrier("a" if world.rank else "b")
    """
)
def test_ranks_that_wait_for_different_things_are_released(worlds) -> None:
    """All wait, each for something else: the harness's own operations cannot hang a world."""
    assert "rank 0 is in barrier 'b'; rank 1 is in barrier 'a'" in worlds.stdout


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        parts = world.gather(bytes([world.rank]) * 20_000_000)
        assert [part[-1] for part in parts] == [0, 1, 2]
        assert world.gather({world.rank, (1, None)})[2] == {2, (1, None)}
    """
)
def test_gather_takes_large_and_odd_objects(worlds) -> None:
    """20 MB from each rank, and what only pickle can carry."""
    worlds.run.assert_outcomes(passed=1)


def test_durations_count_the_world_as_the_call(run_worlds) -> None:
    """--durations shows where the time goes."""
    worlds = run_worlds(
        """
        import pytest, time

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            time.sleep(0.3)
        """,
        "--durations=1",
    )
    line = next(line for line in worlds.stdout.splitlines() if " call " in line)
    assert 0.3 <= float(line.split("s ")[0]) < 10


def test_a_failed_test_is_found_again_by_last_failed(run_worlds) -> None:
    """Node ids never carry a rank, so --lf works."""
    source = """
    import pytest

    @pytest.mark.multihost(ranks=2)
    def test_bad(world):
        assert world.rank == 0

    @pytest.mark.multihost(ranks=2)
    def test_good(world):
        pass
    """
    run_worlds(source)
    worlds = run_worlds(source, "--lf")
    worlds.run.assert_outcomes(failed=1)


def test_tmp_path_of_passed_worlds_goes_when_pytest_is_told_so(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """tmp_path_retention_policy holds for worlds too."""
    pytester.makeini("[pytest]\ntmp_path_retention_policy = failed")
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_good(tmp_path):
            print(tmp_path)

        @pytest.mark.multihost(ranks=2)
        def test_bad(tmp_path):
            print(tmp_path)
            assert False
        """
    )
    assert not Path(worlds.output("test_good", 0).strip()).exists()
    assert Path(worlds.output("test_bad", 0).strip()).exists()


def test_of_a_world_that_passed_only_the_tests_own_files_are_kept(
    run_worlds, tmp_path: Path
) -> None:
    """By default pytest keeps them; a suite of a thousand worlds would leave half a gigabyte."""
    base = tmp_path / "base"
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_with(world, tmp_path, shared_tmp_path):
            (tmp_path / "own").write_text("x")
            (shared_tmp_path / f"shared-{world.rank}").write_text("x")

        @pytest.mark.multihost(ranks=2, backend="gloo")
        def test_without(world):
            import torch, torch.distributed as dist
            dist.all_reduce(torch.ones(1))
        """,
        f"--basetemp={base}",
    )
    worlds.run.assert_outcomes(passed=2)
    names = sorted(each.name for each in base.rglob("*") if each.is_file())
    assert names == ["own", "own", "shared-0", "shared-1"]
    assert len(list(base.glob("world-*"))) == 1
