"""Which rank and line does `multihost attach` name, of jobs that never heard of the plugin?

    python benchmarks/attach_corpus.py [--only NAME] [--backend NAME] [--kind hang|innocent]
                                       [--native] [--json FILE] [--summary] [--verbose]

Starts every program of tests/corpus as plain processes with torchrun's variables
(worlds/plain_rank.py), waits until nothing happens any more, or some seconds, and runs `multihost
attach` on one of its processes. Scored is what the verdict says:

* of a hang, whether the ranks named are the right ones, and a line of theirs, or where they have
  none, a line at which a rank waits for them; and whether it came within 5 s
* of an innocent, whether it was said to hang

and how much processor time the job has used meanwhile, against as long a time before. A program
that ends by itself is no hang as a script: gloo tells the other ranks when one has gone. It is left
out, as are those whose waiting ranks have ended by a limit of theirs before anybody attaches, and
those about operations of the plugin's own.

--ranks N instead measures how long attaching takes to one job of N ranks that are in an all_reduce,
but for one. They are forked from a process that has imported torch, or it would take minutes.

--json keeps the rows in a file, to which later runs add; --summary only prints what is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import corpus
import psutil
from figures import children_s

RANK = Path(__file__).resolve().parent / "worlds" / "plain_rank.py"
PACKAGE = Path(__file__).resolve().parent.parent
ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach", "--json", "-")
DECLARED = (
    "hang_custom.py",
    "hang_world.py::test_gather_meets_barrier",
    "hang_world.py::test_barriers_of_other_names",
    "hang_world.py::test_world_barrier_meets_reduce",
)
"""What is about operations of the plugin's own, which a script does not have."""

UP_S, SETTLE_S, AT_LEAST_S, LIMIT_S = 90.0, 8.0, 3.0, 5.0
EARLY_S, COMPARED_S = 0.7, 1.5
IDLE = 0.05
"""Processor time of all ranks together, as a share of time, below which nothing happens."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program.

    Attributes:
        name: Its id.
        is_hang: Whether it hangs.
        word: ok, WRONG, MISSED (no rank named), ACCUSED, or ended: it is no hang as a script.
        expected: The right kinds and culprits.
        got: Kind, culprits and whether it was said to hang.
        has_right_rank: Whether the right ranks are named.
        has_right_line: Whether a line of theirs is, too.
        has_right_kind: Whether the kind is right as well.
        is_called_hung: Whether it is said to hang, and not only that a rank is waited for.
        is_proven: Whether by proof.
        took_s: Time of the whole command.
        own_s: Its processor time.
        used_s: Processor time of the job meanwhile, and in as long a time before.
        switches: How often main threads have begun to wait meanwhile, and before.
        reason: What the page says.
    """

    name: str
    is_hang: bool
    word: str
    expected: str
    got: str = ""
    has_right_rank: bool = False
    has_right_line: bool = False
    has_right_kind: bool = False
    is_called_hung: bool = False
    is_proven: bool = False
    took_s: float = 0.0
    own_s: float = 0.0
    used_s: tuple[float, float] = (0.0, 0.0)
    switches: tuple[int, int] = (0, 0)
    reason: str = ""


