"""Does `multihost attach` name rank and line of jobs in containers, of other Pythons, spawned?

    python benchmarks/attach_jobs.py [--python VERSION=PROGRAM ...] [--root VERSION=DIRECTORY ...]
                                     [--only TEXT] [--json FILE] [--rounds N]
                                     [--hangs | --innocents] [--dumps | --native-dumps]

Starts the jobs of worlds/live_jobs.py: 68 that hang, whose culprits stand at a line marked HERE,
and 44 that do not, each of which is looked at several times. A job is started in one of these ways:

* fork: from a process that has imported torch; its ranks are named RANK=PID
* pidns: the same, in a PID namespace of its own; unshare: by unshare(1), with a /proc of its own
* spawn: by torch.multiprocessing; process: by multiprocessing, the last rank first
* pool, forkserver: as tasks of a pool with one worker more, the last rank first
* torchrun; plain: by hand, with torchrun's variables
* a version of Python: by the program that --python names, or in the directory that --root names, as
  debootstrap makes it; without either, this machine's Python stands in

--dumps reads the stacks of each rank by `py-spy dump` instead, and explains these files by
`multihost explain`; --native-dumps does so with native frames.

A hang is right if exactly its culprits are named, with a marked line of each; where nobody is to
blame, if all marked lines are shown. An innocent is accused if it is said to hang. The time is that
of the whole command; on a busy machine its processor time says more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

import psutil
from attach_corpus import LIMIT_S, PACKAGE, look

JOBS = Path(__file__).resolve().parent / "worlds" / "live_jobs.py"
DUMP = (str(Path(sys.executable).with_name("py-spy")), "dump")
EXPLAIN = (sys.executable, "-m", "pytest_multihost.core.command.main", "explain", "--json")
UP_S, SETTLED_S, SETTLE_S, IDLE_S, BATCH = 180.0, 60.0, 1.0, 0.03, 5
PYTHONS = ("3.8", "3.13", "3.12", "3.10", "3.8", "3.12", "3.13", "3.10", "3.9", "3.8")
"""The Pythons of the jobs that need another one than torch's."""

LATE = ("slept", "locked_itself", "queue", "child", "thread", "pipe", "stopped", "flock", "spun")
OF_TORCH = (
    *(f"torch_{each}" for each in LATE),
    "torch_waited_for_key",
    "torch_received",
    "torch_ddp_met_barrier",
    "torch_groups_in_opposite_orders",
    "torch_gather_met_reduce",
    "torch_group_met_world",
)
OF_PYTHON = (
    "slept",
    "locked_itself",
    "waited_for_queue",
    "waited_for_child",
    "waited_for_thread",
    "waited_for_condition",
    "read_own_pipe",
    "selected_own_socket",
    "locked_a_file",
    "stopped",
)
OF_NEW = (
    "torch_broadcast_of_buffers",
    "torch_group_of_a_loop",
    "torch_last_rank_waits_for_itself",
)
FINE_OF_TORCH = (
    "torch_fine_ddp",
    "torch_fine_ddp_of_a_slow_rank",
    "torch_fine_ddp_with_barriers",
    "torch_fine_groups",
    "torch_fine_saves",
    "torch_fine_computes",
    "torch_fine_sleeps",
    "torch_fine_child",
    "torch_fine_serves",
    "torch_fine_polls",
    "torch_fine_limit",
)
FINE_OF_PYTHON = (
    "fine_sleeps",
    "fine_child",
    "fine_serves",
    "fine_reads_fifo",
    "fine_polls",
    "fine_waits_with_limit",
)
NOBODY = frozenset(
    {"torch_groups_in_opposite_orders", "torch_group_of_a_loop", "torch_group_met_world"}
)
BELOW = ("spawn", "process", "pool", "forkserver")
"""Ways by which a process of Python starts ranks that do not say which they are."""

