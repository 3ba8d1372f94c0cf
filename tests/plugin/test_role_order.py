"""Roles that start after others are ready, and programs that are started again."""

from __future__ import annotations

import pytest

ORDER = """
import http.client, pathlib, socket, time
import pytest
from pytest_multihost import Role

FLAKY = '''
import os, sys, time
number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if number == 0:
    sys.exit(3)
if number == 1:
    os.kill(os.getpid(), 9)
if sys.argv[1] == "hang":
    time.sleep(600)
print("run", number, flush=True)
sys.exit(int(sys.argv[1]))
'''
pathlib.Path("flaky.py").write_text(FLAKY)
SERVER = Role(
    1, run="-m http.server {port} --bind 127.0.0.1", ready="tcp:{port}", service=True
)
ENGINE = Role(1, ready="tcp:{port}")
AFTER = Role(1, after="engine")
SLOW_S = 1.5

def listen(world):
    return socket.create_server(("127.0.0.1", world.port("engine", world.role_rank)))

def flaky(argument):
    return {"driver": 1, "engine": Role(1, run=f"flaky.py {argument}", restarts=2)}

@pytest.mark.multihost(roles={"client": Role(1, after="server"), "server": SERVER}, timeout=20)
def test_server(world):
    connection = http.client.HTTPConnection("127.0.0.1", world.port("server"))
    connection.request("GET", "/")  # it is refused unless the server listens
    assert connection.getresponse().status == 200
    time.sleep(600)

@pytest.mark.multihost(roles={"client": Role(2, after="server"), "server": SERVER}, timeout=20)
def test_served(world):
    assert world.broadcast(world.rank) == 0
    world.same("step", 1)
    world.barrier()  # of the two clients

@pytest.mark.multihost(roles={"driver": AFTER, "engine": ENGINE}, hosts="one", timeout=20)
def test_slow(world):
    if world.role == "engine":
        time.sleep(SLOW_S)
        with listen(world) as server:
            server.accept()[0].close()
    else:
        socket.create_connection(("127.0.0.1", world.port("engine"))).recv(1)

@pytest.mark.multihost(
    roles={"driver": AFTER, "engine": Role(2, ready="tcp:{port}")}, hosts="one", timeout=20
)
def test_never(world):
    if world.role_rank == 0:
        waiting = listen(world)
    time.sleep(600)

@pytest.mark.multihost(roles={"driver": AFTER, "engine": ENGINE}, hosts="one", timeout=20)
def test_ended(world):
    pass

@pytest.mark.multihost(roles={"driver": 1, "engine": ENGINE}, hosts="one", timeout=4)
def test_refused(world):
    while world.role == "driver":
        try:
            socket.create_connection(("127.0.0.1", world.port("engine")))
        except ConnectionRefusedError:
            time.sleep(0.05)
    time.sleep(600)

@pytest.mark.multihost(roles=flaky(0), hosts="one", timeout=20)
def test_third_run_is_good(world):
    pass

@pytest.mark.multihost(roles=flaky(5), hosts="one", timeout=20)
def test_third_run_is_bad(world):
    pass

@pytest.mark.multihost(roles=flaky("hang"), hosts="one", timeout=20)
def test_third_run_hangs(world):
    pass
"""


def diagnosis(worlds, name: str) -> dict[str, object]:
    """Return the diagnosis of one program."""
    return worlds.verdicts[name]["diagnosis"]


@pytest.mark.program(ORDER)
def test_a_role_starts_once_the_other_one_listens(worlds) -> None:
    """No connection is refused, also after a slow start, and nobody is accused."""
    assert diagnosis(worlds, "test_server")["culprits"] == [0]
    assert diagnosis(worlds, "test_server")["where"]["source"] == "time.sleep(600)"
    assert worlds.verdicts["test_slow"]["status"] == "passed"


@pytest.mark.program(ORDER)
def test_a_service_ends_after_the_others(worlds) -> None:
    """It runs for ever by itself, and takes no part in barriers of the test."""
    assert worlds.verdicts["test_served"]["status"] == "passed"


@pytest.mark.program(ORDER)
def test_a_rank_that_never_becomes_ready_is_to_blame(worlds) -> None:
    """Before the deadline; the rank of its role that listens is not."""
    found = diagnosis(worlds, "test_never")
    assert (found["kind"], found["culprits"], found["detected_by"]) == ("straggler", [2], "proof")
    assert found["summary"].startswith("engine 1 never became ready (tcp:")
    assert [each["by"] for each in found["waits_for"]] == ["ready"]


@pytest.mark.program(ORDER)
def test_a_rank_that_ends_without_being_ready_is_to_blame(worlds) -> None:
    """The other one would wait for ever."""
    found = diagnosis(worlds, "test_ended")
    assert (found["kind"], found["culprits"], found["waiting"]) == ("finished", [1], [0])


@pytest.mark.program(ORDER)
def test_others_that_poll_are_taken_to_wait_for_the_unready_one(worlds) -> None:
    """Only at the deadline, and it is likely, not certain."""
    found = diagnosis(worlds, "test_refused")
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0])
    assert (found["confidence"], found["detected_by"]) == ("likely", "deadline")


@pytest.mark.program(ORDER)
def test_a_program_that_fails_is_started_again(worlds) -> None:
    """After an error and after a signal; the last end counts."""
    assert worlds.verdicts["test_third_run_is_good"]["status"] == "passed"
    found = worlds.verdicts["test_third_run_is_bad"]
    assert (found["outcome"], found["diagnosis"]) == ("failed", None)
    assert "SystemExit: 5" in worlds.stdout


@pytest.mark.program(ORDER)
def test_a_hang_after_a_restart_says_so(worlds) -> None:
    """The notes tell how the program had ended before."""
    found = diagnosis(worlds, "test_third_run_hangs")
    assert found["culprits"] == [1]
    assert found["notes"][:2] == [
        "engine 0: its program exited with code 3: restart 1 of 2",
        "engine 0: its program was killed by SIGKILL: restart 2 of 2",
    ]


GROUP = """
import pytest
from pytest_multihost import Role

@pytest.mark.multihost(roles={"engine": Role(2, run="x.py", restarts=1, backend="gloo")})
def test_group(world):
    pass
"""


def test_restarts_take_no_group_of_the_harness(run_worlds) -> None:
    """A process group is made once, before the program starts."""
    found = run_worlds(GROUP)
    assert found.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "Give it backend='none'" in found.run.stderr.str()