def main() -> int:
    """Run the programs, print a line for each and the score; 1 if what is asked is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the ids")
    parser.add_argument("--backend", default="")
    parser.add_argument("--kind", choices=["hang", "innocent"], default="")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--json", default="", help="keep the rows here")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--verbose", action="store_true", help="print verdicts that are wrong")
    parser.add_argument("--ranks", type=int, default=0, help="measure one job of so many ranks")
    parser.add_argument("--until", type=float, default=1e9, help="begin none after these seconds")
    options = parser.parse_args()
    if options.ranks:
        return _attach_to_many(options.ranks)
    rows = _kept(options.json)
    began_s = time.monotonic()
    for module in (
        {} if options.summary else corpus.find_programs(options.only, options.backend).values()
    ):
        for name, expected in module.items():
            is_meant = options.kind in ("", "hang" if expected["is_hang"] else "innocent")
            is_late = time.monotonic() - began_s > options.until
            if not is_meant or is_late or name in rows or name.startswith(DECLARED):
                continue
            row = _run(name, expected, native=options.native, verbose=options.verbose)
            rows[name] = row
            print(_line(row), flush=True)
            if options.json:
                kept = {each.name: asdict(each) for each in rows.values()}
                Path(options.json).write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return _summary([each for each in rows.values() if options.only in each.name])


def _kept(path: str) -> dict[str, Row]:
    if not path or not Path(path).exists():
        return {}
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: Row(**each) for name, each in found.items()}


# One program


def _run(name: str, expected: Mapping[str, Any], *, native: bool, verbose: bool) -> Row:
    answers = ", ".join(f"{each['kind']} {each['culprits']}" for each in expected["answers"])
    row = Row(name, expected["is_hang"], "ended", answers)
    file, _, test = name.partition("::")
    with tempfile.TemporaryDirectory(prefix="multihost-attach-") as scratch:
        arguments = [str(corpus.CORPUS / file), test, scratch]
        with _ranks(arguments, expected["ranks"], Path(scratch)) as processes:
            if not _are_up(processes, Path(scratch)):
                return row
            if row.is_hang:
                _settle(processes)
            else:
                time.sleep(EARLY_S)  # most are over in a few seconds
            alive = [each for each in processes if each.poll() is None]
            logs = [Path(scratch, f"log-{rank}").read_bytes() for rank in range(len(processes))]
            lives = [each.poll() is None for each in processes]
            if all(b"done\n" in log for log, is_alive in zip(logs, lives, strict=True) if is_alive):
                return row  # nobody waits for one that has gone
            if expected["waiting"] and not any(lives[rank] for rank in expected["waiting"]):
                return row  # they have given up by a limit of theirs, and ended
            before = _measured(processes)
            time.sleep(COMPARED_S if row.is_hang else 0.0)
            idle = _difference(before, _measured(processes))
            before = _measured(processes)
            seen = look([*(["--native"] if native else []), str(alive[0].pid)])
            used = _difference(before, _measured(processes))
    scale = seen.took_s / COMPARED_S
    measured = {
        "took_s": round(seen.took_s, 2),
        "own_s": round(seen.own_s, 2),
        "used_s": (round(used[0], 3), round(idle[0] * scale, 3)),
        "switches": (used[1], round(idle[1] * scale)),
    }
    if seen.verdict is None:
        return Row(**{**asdict(row), **measured, "word": "WRONG", "reason": seen.complaint})
    scored = _scored(seen.verdict, expected, file)
    if verbose and scored["word"] not in ("ok", "ended"):
        print(json.dumps(seen.verdict["diagnosis"], indent=1))
    return Row(**{**asdict(row), **measured, **scored})


@contextlib.contextmanager
def _ranks(
    arguments: Sequence[str], size: int, scratch: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(PACKAGE)}
    processes = []
    try:
        for rank in range(size):
            environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (scratch / f"log-{rank}").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, str(RANK), *arguments],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            processes.append(process)
        yield processes
    finally:
        for each in processes:
            _end(each)
        _unmount_below(scratch)


def _unmount_below(folder: Path) -> None:
    """Unmount what a killed program has left mounted, or the folder could not be removed."""
    for each in psutil.disk_partitions(all=True):
        if folder in Path(each.mountpoint).parents:
            subprocess.run(["umount", "--lazy", each.mountpoint], check=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a rank and whatever it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.kill()
    process.communicate()


def _are_up(processes: Sequence[subprocess.Popen[bytes]], scratch: Path) -> bool:
    """Return whether all ranks have come to the body of their program."""
    end_s = time.monotonic() + UP_S
    while time.monotonic() < end_s:
        logs = [(scratch / f"log-{rank}").read_bytes() for rank in range(len(processes))]
        if all(b"up\n" in each for each in logs):
            return True
        if all(each.poll() is not None for each in processes):
            break
        time.sleep(0.05)
    print(logs[0].decode(errors="replace")[-500:])
    return False


def _settle(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until the ranks use no processor, or some seconds."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + SETTLE_S:
        before = _measured(processes)
        time.sleep(0.5)
        used_s, _ = _difference(before, _measured(processes))
        if used_s < IDLE * 0.5 and time.monotonic() > begun_s + AT_LEAST_S:
            return
        if all(each.poll() is not None for each in processes):
            return


def _measured(processes: Sequence[subprocess.Popen[bytes]]) -> dict[int, tuple[float, int]]:
    """Return each rank's processor time, and how often its main thread has begun to wait."""
    found = {}
    for each in processes:
        with contextlib.suppress(psutil.Error, OSError, StopIteration):
            lines = Path(f"/proc/{each.pid}/task/{each.pid}/status").read_text().splitlines()
            waits = next(line for line in lines if line.startswith("voluntary_ctxt_switches"))
            clock = time.clock_gettime(~each.pid << 3 | 2)
            found[each.pid] = (clock, int(waits.split()[1]))
    return found