LAST = frozenset({"torch_ddp_met_barrier"})


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        name: The function of worlds/live_jobs.py.
        how: How it is started.
        is_hang: Whether it hangs.
    """

    name: str
    how: str
    is_hang: bool = True
    size: int = 3

    @property
    def culprits(self) -> list[int]:
        """The ranks that a right verdict names."""
        if self.name in NOBODY:
            return []
        return [self.size - 1 if self.name in LAST else 1]


@dataclass(frozen=True, slots=True)
class Row:
    """What one look at a job has said.

    Attributes:
        word: ok, WRONG, MISSED (nobody named), ACCUSED, or FAILED: it did not start.
        got: Kind, culprits and where.
        is_called_hung: Whether it was said to hang.
        took_s: Time of the command.
        own_s: Its processor time.
    """

    name: str
    how: str
    word: str
    got: str = ""
    is_called_hung: bool = False
    took_s: float = 0.0
    own_s: float = 0.0


def hangs() -> list[Case]:
    """Return the 68 jobs that hang."""
    in_container = [*OF_TORCH[:7], *OF_TORCH[10:13]]
    return [
        *(Case(name, "unshare") for name in (OF_PYTHON[0], "torch_slept")),
        *(Case(name, "pidns") for name in in_container[1:9]),
        *(Case(name, f"python{v}") for name, v in zip(OF_PYTHON, PYTHONS, strict=True)),
        *(Case(name, "spawn") for name in OF_TORCH[:3] + OF_TORCH[11:13]),
        *(Case(name, "process") for name in OF_TORCH[3:6] + OF_TORCH[9:11]),
        *(Case(name, "torchrun") for name in (*OF_TORCH[:2], *OF_TORCH[11:15])),
        *(Case(name, "plain") for name in OF_PYTHON),
        *(Case(name, "fork", size=4) for name in OF_TORCH[:14]),
        *(Case(name, "pool") for name in ("torch_slept", "torch_queue", *OF_NEW[:1])),
        *(Case(name, "forkserver") for name in ("torch_locked_itself", "torch_thread")),
        *(Case(name, "torchrun") for name in OF_NEW),
    ]


def innocents() -> list[Case]:
    """Return the 44 jobs that do not hang."""
    return [
        *(Case(name, "plain", is_hang=False, size=2) for name in FINE_OF_PYTHON),
        *(Case(name, "python3.8", is_hang=False, size=2) for name in FINE_OF_PYTHON),
        *(Case(name, "fork", is_hang=False, size=2) for name in FINE_OF_TORCH),
        *(Case(name, "pidns", is_hang=False, size=2) for name in FINE_OF_TORCH[:6]),
        *(Case(name, "spawn", is_hang=False, size=2) for name in FINE_OF_TORCH[:7]),
        *(Case(name, "torchrun", is_hang=False, size=2) for name in FINE_OF_TORCH[:4]),
        *(Case(name, "pool", is_hang=False, size=2) for name in FINE_OF_TORCH[6:8]),
        *(Case(name, "forkserver", is_hang=False, size=2) for name in FINE_OF_TORCH[8:10]),
    ]


def main() -> int:
    """Run the jobs, print a line for each look and the score; 1 if what is asked is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", action="append", default=[], metavar="VERSION=DIRECTORY")
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PROGRAM")
    parser.add_argument("--only", default="", help="part of `how name`")
    parser.add_argument("--rounds", type=int, default=5, help="looks at each innocent")
    parser.add_argument("--json", default="", help="write the rows here")
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--dumps", dest="dump", action="store_const", const=DUMP)
    by.add_argument("--native-dumps", dest="dump", action="store_const", const=(*DUMP, "--native"))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--hangs", action="store_true")
    which.add_argument("--innocents", action="store_true")
    options = parser.parse_args()
    roots, programs = (
        dict(each.split("=", 1) for each in pairs) for pairs in (options.root, options.python)
    )
    cases = [*([] if options.innocents else hangs()), *([] if options.hangs else innocents())]
    cases = [each for each in cases if options.only in f"{each.how} {each.name}"]
    rows: list[Row] = []
    with Starter(roots, programs) as starter:
        for first in range(0, len(cases), BATCH):
            batch = cases[first : first + BATCH]
            for row in _looked_at(batch, starter, options.rounds, options.dump):
                print(_line(row), flush=True)
                rows.append(row)
                if options.json:
                    text = json.dumps([asdict(each) for each in rows], indent=1)
                    Path(options.json).write_text(text, encoding="utf-8")
    return _summary(rows)


def _looked_at(
    cases: Sequence[Case], starter: Starter, rounds: int, dump: Sequence[str] | None
) -> Iterator[Row]:
    """Start jobs, look at each, and end them."""
    with contextlib.ExitStack() as stack:
        running = [(each, stack.enter_context(starter.job(each))) for each in cases]
        ready = [(each, job, _is_up(each, job)) for each, job in running]
        for each, job, is_up in ready:
            if is_up and each.is_hang and "spun" not in each.name:
                _settle(job)
        time.sleep(SETTLE_S)
        for number in range(rounds):
            for each, job, is_up in ready:
                if not is_up and not number:
                    yield Row(each.name, each.how, "FAILED", job.log())
                elif is_up and (number == 0 or not each.is_hang):
                    yield _look(each, job, dump)


