"""What logs say: real ones of torchrun and jax, and lines of watchdogs, barriers and stacks."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from job_logs import blamed, judged, observed, said, signal, status, timeout, traceback

from pytest_multihost.core.command import page_of
from pytest_multihost.extensions.logs.lines import normalised

REAL = Path(__file__).parent / "real"

TRUTH = {
    "hang": ("straggler", (1,)),
    "early_return": ("straggler", (1,)),
    "monitored": ("straggler", (2,)),
    "monitored_all": ("straggler", (1, 2)),
    "mismatch": ("mismatch", (1,)),
    "shapes": ("mismatch", (1,)),
    "raise": ("raised", (1,)),
    "late_raise": ("raised", (1,)),
    "keyerror0": ("raised", (0,)),
    "kill": ("died", (1,)),
    "exit3": ("died", (2,)),
    "segv": ("died", (0,)),
    "raise_all": ("failed", ()),
    "healthy": ("passed", ()),
    "caught": ("passed", ()),
    "retry": ("passed", ()),
    "talks": ("passed", ()),
    "j_barrier": ("straggler", (1,)),
    "j_raise": ("raised", (1,)),
    "j_kill": ("died", (1,)),
    "j_healthy": ("passed", ()),
    "slurm_exit": ("died", (1,)),
    "slurm_segv": ("died", (0,)),
    "slurm_oom": ("died", (2,)),
    "slurm_limit": ("passed", ()),
    "slurm_fine": ("passed", ()),
    "oom": ("died", (2,)),
    "logdir_key": ("raised", (2,)),
    "logdir_key.console": ("raised", (2,)),
    "logdir_hang": ("straggler", (1,)),
    "logdir_hang.console": ("straggler", (1,)),
    "stacks": ("straggler", (1,)),
    "barrier": ("mismatch", (0,)),
    "group": ("unknown", ()),
    "restart_fails": ("transport", ()),
    "restart_refused": ("transport", ()),
    "fine_restart": ("passed", ()),
    "fine_words": ("passed", ()),
    "fine_stacks": ("passed", ()),
    "fine_dir": ("passed", ()),
    "fine_dir.console": ("passed", ()),
    "j_late": ("unknown", ()),
    "j_exit": ("died", (0,)),
    "j_fine": ("passed", ()),
}
"""Runs of three ranks or so: which rank was made to sleep, raise, die or enter something else.

In j_late, the missing task is in no line. The second starts of restart_fails and restart_refused
failed by chance: their ranks did not connect.
"""


def real(name: str) -> Path:
    """Return a log of a real run, a file or a folder of torchrun's."""
    return REAL / name if (REAL / name).is_dir() else REAL / f"{name}.log"


@pytest.mark.claim("explain a hang of which I have only the log")
@pytest.mark.parametrize("name", TRUTH)
def test_a_real_log_names_the_rank_that_was_made_to_misbehave(name: str) -> None:
    """Torchrun's and srun's prefixes stand before the lines; nobody is named in sound logs."""
    assert blamed(judged(real(name))) == TRUTH[name]


def kubernetes(line: str) -> str:
    """Return a line as kubectl prints it."""
    return f"\x1b[32m[pod/job-0/main]\x1b[0m 2026-11-29T10:00:00.123456789Z {line}"


@pytest.mark.parametrize("name", ["hang", "kill", "monitored", "mismatch", "caught"])
@pytest.mark.parametrize(
    "changed",
    [
        lambda line: f"\x1b[36m{line}\x1b[0m",
        lambda line: f"{line}\r",
        lambda line: f" 10%|#   | 1/9\r{line}",
        lambda line: f"2026-11-29 10:00:00,123 {line}",
        kubernetes,
    ],
    ids=["colours", "CRLF", "bar", "time", "kubernetes"],
)
def test_what_others_put_around_lines_changes_nothing(
    name: str, changed: Callable[[str], str], tmp_path: Path
) -> None:
    """Colours, carriage returns, bars of progress, time stamps."""
    lines = (REAL / f"{name}.log").read_text().splitlines()
    assert blamed(said("\n".join(map(changed, lines)) + "\n", tmp_path)) == TRUTH[name]