def _difference(
    before: Mapping[int, tuple[float, int]], after: Mapping[int, tuple[float, int]]
) -> tuple[float, int]:
    both = before.keys() & after.keys()
    seconds = sum(after[pid][0] - before[pid][0] for pid in both)
    return seconds, sum(after[pid][1] - before[pid][1] for pid in both)


# One job of many ranks

MANY = """
import os, sys, time
import torch, torch.distributed as dist
size, pids = int(sys.argv[1]), []
for rank in range(size):
    pid = os.fork()
    if not pid:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        os.write(1, b"up\\n")
        if rank == size - 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))
        os._exit(0)
    pids.append(pid)
print(*pids, flush=True)
for pid in pids:
    os.waitpid(pid, 0)
"""


@dataclass(frozen=True, slots=True)
class Look:
    """One run of `multihost attach`.

    Attributes:
        verdict: What it has printed; None if that was no JSON.
        took_s: Time of the whole command.
        own_s: Its processor time.
        complaint: The end of what it has written to stderr.
    """

    verdict: Any
    took_s: float
    own_s: float
    complaint: str


def look(selection: Sequence[str], command: Sequence[str] = ATTACH, tree: Path = PACKAGE) -> Look:
    """Attach to a job.

    Args:
        selection: Which one, as arguments.
        command: How to attach; prints JSON.
        tree: Where the package lies that attaches.
    """
    began_s, own_s = time.monotonic(), children_s()
    done = subprocess.run(
        [*command, *selection],
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
    )
    took_s, own_s = time.monotonic() - began_s, children_s() - own_s
    complaint = done.stderr[-300:].strip()
    try:
        return Look(json.loads(done.stdout), took_s, own_s, complaint)
    except ValueError:
        return Look(None, took_s, own_s, complaint)


