"""Each reader: the forms that its text has, and innocents that look guilty."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from pathlib import Path

import pytest
from job_logs import (
    blamed,
    call_stack,
    failures,
    judged,
    observed,
    said,
    signal,
    timeout,
    traceback,
)

from pytest_multihost.core.command import page_of
from pytest_multihost.extensions.logs import progress, readers
from pytest_multihost.extensions.logs.lines import SHORT

WAITING = timeout(0, 7) + timeout(1, 7)
LASTS = "Last enqueued NCCL work: 6, last completed NCCL work: 6."
DUMPS = "will start to dump the debug info."
VERSIONS = {
    "2.3": f"[PG 0 Rank 2] Received a global timeout from another rank and {DUMPS} {LASTS}",
    "2.4": f"[PG 0 (default_pg) Rank 2] Received a dump signal from rank 0 and {DUMPS} {LASTS}",
    "2.4, without counts": "[PG 0 (default_pg) Rank 2] First PG on this rank detecting the dump"
    " signal through tcpstore.",
    "2.5": signal(2, " rank 0", 6).partition("] ")[2].strip(),
    "2.6": observed(2).partition("] ")[2].strip(),
    "2.13": "[PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective"
    " timeout from  rank 0. PG status: last enqueued work: 6, last started work: 6 (ALLREDUCE),"
    " last completed work: 6",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_says_that_a_rank_had_nothing_open(version: str, tmp_path: Path) -> None:
    """It got the signal of a rank that waits in the next collective."""
    line = f"[rank2]:[E909 09:55:29.3 ProcessGroupNCCL.cpp:1743] {VERSIONS[version]}\n"
    assert blamed(said(WAITING + line, tmp_path)) == ("straggler", (2,))


@pytest.mark.parametrize("work", ["WorkNCCL", "WorkXCCL", "WorkHCCL"])
def test_lines_without_a_prefix_name_ranks_of_the_world_under_a_condition(
    work: str, tmp_path: Path
) -> None:
    """As torch 2.1 prints them, and backends of other vendors."""
    line = (
        "[E ProcessGroupNCCL.cpp:474] [Rank {}] Watchdog caught collective operation timeout:"
        f" {work}(SeqNum=9, OpType={{}}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 6 ms\n"
    )
    lines = [(0, "ALLREDUCE"), (1, "ALLREDUCE"), (2, "BROADCAST")]
    found = said("".join(line.format(*each) for each in lines), tmp_path)
    assert blamed(found) == ("mismatch", (2,))
    assert found.diagnosis is not None
    assert "if the lines number the ranks as the world does" in found.diagnosis.summary


def started(number: int, launched: str, last: str) -> str:
    """Return the status of ranks 0 to 3 with the started work of torch 2.13."""
    return "".join(
        timeout(rank, number, "_REDUCE_SCATTER_BASE", (32, 8))
        + f"[rank{rank}]:[E909 ProcessGroupNCCL.cpp:2395] [PG ID 0 PG GUID 0(default_pg) Rank"
        f" {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last"
        f" enqueued work: {launched}, last started work: 19 (_ALLGATHER_BASE), last completed"
        f" work: {last}\n"
        for rank in range(4)
    )


INNOCENT = {
    "it told its status long before": (
        timeout(3, 4)
        + timeout(7, 4)
        + "[rank1]:[I909 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank 1] NCCL"
        " Work update periodically: last enqueued NCCL work: 2, last completed NCCL work: 2.\n",
        "unknown",
    ),
    "all have joined, and started a later one": (started(18, "39", "17"), "transport"),
    "it raised when all had given up": (
        WAITING + timeout(2, 7) + traceback(1, "ValueError: x", ("/job/a.py", 3, "f")),
        "transport",
    ),
    "it ended when all had given up": (
        WAITING + timeout(2, 7) + failures((2, 1), [(0, -6), (1, -6)]),
        "transport",
    ),
    "Slurm ended it when others had given up": (
        timeout(3, 4) + timeout(7, 4) + "srun: error: n1: task 5: Exited with exit code 1\n",
        "unknown",
    ),
    "the summary lists those whom torchrun ended": (
        failures((0, -15), [(1, -15), (2, -15)]),
        "passed",
    ),
    "its call is in another line": (
        "".join(timeout(rank, 9, "_ALLGATHER_BASE", (1, 3)) for rank in (0, 1, 2))
        + call_stack(0, "all_gather from /job/model.py:5", "main from /job/a.py:3")
        + call_stack(1, "all_gather from /job/other.py:9", "main from /job/a.py:3"),
        "transport",
    ),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_nobody_is_named_by_what_only_looks_like_guilt(name: str, tmp_path: Path) -> None:
    """A status of another time, what follows a timeout, what a launcher ended."""
    text, kind = INNOCENT[name]
    assert blamed(said(text, tmp_path)) == (kind, ())


def test_a_process_that_lacked_memory_counts_although_others_gave_up_first(tmp_path: Path) -> None:
    """They may have waited for it."""
    text = WAITING + "srun: error: n1: task 2: Out Of Memory\n"
    assert blamed(said(text, tmp_path)) == ("died", (2,))


def test_the_end_of_a_job_by_slurm_is_named_where_nobody_hangs(tmp_path: Path) -> None:
    """Also in a log that is too long to be read line by line."""
    text = "x\n" * SHORT + "slurmstepd-node3: error: *** JOB 7 ON node3 CANCELLED AT 2026-11-29T14"
    found = said(f"{text}:57:59 DUE TO TIME LIMIT ***\n", tmp_path)
    assert blamed(found) == ("passed", ())
    assert "CANCELLED AT 2026-11-29T14:57:59 DUE TO TIME LIMIT" in str(found.finding.reason)


def test_the_kernel_names_what_it_killed_for_memory(tmp_path: Path) -> None:
    """A cgroup's limit has other words than that of the machine."""
    text = "x\n" * SHORT + "[44.9] Memory cgroup out of memory: Killed process 602 (python)\n"
    assert "out of memory: process 602 (python)" in str(said(text, tmp_path).finding.reason)