# Jobs


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs.

    Attributes:
        scratch: Where its ranks leave their marks, as seen from here.
        launcher: The process that has started it.
        command: What `multihost attach` is given; None: the ranks' processes.
    """

    scratch: Path
    launcher: int
    command: tuple[str, ...] | None

    def selection(self) -> tuple[str, ...]:
        """Return which job is meant, as arguments of `multihost attach`."""
        if self.command is not None:
            return self.command
        pids = json.loads((self.scratch / "pids").read_text())
        return tuple(f"{rank}={pid}" for rank, pid in enumerate(pids))

    def log(self) -> str:
        """Return the end of what it has printed."""
        log = self.scratch / "log"
        return log.read_text(errors="replace")[-300:] if log.exists() else ""


@dataclass
class Starter:
    """Starts jobs; a process that has imported torch forks most of them.

    Attributes:
        roots: By version, a directory with another Python.
        programs: By version, another Python of this machine.
    """

    roots: Mapping[str, str]
    programs: Mapping[str, str]

    def __enter__(self) -> Self:
        """Start the process that forks."""
        self._server = subprocess.Popen(
            [sys.executable, str(JOBS), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._server.kill()
        self._server.communicate()

    @contextlib.contextmanager
    def job(self, case: Case) -> Iterator[Running]:
        """Start a job; end all its processes later."""
        root = self._root(case)
        with tempfile.TemporaryDirectory(prefix="live-job-", dir=f"{root}/tmp") as folder:
            scratch = Path(folder)
            if case.how in ("fork", "pidns", *BELOW):
                launcher = self._forked(case, scratch)
                is_below = case.how in BELOW
                named = ("--children-of", str(launcher)) if is_below else None
            else:
                program = self.programs.get(_version(case), sys.executable)
                launcher = _started(case, root, program, scratch)
                named = ("--children-of", str(launcher))
            try:
                yield Running(scratch, launcher, named)
            finally:
                _end(launcher)

    def _root(self, case: Case) -> str:
        return self.roots.get(_version(case), "")

    def _forked(self, case: Case, scratch: Path) -> int:
        asked = {
            "name": case.name,
            "how": case.how,
            "size": case.size,
            "port": _free_port(),
            "scratch": str(scratch),
            "method": "spawn" if case.name == "torch_slept" else "fork",
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(asked)}\n".encode())
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


def _version(case: Case) -> str:
    return case.how.removeprefix("python")


def _started(case: Case, root: str, program: str, scratch: Path) -> int:
    """Start a job whose ranks are programs of their own; return the process that starts them."""
    inside = str(scratch).removeprefix(root)
    if case.how == "torchrun":
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            *(str(case.size), str(JOBS), "rank", case.name, inside),
        ]
        return _popen(command, scratch, {})
    rank = f"{program} {JOBS}"
    if root:
        shutil.copyfile(JOBS, scratch / "live_jobs.py")
        rank = f"chroot {root} /usr/bin/python3 {inside}/live_jobs.py"
    ranks = " ".join(map(str, range(case.size)))
    loop = f"for RANK in {ranks}; do {rank} rank {case.name} {inside} & done; wait"
    command = ["sh", "-c", loop]
    if case.how == "unshare":
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *command]
    shared = {"WORLD_SIZE": str(case.size), "RANK": "", "MASTER_ADDR": "127.0.0.1"}
    return _popen(command, scratch, {**shared, "MASTER_PORT": str(_free_port())})


def _popen(command: Sequence[str], scratch: Path, variables: Mapping[str, str]) -> int:
    log: IO[bytes]
    with (scratch / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            env={**_environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ).pid


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE)}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _is_up(case: Case, job: Running) -> bool:
    """Return whether all ranks have met."""
    end_s = time.monotonic() + UP_S
    while time.monotonic() < end_s:
        if all((job.scratch / f"up-{rank}").exists() for rank in range(case.size)):
            return True
        if not psutil.pid_exists(job.launcher):
            return False
        time.sleep(0.05)
    return False


def _settle(job: Running) -> None:
    """Wait until its processes use no processor, or some seconds."""
    end_s, before_s = time.monotonic() + SETTLED_S, float("-inf")
    while time.monotonic() < end_s:
        used_s = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(job.launcher).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used_s += sum(each.cpu_times()[:2])
        if used_s - before_s < IDLE_S:
            return
        before_s = used_s
        time.sleep(0.5)


def _end(launcher: int) -> None:
    """End a job's launcher and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(launcher)
        family = [process, *process.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=10)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(launcher, 0)


