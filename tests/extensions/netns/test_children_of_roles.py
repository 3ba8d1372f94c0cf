"""Engines that are children of a role's rank: a verdict names the child, dead or alive."""

from __future__ import annotations

import pytest
from runtimes import require

CHILDREN = """
import multiprocessing, os, pathlib, socket, subprocess, sys, time
import pytest
from pytest_multihost import Role

ROLES = {"engine": 2, "driver": 1}

def core(number, parent):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if number == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    parent.send("done")

@pytest.mark.multihost(roles=ROLES, timeout=40)
def test_spawned(world):
    if world.role == "engine":
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        arguments, name = (world.role_rank, its), f"EngineCore_{world.role_rank}"
        context.Process(target=core, args=arguments, name=name).start()
        mine.recv()

def parting(number):
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    requests = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    if number == 0:
        dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 0, group=requests)

@pytest.mark.multihost(roles={"engine": 1, "driver": 1}, timeout=40)
def test_parted(world):
    if world.role == "driver":
        with socket.create_server(("127.0.0.1", world.port("driver"))) as server:
            server.accept()[0].recv(1)
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=parting, args=(number,), name=f"scheduler_TP{number}")
        for number in range(2)
    ]
    for each in children:
        each.start()
    for each in children:
        each.join()

def killed():
    os.kill(os.getpid(), 9)

@pytest.mark.multihost(roles=ROLES, timeout=20)
def test_killed(world):
    if world.role_rank == 1:
        context = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        context.Process(target=killed, name="scheduler_TP1").start()
        reader.recv()  # this process holds the other end

@pytest.mark.multihost(roles=ROLES, timeout=20)
def test_program(world):
    if world.role == "driver":
        with socket.create_server(("127.0.0.1", world.port("driver"))) as server:
            server.accept()[0].recv(1)
    elif world.role_rank == 1:
        with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as child:
            child.stdout.read()

pathlib.Path("serve.py").write_text('''
import os, socket, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(1)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    connection, _ = server.accept()
    time.sleep(600)
''')
SERVED = {
    "engine": Role(1, run="serve.py {port}", ready="tcp:{port}", restarts=1),
    "driver": Role(1, after="engine"),
}

@pytest.mark.multihost(roles=SERVED, timeout=20)
def test_restarted(world):
    socket.create_connection(("127.0.0.1", world.port("engine"))).recv(1)

pathlib.Path("sitecustomize.py").write_text("import os; os.environ['SITE'] = 'run'")

@pytest.mark.multihost(roles=ROLES, env={"PYTHONPATH": os.getcwd()}, timeout=20)
def test_site(world):
    program = "import os; print(os.environ['SITE'])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "run\\n"
"""


def diagnosis(worlds, name: str) -> dict[str, object]:
    """Return the diagnosis of one program."""
    return worlds.verdicts[name]["diagnosis"]


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_a_group_of_spawned_children_is_proven_and_the_child_is_named(worlds) -> None:
    """Each is a new interpreter, which records what it does for its rank."""
    found = diagnosis(worlds, "test_spawned")
    assert (found["kind"], found["culprits"], found["detected_by"]) == ("straggler", [1], "proof")
    assert found["summary"].startswith("engine 1 / EngineCore_1 never reached all_reduce #2")
    assert found["where"]["source"] == "time.sleep(600)"
    assert [each["by"] for each in found["waits_for"]] == ["child"]


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_children_of_one_rank_that_wait_for_each_other_are_their_ranks_fault(worlds) -> None:
    """One gathers in one group, the other waits in a second one; no other rank is a member."""
    found = diagnosis(worlds, "test_parted")
    assert (found["kind"], found["culprits"], found["detected_by"]) == ("stuck", [0], "proof")
    assert found["summary"].startswith("engine 0 / scheduler_TP0")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_a_killed_child_behind_a_pipe_that_never_ends_is_named(worlds) -> None:
    """With the signal that has ended it."""
    found = diagnosis(worlds, "test_killed")
    assert (found["kind"], found["culprits"], found["detected_by"]) == ("stuck", [1], "proof")
    assert found["summary"].endswith("its child scheduler_TP1 was killed by SIGKILL")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_a_child_that_is_no_python_is_named_by_its_program(worlds) -> None:
    """Nothing in it records anything."""
    found = diagnosis(worlds, "test_program")
    assert found["culprits"] == [1]
    assert found["summary"].startswith("engine 1 / sleep ")


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_a_program_that_was_started_again_is_asked(worlds) -> None:
    """It runs in a child; its line is that of the program."""
    found = diagnosis(worlds, "test_restarted")
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [0], [1])
    assert found["where"]["source"] == "time.sleep(600)"
    assert [each["by"] for each in found["waits_for"]] == ["tcp"]


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(CHILDREN)
def test_the_users_own_sitecustomize_runs_as_well(worlds) -> None:
    """Python imports only the first one on the path."""
    assert worlds.verdicts["test_site"]["status"] == "passed"


AWAITED = """
import asyncio, time
import pytest
import zmq
import zmq.asyncio

ROLES = {"driver": 1, "engine": 1, "idle": 1}

def opened(world, kind, role, *, binds, of=zmq.asyncio.Context):
    found = of.instance().socket(kind)
    (found.bind if binds else found.connect)(f"tcp://127.0.0.1:{world.port(role)}")
    return found

async def ask(world, kind):
    engine = opened(world, kind, "engine", binds=False)
    await engine.send(b"x")
    assert await engine.recv() == b"y"

async def receive(world, role):
    await opened(world, zmq.PULL, role, binds=True).recv()

@pytest.mark.multihost(roles=ROLES, timeout=20)
@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_asks(world, kind):
    if world.role == "driver":
        asyncio.run(ask(world, kind))
    if world.role == "idle":
        asyncio.run(receive(world, "idle"))
    router = opened(world, zmq.ROUTER, "engine", binds=True, of=zmq.Context)
    router.recv_multipart()
    time.sleep(600)

async def late(world):
    server = opened(world, zmq.REP, "engine", binds=True)
    await server.recv()
    await asyncio.sleep(1.5)
    await server.send(b"y")

@pytest.mark.multihost(roles={"driver": 1, "engine": 1}, timeout=20)
def test_late(world):
    asyncio.run(ask(world, zmq.REQ) if world.role == "driver" else late(world))
"""


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(AWAITED)
@pytest.mark.parametrize("kind", ["3", "5"], ids=["REQ", "DEALER"])
def test_an_answer_that_a_coroutine_awaits_is_owed(worlds, kind: str) -> None:
    """An idle coroutine of a third role waits for nobody."""
    require("zmq", reason="the roles ask each other by zmq")
    found = diagnosis(worlds, f"test_asks[{kind}]")
    assert (found["kind"], found["culprits"], found["waiting"]) == ("straggler", [1], [0])
    assert [each["by"] for each in found["waits_for"]] == ["zmq"]


@pytest.mark.usefixtures("netns_hosts")
@pytest.mark.program(AWAITED)
def test_a_coroutine_that_answers_late_is_not_accused(worlds) -> None:
    """Its loop sleeps for a while."""
    require("zmq", reason="the roles ask each other by zmq")
    assert worlds.verdicts["test_late"]["status"] == "passed"