def test_the_stack_of_a_call_gives_the_line_of_code(tmp_path: Path) -> None:
    """The flight recorder prints it under the timeout."""
    frames = ("all_reduce from /venv/site-packages/torch/distributed/distributed_c10d.py:306",)
    text = WAITING + call_stack(0, *frames, "step from /job/train.py:12")
    page = page_of(said(text, tmp_path), "job.log")
    assert "job/train.py:12 step" in page
    assert "TORCH_FR_BUFFER_SIZE" not in page


def test_error_files_of_torchrun_tell_the_exception(tmp_path: Path) -> None:
    """Of a folder that has nothing else."""
    for rank, error in enumerate(('ValueError: no "shard"', LOST)):
        text = f'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\n{error}\n'
        told = {"message": error, "extraInfo": {"py_callstack": text, "timestamp": "1"}}
        path = tmp_path / "none_1" / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"message": told}))
    found = judged(tmp_path)
    assert blamed(found) == ("raised", (0,))
    assert 'no "shard"' in page_of(found, "logs")


def unhealthy(*ranks: int) -> str:
    """Return what ranks of jax print when heartbeats of rank 8 have not come."""
    fatal = (
        "F0224 19:21:00.1 3133 client.h:77] Terminating process because the JAX distributed service"
        " detected fatal errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy"
        " (stopped sending heartbeats):\n{0}: /job:jax_worker/replica:0/task:8\n"
        "{0}: The tasks have crashed.\n"
    )
    return "".join(f"{rank}: {fatal.format(rank)}" for rank in ranks)


@pytest.mark.parametrize(
    ("ranks", "truth", "words"),
    [
        ((0, 1), ("died", (8,)), "its own log shows whether it is gone"),
        ((0, 1, 8), ("unknown", ()), "rank 8 was alive"),
    ],
)
def test_a_rank_that_reports_its_own_lost_heartbeats_has_not_crashed(
    ranks: tuple[int, ...], truth: tuple[str, tuple[int, ...]], words: str, tmp_path: Path
) -> None:
    """Jax's service says so of any task whose heartbeats were held up."""
    found = said(unhealthy(*ranks), tmp_path)
    assert blamed(found) == truth
    assert words in page_of(found, "logs").replace("\n              ", " ")


