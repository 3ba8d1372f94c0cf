"""Running jobs: which rank a process is, and which operation its frames show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import builders
import pytest
from builders import stands

from pytest_multihost.core.blame import Cause, find_causes
from pytest_multihost.extensions.live.processes import find_job, is_torchrun
from pytest_multihost.extensions.live.waits import (
    SeenWait,
    as_of_probably_all,
    is_in_ddp,
    seen_operation,
    seen_wait,
)
from pytest_multihost.testing import Frame, MultihostError, Operation

TORCH = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
SITE = "/venv/lib/python3.12/site-packages"
USER = Frame("/job/train.py", 17, "step")
LOGGED = Frame("/venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", 81, "wrapper")


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that end with the test."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for each in found:
        each.kill()
        each.communicate()


def sleeper(found: list[subprocess.Popen[bytes]], **variables: str) -> str:
    """Start a process with these variables alone; return its id."""
    program = "import sys, time; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE
    )
    found.append(process)
    assert process.stdout is not None
    process.stdout.readline()  # by now it is the new program, with its own environment
    return str(process.pid)


def seen(*frames: Frame, source: str = "", is_blocked: bool = True) -> SeenWait:
    """Return what a blocked main thread with these frames, innermost first, is in."""
    return seen_wait(frames, source, size=4, at_s=1.0, is_blocked=is_blocked)


# Which rank a process is


def test_a_launchers_variables_say_which_rank_a_process_is(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    """As torchrun sets them; the job may have more ranks than are here."""
    given = {"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
    pids = [sleeper(sleepers, RANK=str(rank), **given) for rank in (2, 0)]
    job = find_job(pids)
    assert (job.pids, job.size, job.launcher) == (
        {0: int(pids[1]), 2: int(pids[0])},
        4,
        "torchrun",
    )


def test_who_starts_processes_by_hand_can_say_their_ranks(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    """Their environment says nothing."""
    pids = [sleeper(sleepers), sleeper(sleepers)]
    job = find_job([f"1={pids[0]}", f"0={pids[1]}"])
    assert (job.pids, job.size) == ({0: int(pids[1]), 1: int(pids[0])}, 2)


def test_a_process_without_a_rank_is_refused_with_what_to_type(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    """Its place in the list is no rank."""
    with pytest.raises(MultihostError, match="does not say which rank") as caught:
        find_job([sleeper(sleepers)])
    assert "0=PID" in caught.value.remedy


def test_two_processes_of_one_rank_are_refused(sleepers: list[subprocess.Popen[bytes]]) -> None:
    """A data loader's worker has the variables of its rank."""
    pids = [sleeper(sleepers, RANK="0", WORLD_SIZE="2") for _ in range(2)]
    with pytest.raises(MultihostError, match="not the ranks of one job"):
        find_job(pids)