# The score


def _look(case: Case, job: Running, dump: Sequence[str] | None) -> Row:
    seen = look(job.selection()) if dump is None else look([str(_dumps(case, job, dump))], EXPLAIN)
    if (verdict := seen.verdict) is None:
        return Row(case.name, case.how, "WRONG", seen.complaint)
    found, is_hung = verdict["diagnosis"], verdict["outcome"] == "hung"
    kind, culprits = (found["kind"], found["culprits"]) if found else ("-", [])
    where = _lines(found, culprits) if found else {}
    got = f"{kind} {culprits} {where}" if found else f"{verdict['reason']}"
    if not case.is_hang:
        word = "ACCUSED" if is_hung else "ok"
    elif found is None or (case.culprits and not culprits):
        word = "MISSED"
    else:
        word = "ok" if culprits == case.culprits and _is_marked(case, where) else "WRONG"
    return Row(case.name, case.how, word, got, is_hung, round(seen.took_s, 2), round(seen.own_s, 2))


def _dumps(case: Case, job: Running, command: Sequence[str]) -> Path:
    """Write the stacks of each rank to a file of a folder, as people do; return the folder."""
    folder = job.scratch / "dumps"
    folder.mkdir(exist_ok=True)
    family = psutil.Process(job.launcher).children(recursive=True)
    for rank in range(case.size):
        own = (job.scratch / f"up-{rank}").read_text()
        pid = next((each.pid for each in family if _inner_pid(each.pid) == own), own)
        with (folder / f"rank{rank}.txt").open("wb") as file:
            subprocess.run([*command, "--pid", str(pid)], stdout=file, stderr=file, check=False)
    return folder


def _inner_pid(pid: int) -> str:
    """Return what a process calls itself in its PID namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(each.split()[-1] for each in lines if each.startswith("NSpid:"))


def _lines(found: Mapping[str, Any], culprits: Sequence[int]) -> dict[int, int]:
    """Return the line of live_jobs.py at which each culprit is; without culprits, all ranks'."""
    return {
        rank: next((e["line"] for e in each["frames"] if e["file"].endswith(JOBS.name)), 0)
        for each in found["groups"]
        for rank in each["ranks"]
        if not culprits or rank in culprits
    }


def _is_marked(case: Case, where: Mapping[int, int]) -> bool:
    lines = JOBS.read_text(encoding="utf-8").splitlines()
    mark = "# HERE" if case.culprits else "# HERE on a tie"
    at = [lines[line - 1] for line in where.values() if line]
    if case.culprits:
        return len(at) == len(case.culprits) and all(mark in each for each in at)
    return len(at) == case.size and all(mark in each for each in at) and len({*at}) > 1


def _line(row: Row) -> str:
    hung = "hung" if row.is_called_hung else "waits"
    return (
        f"{row.word:8}{row.how:11}{row.name:34}{hung:7}{row.took_s:6.2f} s (own {row.own_s:.2f})"
        f"  {row.got}"
    )


def _summary(rows: Sequence[Row]) -> int:
    known = {each.name for each in innocents()}
    fine = [each for each in rows if each.name in known]
    bad = [each for each in rows if each.name not in known]
    right = [each for each in bad if each.word == "ok"]
    soon = [each for each in right if each.took_s <= LIMIT_S]
    accused = [each for each in fine if each.word == "ACCUSED"]
    for group in ("container", "python", "spawn", "other"):
        of = [each for each in bad if _group(each) == group]
        print(f"{group}: {sum(each.word == 'ok' for each in of)} of {len(of)} right")
    print(
        f"hangs: {len(bad)}; right rank and line: {len(right)}, within {LIMIT_S:.0f} s:"
        f" {len(soon)}; innocents: {len({(e.name, e.how) for e in fine})} in {len(fine)} looks;"
        f" accused: {len(accused)}; not started: {sum(each.word == 'FAILED' for each in rows)}"
    )
    took, own = ([getattr(e, name) for e in rows] or [0.0] for name in ("took_s", "own_s"))
    print(
        f"time: median {statistics.median(took):.2f} s, longest {max(took):.2f} s; processor time:"
        f" median {statistics.median(own):.2f} s, most {max(own):.2f} s"
    )
    return int(bool(accused) or len(soon) < 0.95 * len(bad))


def _group(row: Row) -> str:
    if row.how in ("pidns", "unshare"):
        return "container"
    if row.how in ("spawn", "process"):
        return "spawn"
    return "python" if row.how.startswith("python") else "other"


if __name__ == "__main__":
    sys.exit(main())