def test_all_tasks_that_a_barrier_names_are_read(tmp_path: Path) -> None:
    """One a line, up to twenty."""
    late = [6, 0, 4, 5, 2, 3, 7, 1, 12, 11, 10, 9, 14]
    text = (
        "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: save.0.1. This usually happens"
        " because a task triggered the barrier too early or too slowly.\n# of tasks that reached"
        " the barrier: 3/16.\nThe first task at the barrier: /job:x/replica:0/task:13. Some"
        " timed out task names:\n" + "".join(f"/job:jax_worker/replica:0/task:{n}\n" for n in late)
    )
    assert blamed(said(text, tmp_path)) == ("straggler", tuple(sorted(late)))


FAILED = (
    "E1129 15:00:44.6 3612 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode:"
    " 1) local_rank: 1 (pid: 3808) of binary: /venv/bin/python\n"
)
LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(("lines", "truth"), [(4, ("raised", (1,))), (40, ("passed", ()))])
def test_ranks_that_go_on_behind_a_failure_have_been_started_again(
    lines: int, truth: tuple[str, tuple[int, ...]], tmp_path: Path
) -> None:
    """Torchrun does not say so by itself; a few lines are those that were on their way."""
    text = (
        traceback(1, "ValueError: x", ("/job/a.py", 3, "f"))
        + traceback(0, LOST, ("/job/a.py", 9, "f"))
        + FAILED
        + "".join(f"[default0]:step {n}\n" for n in range(lines))
    )
    assert blamed(said(text, tmp_path)) == truth


@pytest.mark.parametrize(
    ("root", "headline"),
    [
        (None, "rank 0 raised ValueError: x; true if the ranks failed in the order of their logs"),
        (1, "rank 1 raised KeyError: y"),
    ],
)
def test_failures_in_several_files_have_no_order_but_torchruns(
    root: int | None, headline: str, tmp_path: Path
) -> None:
    """The headline takes the one that torchrun saw first, or says what must hold."""
    calls = (("/job/a.py", 5, "g"), (f"/v/site-packages/{DISTRIBUTED}", 5, "all_reduce"))
    for rank, error in enumerate(("ValueError: x", "KeyError: y", LOST)):
        path = tmp_path / f"rank{rank}.log"
        path.write_text(traceback(rank, error, *calls[: 2 if error == LOST else 1]))
    if root is not None:
        (tmp_path / "console.log").write_text(failures((root, 1), [(0, 1), (2, -15)]))
    assert page_of(judged(tmp_path), "logs").splitlines()[0] == f"FAILED  {headline}"


@pytest.mark.parametrize(
    ("told", "headline"),
    [("[default0]:[rank2]: ready\n", "FAILED  rank 2 raised"), ("", "NOT KNOWN TO HANG")],
)
def test_a_number_on_a_machine_is_no_rank_of_the_job(
    told: str, headline: str, tmp_path: Path
) -> None:
    """Two machines number their ranks alike: one of their lines must say which rank it is."""
    first, second = tmp_path / "node1.log", tmp_path / "node2.log"
    first.write_text("[default0]:epoch 1\n")
    raised = traceback(9, "ValueError: x", ("/job/a.py", 3, "f"))
    end = failures((2, 1)) if told else ""
    second.write_text(told + raised.replace("[rank9]: ", "[default0]:") + end)
    assert page_of(judged(first, second), "logs").startswith(headline)