@pytest.mark.parametrize("form", ["0={0} 5={0}", "{0} {0}", "0={0} {0}"])
def test_a_process_that_is_named_twice_is_refused(
    form: str, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    """One process cannot be two ranks, whoever says which."""
    pid = sleeper(sleepers)
    with pytest.raises(MultihostError, match=f"process {pid} is named twice"):
        find_job(form.format(pid).split())


def test_a_process_that_is_gone_is_told() -> None:
    """Process ids are typed by hand."""
    with pytest.raises(MultihostError, match="no process"):
        find_job([str(2**22 + 1)])


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is needed")
def test_rights_that_are_missing_are_named() -> None:
    """A user who is not root looks at a process of root's."""
    program = (
        "import os\nfrom pytest_multihost.extensions.live.processes import find_job\n"
        "os.setuid(65534)\n"
        "find_job(['1'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "It belongs to root" in done.stderr
    assert "sudo " in done.stderr


# What frames show


@pytest.mark.parametrize("name", ["all_reduce", "barrier", "broadcast", "all_gather_object"])
def test_a_function_of_torch_is_a_collective_at_the_users_line(name: str) -> None:
    """The outermost counts: all_gather_object calls all_gather."""
    inner = Frame(TORCH, 3000, "all_gather")
    found = seen(inner, Frame(TORCH, 2000, name), Frame(f"{SITE}/x/wrap.py", 1, "wrap"), USER)
    assert found.operation is not None
    assert (found.operation.name, found.operation.kind) == (name, "collective")
    assert found.operation.frame == USER


def test_a_send_waits_for_one_other_rank() -> None:
    """Which one is not seen."""
    found = seen(Frame(TORCH, 2700, "send"), USER)
    assert found.operation is not None
    assert (found.operation.kind, found.operation.peer) == ("transfer", None)


def test_a_users_function_with_the_name_of_a_collective_is_none() -> None:
    """Only torch's file has torch's functions."""
    assert seen(Frame("/job/train.py", 3, "all_reduce")) == SeenWait()


def test_a_line_that_waits_for_work_is_a_collective() -> None:
    """The wait is C++, which has no frame of Python's."""
    found = seen(USER, source="work.wait()")
    assert found.operation is not None
    assert found.operation.name == "work.wait"


def test_a_line_that_waits_for_an_event_is_none() -> None:
    """Python's own threading is on top of it."""
    wait = Frame("/usr/lib/python3.12/threading.py", 359, "wait")
    assert seen(wait, USER, source="event.wait()").operation is None


def test_a_thread_that_is_blocked_in_a_runtime_is_unclear() -> None:
    """A backward pass waits for its all_reduce in C++: the rank must not be called late."""
    backward = Frame(f"{SITE}/torch/autograd/graph.py", 823, "_engine_run_backward")
    assert seen(backward, USER).is_unclear
    assert not seen(backward, USER, is_blocked=False).is_unclear


def test_a_rank_whose_stack_could_not_be_read_is_unclear() -> None:
    """Nothing is known of it."""
    assert seen().is_unclear


# What it was called with


def called(
    name: str, own: dict[str, str], args: str = "(<Tensor at 0x7f>)", kwargs: str = "{}"
) -> Operation:
    """Return the operation of a call of torch's, with the variables that its frames have."""
    frames = (Frame(TORCH, 3000, name), LOGGED, USER)
    found = seen_operation(
        frames, (own, {"args": args, "kwargs": kwargs}, {}), size=4, at_s=1.0, thread=7
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "variable"), [("send", "dst"), ("recv", "src")])
def test_the_peer_of_a_transfer_is_its_argument(name: str, variable: str) -> None:
    """Nobody else is waited for."""
    assert called(name, {variable: "2", "tag": "0"}).peer == 2


def test_a_receive_from_anybody_has_no_peer() -> None:
    """Its source is None."""
    assert called("recv", {"src": "None"}).peer is None


def test_the_root_of_a_broadcast_is_its_argument() -> None:
    """Ranks that believe in different roots can never meet."""
    assert (called("broadcast", {"src": "3"}).root, called("all_reduce", {}).root) == (3, None)


def test_a_collective_without_a_group_is_of_all_ranks() -> None:
    """Its caller has given none, or None."""
    assert called("all_reduce", {"group": "<ProcessGroup at 0x7f>"}).has_members
    assert called("all_reduce", {}, kwargs='{"group": None}').has_members


def test_a_group_that_was_given_is_not_known() -> None:
    """It is not the default one, and its calls are not compared with others of other groups."""
    given = called("all_reduce", {}, kwargs='{"group": <ProcessGroup at 0x7f>}')
    other = called("barrier", {}, args="(<ProcessGroup at 0x7f>)")
    assert not given.has_members
    assert len({given.place, other.place, called("all_reduce", {}).place}) == 3


def test_arguments_that_are_cut_off_tell_no_group() -> None:
    """One could be behind the dots."""
    assert not called("all_gather", {}, args="([<Tensor at 0x7f>, ...").has_members


def test_the_members_of_a_new_group_are_its_argument() -> None:
    """Until all ranks meet at its end."""
    assert called("new_group", {"ranks": "[0, 2]"}).group == (0, 2)


def test_the_thread_of_an_operation_is_kept() -> None:
    """It need not be the main one."""
    assert called("barrier", {}).thread == 7


# Which groups are two


GROUP_A, GROUP_B = (
    f"<torch._C._distributed_c10d.ProcessGroup at 0x7f{each}>" for each in ("0a", "0b")
)


def in_group(name: str, group: str, function: str = "step", **callers: str) -> Operation:
    """Return a collective in a group that its caller has in some variables."""
    caller = Frame("/job/train.py", 17, function)
    values = ({}, {"args": "(<Tensor at 0x7f>)", "kwargs": f'{{"group": {group}}}'}, callers)
    frames = (Frame(TORCH, 3000, name), LOGGED, caller)
    found = seen_operation(frames, values, size=2, at_s=1.0)
    assert found is not None
    return found


def judged(*operations: Operation) -> Cause:
    """Return why ranks hang that are in these operations."""
    states = [stands(rank, each, label="BLOCKED") for rank, each in enumerate(operations)]
    return find_causes(states)[0]


def of_all(name: str, size: int = 2) -> Operation:
    """Return a collective of all ranks."""
    return replace(called(name, {}), group=tuple(range(size)))


def test_a_group_is_known_by_the_variable_that_holds_it() -> None:
    """If exactly one does."""
    both = {"a": GROUP_A, "b": GROUP_B}
    assert in_group("all_reduce", GROUP_A, **both).detail == "a"
    assert in_group("all_reduce", GROUP_A, **both, mine=GROUP_A).detail == ""
    assert in_group("all_reduce", GROUP_A).detail == ""


def test_two_groups_in_opposite_orders_are_a_deadlock() -> None:
    """The variables of one function are different: each rank is in a group of its own."""
    both = {"a": GROUP_A, "b": GROUP_B}
    cause = judged(in_group("all_reduce", GROUP_A, **both), in_group("all_reduce", GROUP_B, **both))
    assert (cause.kind, cause.culprits, cause.cycle) == ("deadlock", (), (0, 1))


def test_variables_of_two_functions_tell_nothing() -> None:
    """An innocent: a group has another name in each."""
    cause = judged(
        in_group("all_reduce", GROUP_A, "first", a=GROUP_A),
        in_group("all_reduce", GROUP_A, "second", b=GROUP_A),
    )
    assert cause.kind == "transport"


def test_a_group_against_all_ranks_is_a_deadlock_without_culprits() -> None:
    """Who of the group is missing there cannot be seen."""
    cause = judged(in_group("all_reduce", GROUP_A), of_all("barrier"))
    assert (cause.kind, cause.culprits) == ("deadlock", ())


def test_the_same_function_of_a_group_and_of_all_ranks_may_match() -> None:
    """An innocent: somebody passes the default group as well."""
    cause = judged(in_group("all_reduce", GROUP_A), of_all("all_reduce"))
    assert cause.kind == "transport"


def test_a_wait_for_any_work_may_be_the_barrier() -> None:
    """An innocent: the barrier was begun earlier, and its work is waited for."""
    wait = seen(USER, source="work.wait()").operation
    assert wait is not None
    assert judged(replace(wait, group=(0, 1)), of_all("barrier")).kind == "transport"


# A backward pass

REDUCED = builders.operation(has_members=False, sequence=0, source="native-frames")


def test_ddps_reducer_against_a_barrier_is_a_likely_mismatch() -> None:
    """The reducer's group is likely the default one: the smaller side is to blame."""
    cause = judged(as_of_probably_all(REDUCED), as_of_probably_all(REDUCED), of_all("barrier", 3))
    assert (cause.kind, cause.confidence, cause.culprits) == ("mismatch", "likely", (2,))


def test_a_backward_pass_of_all_ranks_is_no_mismatch() -> None:
    """An innocent: all of them reduce."""
    assert judged(*[as_of_probably_all(REDUCED)] * 3).kind == "transport"


def test_only_torchs_function_is_a_backward_pass() -> None:
    """A user's may have any name."""
    assert is_in_ddp([Frame(f"{SITE}/torch/autograd/graph.py", 823, "_engine_run_backward")])
    assert not is_in_ddp([Frame("/job/graph.py", 1, "_engine_run_backward")])


# Who is torchrun


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (("-m", "torch.distributed.run", "train.py"), True),
        (("/venv/bin/torchrun", "train.py"), True),
        (("-u", "/venv/bin/torchrun", "train.py"), True),
        (("train.py", "--launcher", "torchrun"), False),
        (("-m", "train", "torch.distributed.run"), False),
        (("-c", "import torchrun"), False),
        ((), False),
    ],
)
def test_torchrun_is_known_by_its_command_line(words: tuple[str, ...], *, is_one: bool) -> None:
    """A program of the user's may have its name among its arguments."""
    assert is_torchrun(["python", *words]) is is_one