def test_files_of_ranks_a_folder_a_compressed_file_and_standard_input_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file a rank, as torchrun writes them to its folder."""
    text = (REAL / "hang.log").read_text()
    packed = tmp_path / "job.log.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert blamed(judged(packed)) == TRUTH["hang"]
    folder = tmp_path / "logs" / "none_1" / "attempt_0"
    for rank in (0, 1, 2):
        own = folder / str(rank) / "stderr.log"
        own.parent.mkdir(parents=True)
        lines = [each for each in text.splitlines() if f"[rank{rank}]:" in each]
        own.write_text("".join(f"{each.split(']: ', 1)[1]}\n" for each in lines))
    assert blamed(judged(tmp_path / "logs")) == TRUTH["hang"]
    files = [folder / str(rank) / "stderr.log" for rank in (0, 1, 2)]
    assert blamed(judged(*files))[0] != "raised"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert blamed(judged(Path("-"))) == TRUTH["hang"]


# Lines of NCCL's watchdog


GROUP = "ID 2 PG GUID 9"

WATCHDOG = {
    "other operations": (
        timeout(1, 7) + timeout(2, 7) + timeout(3, 7, "BROADCAST") + status(3, 7, 7),
        ("mismatch", (3,)),
    ),
    "other sizes": (
        timeout(0, 7) + timeout(1, 7) + timeout(2, 7, sizes=(9, 9)),
        ("mismatch", (2,)),
    ),
    "sizes that may differ": (
        timeout(0, 7, "ALLTOALL_BASE", (8, 4)) + timeout(1, 7, "ALLTOALL_BASE", (2, 6)),
        ("transport", ()),
    ),
    "batches of transfers": (
        timeout(4, 7, "COALESCED", (8, 8))
        + status(4, 7, 7, GROUP)
        + timeout(6, 7, "COALESCED", (2, 2))
        + status(6, 7, 7, GROUP),
        ("unknown", ()),
    ),
    "one had nothing open": (
        timeout(0, 7) + timeout(1, 7) + signal(2, " rank 0", 6),
        ("straggler", (2,)),
    ),
    "one only got the signal": (
        timeout(1, 22) + status(1, 22, 22) + observed(0),
        ("straggler", (0,)),
    ),
    "one got the signal, and others differ": (
        timeout(1, 22) + timeout(2, 22, "BROADCAST") + timeout(3, 22) + observed(0),
        ("mismatch", (2,)),
    ),
    "one had nothing open, and only it has a line": (
        signal(5, " rank 2", 136),
        ("straggler", (5,)),
    ),
    "one has no line": (timeout(1, 4) + timeout(2, 4) + timeout(3, 4), ("straggler", (0,))),
    "most have no line": (timeout(3, 4) + timeout(7, 4), ("unknown", ())),
    "one line": (timeout(0, 4), ("unknown", ())),
    "all joined": (
        "".join(
            timeout(r, 9, "_REDUCE_SCATTER_BASE", (32, 8)) + status(r, 9, 12, GROUP)
            for r in range(4)
        ),
        ("transport", ()),
    ),
    "another group, of unknown members": (
        signal(3, " rank 6", 51)
        + timeout(5, 1, "COALESCED", (0, 0)).replace("[Rank 5]", "[Rank 2]"),
        ("unknown", ()),
    ),
    "a device holds it": (
        timeout(0, 8)
        + status(0, 8, 9)
        + timeout(1, 8)
        + status(1, 8, 9)
        + timeout(2, 7)
        + status(2, 7, 9),
        ("straggler", (2,)),
    ),
    "parted earlier": (
        timeout(0, 7, "_REDUCE_SCATTER_BASE")
        + status(0, 7, 7)
        + timeout(1, 9, "_ALLGATHER_BASE")
        + status(1, 9, 9),
        ("mismatch", (0, 1)),
    ),
    "a raise explains the wait": (
        traceback(2, "ValueError: no such shard", ("/job/train.py", 3, "step"))
        + timeout(0, 7)
        + timeout(1, 7),
        ("raised", (2,)),
    ),
    "a raise behind a timeout explains nothing": (
        timeout(0, 7)
        + timeout(1, 7)
        + timeout(2, 7, "BROADCAST")
        + traceback(2, "ValueError: the result has no shape", ("/job/train.py", 3, "step")),
        ("mismatch", (2,)),
    ),
}


@pytest.mark.parametrize("name", WATCHDOG)
def test_lines_of_the_watchdog_name_the_rank_that_they_show(name: str, tmp_path: Path) -> None:
    """And nobody where the lines do not show who is missing."""
    text, truth = WATCHDOG[name]
    assert blamed(said(text, tmp_path)) == truth


def test_a_headline_says_under_which_condition_it_is_true(tmp_path: Path) -> None:
    """A rank without a line is missing only if the log is whole and the world has such a rank."""
    found = said(WATCHDOG["one has no line"][0], tmp_path).diagnosis
    assert found is not None
    assert found.summary.endswith(
        "; true if the world has 4 ranks and the log is whole: rank 0 has no line of it"
    )
    assert found.confidence == "likely"


def test_evidence_names_the_line_of_the_log_and_the_page_the_way_to_know_more(
    tmp_path: Path,
) -> None:
    """Two variables for the flight recorder, or `multihost attach`."""
    page = page_of(said(f"epoch 1\n{WATCHDOG['other sizes'][0]}", tmp_path), "job.log")
    assert "(job.log:2 and 1 more)" in page
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in page
    assert "multihost attach" in page_of(judged(REAL / "hang.log"), "hang.log")


# Other readers

RAS = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  {} ranks have launched up to operation 640
  {} ranks have launched up to operation 641
  Rank 2 -- GPU 4 managed by process 323032 on node NODE
  Rank 3 -- GPU 5 managed by process 323033 on node NODE
"""