@contextlib.contextmanager
def job_of_many(size: int) -> Iterator[Sequence[str]]:
    """Start ranks of which the last is late for ever; yield what `multihost attach` takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", MANY, str(size)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().decode() for _ in range(size + 1)]
        pids = next(line for line in lines if line != "up\n").split()
        time.sleep(3.0)
        yield [f"{rank}={pid}" for rank, pid in enumerate(pids)]
    finally:
        os.killpg(parent.pid, 9)
        parent.communicate()


def _attach_to_many(size: int) -> int:
    with job_of_many(size) as ranks:
        for _ in range(3):
            seen = look(ranks)
            told = (seen.verdict["diagnosis"] or {}).get("culprits")
            print(
                f"{size} ranks: {seen.took_s:.2f} s, processor time {seen.own_s:.2f} s;"
                f" culprits {told}"
            )
    return 0


# The score


def _scored(
    verdict: Mapping[str, Any], expected: Mapping[str, Any], file: str
) -> Mapping[str, Any]:
    found = verdict["diagnosis"]
    is_hung = verdict["outcome"] == "hung"
    kind, culprits = (found["kind"], found["culprits"]) if found else ("-", [])
    got = f"{kind} {culprits}{'' if is_hung else ', not known to hang'}"
    told = {
        "got": got,
        "is_called_hung": is_hung,
        "is_proven": bool(verdict["reason"]),
        "reason": "; ".join(found["notes"])[:400] if found else "",
    }
    if not expected["is_hang"]:
        return {**told, "word": "ACCUSED" if is_hung else "ok"}
    answers = expected["answers"]
    right = any(each["culprits"] == culprits for each in answers) and found is not None
    line = right and _has_line(found, expected, file)
    exact = any(each == {"kind": kind, "culprits": culprits} for each in answers)
    word = "ok" if line else ("MISSED" if not culprits else "WRONG")
    return {
        **told,
        "word": word,
        "has_right_rank": right,
        "has_right_line": line,
        "has_right_kind": exact,
    }


def _has_line(found: Mapping[str, Any], expected: Mapping[str, Any], file: str) -> bool:
    """Return whether a line of the program is named for each rank that is waited for.

    Of one that has ended, or is done and waits for its launcher, that of a rank that waits for it.
    """
    lines = {each["rank"]: each for each in found["places"]}
    done = {rank for rank, each in lines.items() if each["function"] == "stay"}
    inside = {
        rank
        for rank, each in lines.items()
        if each["file"].endswith((file, RANK.name)) and rank not in done
    }
    culprits = set(found["culprits"])
    if expected["where"] and not culprits & done:
        where = found["where"] or {"source": ""}
        return expected["where"] in (where["source"] or "")
    asked = culprits - done
    if not culprits:
        shown = {
            rank
            for group in found["groups"]
            if any(each["file"].endswith(file) for each in group["frames"])
            for rank in group["ranks"]
        }
        return bool(inside) or len(shown) == expected["ranks"]
    if not asked & lines.keys():
        return bool(inside)
    return asked <= inside or expected["answers"][0]["kind"] in ("died", "finished", "raised")


def _line(row: Row) -> str:
    hung = "proven" if row.is_proven else "hung?" if row.is_called_hung else "waits"
    return (
        f"{row.word:8}{row.name:78} {row.expected:40} {row.got:46} {hung:7}"
        f"{row.took_s:6.2f} s (own {row.own_s:.2f})  cpu {row.used_s[0]:.3f}/{row.used_s[1]:.3f}"
        f"  waits {row.switches[0]}/{row.switches[1]}"
    )


def _summary(rows: Sequence[Row]) -> int:
    hangs = [each for each in rows if each.is_hang and each.word != "ended"]
    innocents = [each for each in rows if not each.is_hang and each.word != "ended"]
    right = [each for each in hangs if each.has_right_line]
    soon = [each for each in right if each.took_s <= LIMIT_S]
    accused = [each for each in innocents if each.word == "ACCUSED"]
    wrong = [each for each in hangs if each.word == "WRONG"]
    took = sorted(each.took_s for each in hangs + innocents) or [0.0]
    print(
        f"\nhangs: {len(hangs)}; right ranks and line: {len(right)}"
        f" ({len(right) / max(1, len(hangs)):.0%}), within {LIMIT_S:.0f} s: {len(soon)};"
        f" right kind, too:"
        f" {sum(each.has_right_kind for each in hangs)}; said to hang:"
        f" {sum(each.is_called_hung for each in hangs)}, proven:"
        f" {sum(each.is_proven for each in hangs)}; wrong ranks named: {len(wrong)}"
    )
    print(f"innocents: {len(innocents)}; said to hang: {len(accused)}")
    print(f"left out, as they end by themselves: {sum(each.word == 'ended' for each in rows)}")
    own = sorted(each.own_s for each in hangs + innocents) or [0.0]
    print(
        f"time to attach: median {statistics.median(took):.2f} s, longest {took[-1]:.2f} s;"
        f" its processor time: median {statistics.median(own):.2f} s, most {own[-1]:.2f} s"
    )
    idle = [each for each in hangs if each.used_s[1] < IDLE]
    extra = sum(each.used_s[0] - each.used_s[1] for each in idle)
    spent_s = sum(each.took_s for each in idle)
    print(
        f"processor time of {len(idle)} jobs at rest: {1000 * extra:.0f} ms more while attached"
        f" for {spent_s:.0f} s than before"
    )
    return int(bool(accused) or len(soon) < 0.9 * len(hangs))


if __name__ == "__main__":
    sys.exit(main())