def test_empty_logs_and_compressed_input_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torchrun makes a stdout.log even if nothing is printed; `cat job.log.gz` is a pipe."""
    import gzip

    (tmp_path / "stdout.log").touch()
    data = gzip.compress((WAITING + observed(2)).encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert blamed(judged(tmp_path / "stdout.log", Path("-"))) == ("straggler", (2,))


def test_long_logs_show_on_a_terminal_how_much_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the line is gone at the end."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.delenv("CI", raising=False)
    times = iter((0.0, 0.1, 1.0, 1.1))
    shown = progress.ProgressLine(4_000_000, lambda: next(times))
    for _ in range(3):
        shown.add("job.log", 1_000_000)
    shown.close()
    text = capsys.readouterr().err
    assert text.count("job.log") == 1
    assert "[##########          ] 2 of 4 MB job.log" in text
    assert text.endswith("\r\x1b[K")


def test_a_process_of_which_ras_has_no_data_is_told_and_no_rank_accused(tmp_path: Path) -> None:
    """The ranks that RAS lists there may be no ranks of the job."""
    text = (
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 60004 on node 10.4.109.13 managing GPU 0\n\n"
    )
    found = said(WAITING + text, tmp_path)
    assert blamed(found) == ("transport", ())
    assert "no data of process 60004 on 10.4.109.13" in page_of(found, "ras")


# Stacks

DISTRIBUTED = "torch/distributed/distributed_c10d.py"


def spied(*frames: str, pid: int = 10, name: str = "MainThread") -> str:
    """Return what `py-spy dump` prints, innermost frame first."""
    lines = "".join(f"    {each}\n" for each in frames)
    return (
        f"Process {pid}: python job.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        f'Thread {pid} (idle): "{name}"\n{lines}'
    )


def ranks(folder: Path, *texts: str) -> tuple[Path, ...]:
    """Write a file for each rank."""
    paths = tuple(folder / f"rank{number}.txt" for number in range(len(texts)))
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


MAIN = "train (/job/train.py:12)"
REDUCE = spied(f"all_reduce ({DISTRIBUTED}:3075)", MAIN)
BARRIER = spied(f"barrier ({DISTRIBUTED}:5356)", MAIN)
ELSEWHERE = spied("read (/job/data.py:5)", MAIN)
BACKWARD = spied("_engine_run_backward (torch/autograd/graph.py:979)", MAIN)
NATIVE = spied(
    "__GI___poll (libc.so.6)",
    "gloo::transport::tcp::UnboundBuffer::waitRecv (unbound_buffer.cc:81)",
    f"all_reduce ({DISTRIBUTED}:3075)",
    MAIN,
)
MEETS = spied("meet (/job/net.py:44)", MAIN)
UNREAD = "Process 11: python job.py\n\nError: Failed to get stack traces\n"
GDB = (
    'Thread 1 (Thread 0x7f (LWP 5) "python"):\n#0  0x00007f8791658967 in __poll (fds=0x7f) at'
    " ../poll.c:29\n#1  0x00007f87916ff592 in gloo::waitRecv () from /lib/libtorch_cpu.so\n"
)
PYSTACK = (
    "Traceback for thread 5 (python) [] (most recent call last):\n"
    '    (Python) File "/job/train.py", line 12, in train\n        step()\n'
    f'    (Python) File "/venv/site-packages/{DISTRIBUTED}", line 3075, in all_reduce\n'
)
FAULT = (
    'Current thread 0x00007f17b7077b80 (most recent call first):\n  File "/job/data.py", line 5 in'
    ' read\n  File "/job/train.py", line 12 in train\n'
)
STACKS = {
    "one is elsewhere": ((REDUCE, ELSEWHERE, REDUCE), ("straggler", (1,))),
    "with native frames": ((NATIVE, ELSEWHERE, NATIVE), ("straggler", (1,))),
    "by several tools": ((PYSTACK, FAULT, REDUCE), ("straggler", (1,))),
    "one receives": (
        (spied(f"recv ({DISTRIBUTED}:2799)", MAIN), ELSEWHERE, BARRIER, BARRIER),
        ("straggler", (1,)),
    ),
    "others are in a backward pass": ((BACKWARD, BACKWARD, BARRIER), ("mismatch", (2,))),
    "one could not be read": ((REDUCE, UNREAD, REDUCE), ("straggler", (1,))),
    "two could not be read": ((REDUCE, UNREAD, UNREAD, REDUCE), ("unknown", ())),
    "one is in a runtime's code": (
        (REDUCE, spied("synchronize (torch/cuda/__init__.py:5)", MAIN), REDUCE),
        ("unknown", ()),
    ),
    "all are in the same call": ((REDUCE, REDUCE, REDUCE), ("transport", ())),
    "only one process": ((REDUCE,), ("unknown", ())),
    "most are in a function of the user's": (
        (MEETS, spied("read (/job/data.py:5)", MAIN), MEETS.replace(":44", ":49")),
        ("straggler", (1,)),
    ),
    "each stage does its own": (
        (MEETS, spied("read (/job/data.py:5)", MAIN), spied("eval (/job/model.py:7)", MAIN)),
        ("passed", ()),
    ),
    "most are in a function, and one could not be read": (
        (MEETS, UNREAD, MEETS),
        ("straggler", (1,)),
    ),
    "all come to the function, one by one": (
        (MEETS, spied("pack (/job/pack.py:9)", "meet (/job/net.py:40)", MAIN), MEETS),
        ("passed", ()),
    ),
    "only native code": ((GDB, GDB), ("passed", ())),
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks_of_ranks_name_the_one_that_is_not_in_the_call(name: str, tmp_path: Path) -> None:
    """And nobody where a stack does not show what its rank waits in."""
    texts, truth = STACKS[name]
    assert blamed(judged(*ranks(tmp_path, *texts))) == truth


@pytest.mark.parametrize(("lines", "kind"), [(2, "straggler"), (20, "passed")])
def test_ranks_that_print_more_have_left_the_stacks_that_they_printed(
    lines: int, kind: str, tmp_path: Path
) -> None:
    """A sound job prints stacks, too, as its developer asks for them."""
    reduce = FAULT.replace(
        '"/job/data.py", line 5 in read', f'"/v/{DISTRIBUTED}", line 3 in all_reduce'
    )
    text = "".join(
        "".join(f"[rank{rank}]: {line}\n" for line in stack.splitlines())
        for rank, stack in enumerate((reduce, FAULT, reduce))
    )
    text += "".join(f"[rank{rank}]: step {n}\n" for n in range(lines) for rank in (0, 1, 2))
    assert blamed(said(text, tmp_path))[0] == kind


@pytest.mark.parametrize(
    ("later", "truth"), [(REDUCE, ("straggler", (1,))), (BARRIER, ("passed", ()))]
)
def test_two_stacks_of_each_rank_show_whether_it_goes_on(
    later: str, truth: tuple[str, tuple[int, ...]], tmp_path: Path
) -> None:
    """A rank that waited for a slow one has left the collective in the second look."""
    ranks(tmp_path, REDUCE, ELSEWHERE, REDUCE)
    for rank, text in enumerate((later, ELSEWHERE, later)):
        (tmp_path / f"rank{rank}_later.txt").write_text(text)
    found = judged(tmp_path)
    assert blamed(found) == truth
    assert ("went on between its stacks" in page_of(found, "stacks")) == (truth[0] == "passed")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        (("Condition.wait (threading.py:327)", "Queue.get (queue.py:171)"), "load.py:7"),
        (("Future.result (concurrent/futures/_base.py:451)",), "load.py:7"),
        (("EpollSelector.select (selectors.py:468)",), "load.py:7"),
        (("get (queue.py:3)",), "queue.py:3"),  # a file of the user's
    ],
)
def test_the_line_of_a_stack_without_folders_is_the_users(
    frames: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    """py-spy leaves out the folders of the standard library and of files of the user's."""
    waits = spied(*frames, "load (load.py:7)", "<module> (train.py:12)")
    page = page_of(judged(*ranks(tmp_path, REDUCE, waits, REDUCE)), "stacks")
    (culprit,) = (each for each in page.splitlines() if "► rank 1" in each)
    assert line in culprit


def test_a_process_that_a_signal_has_stopped_is_told(tmp_path: Path) -> None:
    """py-spy cannot read it, and says why in words of its own."""
    stopped = f"{UNREAD}\nCaused by:\n    0: Failed to suspend process\n    1: unexpected waitpid"
    stopped += " result PtraceEvent(Pid(11), SIGSTOP, 128) to 11\n"
    page = page_of(judged(*ranks(tmp_path, REDUCE, stopped, REDUCE)), "stacks")
    assert "stacks of rank 1: it was stopped by a signal" in page


def test_each_reader_that_is_written_reads() -> None:
    """One that is not in the list would read nothing, and no test would fail."""
    names = [each.name for each in pkgutil.iter_modules(readers.__path__)]
    modules = [importlib.import_module(f"{readers.__name__}.{name}") for name in names]
    written = {id(each) for module in modules for each in vars(module).values() if is_reader(each)}
    assert written == set(map(id, readers.READERS))


def is_reader(value: object) -> bool:
    """Return whether a value is a reader of logs."""
    return isinstance(value, readers.reader.Reader)