def test_ranks_that_ras_lists_are_not_blamed_if_they_are_ahead(tmp_path: Path) -> None:
    """It lists the smaller number of ranks."""
    assert blamed(said(RAS.format(4, 2), tmp_path)) == ("straggler", (0, 1, 4, 5))
    assert blamed(said(RAS.format(2, 4), tmp_path)) == ("straggler", (2, 3))


IN_REDUCE = """Process {}: python job.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3075)
    train (/home/me/job.py:12)
"""
IN_DATA = """Process 11: python job.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 11 (active): "MainThread"
    read_shard (/home/me/data.py:5)
    train (/home/me/job.py:11)
"""


def test_stacks_of_all_ranks_show_who_is_not_in_the_operation(tmp_path: Path) -> None:
    """Of one moment, so a slow rank looks alike: the page asks, and says its conditions."""
    found = said(IN_REDUCE.format(10, 10) + IN_DATA + IN_REDUCE.format(12, 12), tmp_path)
    assert blamed(found) == ("straggler", (1,))
    page = page_of(found, "stacks.txt")
    assert page.startswith("HUNG?  rank 1 never reached all_reduce")
    assert "true if" in page
    assert "data.py:5" in page


def test_a_pasted_stack_under_a_heading_is_of_the_ranks_that_it_names(tmp_path: Path) -> None:
    """As people paste them to issues."""
    pasted = (
        "TP0 stuck forever in:\nall_reduce (torch/distributed/distributed_c10d.py:3075)\n"
        "  step (cache.py:196)\n  loop (run.py:7)\nTP1-3:\n"
        "broadcast (torch/distributed/distributed_c10d.py:2974)\n  get (receive.py:18)\n"
        "  loop (run.py:5)\n"
    )
    assert blamed(said(pasted, tmp_path)) == ("mismatch", (0,))


SRUN = (
    "srun: error: node3: task 2: Out Of Memory\nslurmstepd: error: Detected 1 oom_kill event in\n"
)
LOST = "".join(
    f"{rank}: Traceback (most recent call last):\n"
    f'{rank}:   File "/job/train.py", line 3, in step\n'
    f"{rank}: RuntimeError: [/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1967\n"
    for rank in (0, 1)
)


def test_slurm_says_which_task_lacked_memory(tmp_path: Path) -> None:
    """The others have only lost their connections."""
    assert blamed(said(LOST + SRUN, tmp_path)) == ("died", (2,))


def test_an_attempt_that_torchrun_repeats_is_left_out(tmp_path: Path) -> None:
    """The ranks that failed are gone, and the new ones may end well."""
    again = "[default0]: Worker group FAILED. 2/3 attempts left; will restart worker group\ndone\n"
    assert blamed(said((REAL / "raise.log").read_text() + again, tmp_path)) == ("passed", ())


@pytest.mark.parametrize(
    ("line", "plain", "rank"),
    [
        ("[default1]:[rank5]:[E] x", "[E] x", 5),
        ("  3: x", "x", 3),
        ("[1,7]<stderr>: x", "x", 7),
        ("\x1b[36m(TrainWorker pid=12, ip=10.0.0.1)\x1b[0m x", "x", None),
        ("2026-11-29T10:00:00Z [rank: 2] x", "x", 2),
        ("x [rank1]: y", "x [rank1]: y", None),
    ],
)
def test_prefixes_are_taken_off_and_name_the_rank(line: str, plain: str, rank: int | None) -> None:
    """Those of torchrun, Slurm, MPI, Ray, Lightning."""
    text, found, _, _ = normalised(line)
    assert (text, found) == (plain, rank)


def test_no_text_of_a_log_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    """Nor a command of a CI system."""
    text = (REAL / "raise.log").read_text().replace("no such", "::error::\x1b[2J\u202eno such")
    page = page_of(said(text, tmp_path), "job.log")
    assert not re.search("[\x1b\u202e]|^::", page, re.MULTILINE)
