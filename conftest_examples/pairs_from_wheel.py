"""Install a wheel as README says, without any other plugin, and run pairs of tests there.

    python conftest_examples/pairs_from_wheel.py dist/*.whl [REQUIREMENT...]

A test must not change the verdict of the next one. So each option of the marker and each fault runs
first and a hang second, and the other way round, and the hang is compared with the hang alone: its
kind, the ranks that it names and the way in which it was found. A development environment cannot
show that: a plugin that starts a thread changes the way in which all tests are launched.

What the wheel requires is linked from the environment that runs this program: those packages and no
others, so a requirement that the wheel does not declare is missing. pip then installs the wheel,
with the extras that README names, and downloads nothing. Exits with 1 if a verdict differs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from readme_from_wheel import README, example

LIMIT_S = 300
TIMEOUT_S = 60
"""The timeout of the tests; a proof is far earlier, and a ratio to it is no matter of speed."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRAS = re.compile(r"pip install '[^'\[]*\[([a-z,]+)\]'")

HEAD = """
import threading, pytest
from pytest_multihost import Role, at, faults
"""

TEST = """
USUAL = dict(ranks=2, backend="{backend}", timeout={timeout})

@pytest.mark.multihost(**{{**USUAL, **dict({option})}})
def test_{name}(world):
    {body}

"""

HANGS = {
    "none": "if world.rank == 1: threading.Event().wait()\n    world.barrier('never')",
    "gloo": "import torch, torch.distributed as dist\n"
    "    if world.rank == 0: dist.all_reduce(torch.ones(3))",
}

OPTIONS = {
    "nothing": "",
    "backend": "backend='gloo'",
    "clock": "clock='jump'",
    "env": "env={'A': '1'}",
    "hosts": "hosts='netns'",
    "local_devices": "local_devices=1",
    "ranks": "ranks=3",
    "semantics": "backend='simulated', semantics='nccl'",
    "roles": "ranks=None, roles={'a': Role(1), 'b': Role(1)}",
    "simulated": "backend='simulated'",
    "startup_timeout": "startup_timeout=50",
    "timeout": "timeout=50",
}
"""One test for each option of the marker; `simulated` is a second one for `backend`."""

FAULTS = {
    "clock_skew": "rank=0, seconds=5",
    "cpu_throttle": "rank=0, percent=50, seconds=0.1",
    "delay": "rank=0, seconds=0.05",
    "dns_failure": "rank=0, heals_after=0.1",
    "elapsed_time": "rank=0, seconds=5",
    "empty_data": "rank=0, at=at.batch('os:listdir')",
    "fails": "rank=0, at=at.io('*.none', call='open')",
    "fd_pressure": "rank=0, headroom=64",
    "freeze": "rank=0, seconds=0.05",
    "hash_seed": "rank=0",
    "hold": "rank=0, max_s=0.2",
    "kill": "rank=1, at=at.sync_point('none')",
    "memory_pressure": "rank=0, headroom_mb=256",
    "net_delay": "rank=0, seconds=0.001",
    "net_loss": "rank=0, percent=1",
    "net_rate": "rank=0, bytes_per_s=1e6",
    "partition": "groups=[[0], [1]], heals_after=0.05",
    "raise_at": "rank=0, at=at.sync_point('none')",
    "reset": "rank=0, at=at.sync_point('none')",
    "returns": "rank=0, value=1, at=at.call('colorsys:rgb_to_hsv')",
    "short_data": "rank=0, at=at.batch('os:listdir')",
    "shuffled_listing": "rank=0",
    "slow_io": "rank=0, seconds=0.01, path='*.none'",
    "stale_files": "rank=0, seconds=0.1, path='*.none'",
    "start_skew": "rank=0, seconds=0.05",
    "stream_order": "backend='gloo'",
}
"""The arguments of each fault."""

NETWORK = {"dns_failure", "net_delay", "net_loss", "net_rate", "partition", "reset"}
"""Faults of the network between hosts."""

OWN_SERVERS = ("clock", "env", "hash_seed", "hosts", "roles", "simulated", "slow_io")
"""What has processes of its own, which may start before those of the hang: tried in runs alone."""

PUBLIC = """
import inspect, pytest_multihost.faults as faults
from pytest_multihost.core.pytest_plugin.marks import SIGNATURE
print(*[name for name in faults.__all__ if name != "other"])
print(SIGNATURE.partition(": run")[0])
"""


@dataclass(frozen=True)
class Seen:
    """What one run has told of a test.

    Attributes:
        hang: What must be the same as for the hang alone: outcome, kind, certainty, culprits and
            the way in which it was found.
    """

    hang: tuple[object, ...]
    summary: str


def main() -> int:
    """Make the environment, run everything, and return 1 if something differs."""
    wheel, *requirements = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        began = time.monotonic()
        python = make_environment(Path(folder, "venv"), Path(wheel).resolve(), requirements)
        print(f"installed in {time.monotonic() - began:.0f} s", flush=True)
        missing = untried(python)
        for each in missing:
            print(f"no pair for {each}: add it to OPTIONS or FAULTS")
        began = time.monotonic()
        wrong = run_all(python, Path(folder))
        print(
            f"{'all alike' if not wrong else f'{wrong} differ'} in {time.monotonic() - began:.0f} s"
        )
    return 1 if wrong or missing else 0


def make_environment(venv: Path, wheel: Path, requirements: Sequence[str]) -> Path:
    """Install the wheel with README's extras into an empty environment; return its Python.

    Raises:
        subprocess.CalledProcessError: A requirement of the wheel is missing, or too old.
    """
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    found = _EXTRAS.findall(README.read_text(encoding="utf-8"))[0]  # its first command
    what = f"pytest-multihost-hangs[{found}] @ {wheel.as_uri()}"
    packages = needed_by("pytest-multihost-hangs", found.split(","))
    target = next(iter((venv / "lib").glob("python*/site-packages")))
    for each in packages:
        link_package(each, target, venv / "bin")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", what, *requirements]
    subprocess.run(pip, check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    return python


def needed_by(name: str, extras: Sequence[str]) -> list[metadata.Distribution]:
    """Return the installed packages that one requires, directly or not, without itself."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    todo = [(name, frozenset(extras))]
    seen = set(todo)
    while todo:
        each, of = todo.pop()
        own = metadata.distribution(each)
        found[own.name.lower()] = own
        for line in own.requires or ():
            wanted = Requirement(line)
            applies = any(
                wanted.marker is None or wanted.marker.evaluate({"extra": extra})
                for extra in ("", *of)
            )
            key = (wanted.name, frozenset(wanted.extras))
            if applies and key not in seen:
                seen.add(key)
                todo.append(key)
    del found[name]
    return list(found.values())


def link_package(package: metadata.Distribution, target: Path, programs: Path) -> None:
    """Link the files of an installed package into another environment."""
    for file in package.files or ():
        source, path = Path(str(file.locate())), Path(str(file))
        if path.parts[0] == "..":
            if path.parent.name != "bin" or not source.is_file():
                continue
            place = programs / path.name
        else:
            place = target / path
        if source.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, place)
            except OSError:  # another file system
                place.write_bytes(source.read_bytes())


def untried(python: Path) -> list[str]:
    """Return the public faults and the marker's options for which there is no test."""
    said = subprocess.run([python, "-c", PUBLIC], capture_output=True, text=True, check=True)
    names, signature = said.stdout.splitlines()
    options = set(re.findall(r"(\w+)=", signature)) - {"faults"}
    return sorted({*names.split()} - FAULTS.keys()) + sorted(options - OPTIONS.keys())


def first_test(name: str) -> str:
    """Return the test of an option or a fault, which passes."""
    if name in OPTIONS:
        option, backend = OPTIONS[name], "none"
    elif name == "stream_order":
        option, backend = "faults=[faults.stream_order(must_fire=False)]", "gloo"
    else:
        option = f"faults=[faults.{name}({FAULTS[name]}, must_fire=False)]"
        option += ", hosts='netns'" if name in NETWORK else ""
        backend = "none"
    body = "pass" if name in ("kill", "semantics", "simulated") else "world.barrier()"
    return TEST.format(name=name, option=option, backend=backend, body=body, timeout=TIMEOUT_S)


def hang(name: str, backend: str) -> str:
    """Return a test in which rank 0 waits for rank 1."""
    return TEST.format(
        name=name, option="", backend=backend, body=HANGS[backend], timeout=TIMEOUT_S
    )


def runs() -> Iterator[tuple[str, str]]:
    """Yield the name and the file of each run, the longest first."""
    names = [*OPTIONS, *FAULTS]
    chain = [hang("hang_alone", "none")]
    for each in names:
        chain += [first_test(each), hang(f"hang_after_{each}", "none")]
    yield "hangs and all others in turns", HEAD + "".join(chain)
    yield "gloo alone", HEAD + hang("hang_alone", "gloo")
    for each in OWN_SERVERS:
        text = first_test(each) + hang(f"hang_after_{each}", "gloo")
        yield f"{each} first", HEAD + text


def run_all(python: Path, folder: Path) -> int:
    """Run everything, a few at a time; print what differs, and return how many tests do."""
    (folder / "readme").mkdir()
    (folder / "readme" / "test_readme.py").write_text(example(), encoding="utf-8")
    wrong = 0
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        readme = pool.submit(run_one, python, folder / "readme")
        waiting = {}
        for index, (name, text) in enumerate(runs()):
            place = folder / f"run-{index}"
            place.mkdir()
            (place / "test_pairs.py").write_text(text, encoding="utf-8")
            waiting[name] = pool.submit(run_one, python, place)
        found = {name: each.result() for name, each in waiting.items()}
        told = readme.result()
    if [seen.hang[0] for seen in told.values()] != ["passed"]:
        print(f"README's example: {told}")
        wrong += 1
    for name, tests in found.items():
        alone = tests.get("test_hang_alone") or found["gloo alone"]["test_hang_alone"]
        wrong += sum(not _is_right(name, each, seen, alone) for each, seen in tests.items())
        if not tests:
            print(f"{name}: no test has run")
            wrong += 1
    return wrong


def _is_right(name: str, test: str, seen: Seen, alone: Seen) -> bool:
    if test.startswith("test_hang"):
        is_right = seen.hang == alone.hang and "proof" in seen.hang
        expected = f"{alone.hang}, by proof"
    else:
        is_right, expected = seen.hang[0] in ("passed", "skipped"), "passed"
    if not is_right:
        print(f"{name}: {test}: {seen.hang}, expected {expected}\n  {seen.summary}", flush=True)
    return is_right


def run_one(python: Path, folder: Path) -> Mapping[str, Seen]:
    """Run the tests of a folder; return what was told of each by name."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = {"PATH": f"{python.parent}:{os.defpath}", "HOME": str(folder), "LANG": "C.UTF-8"}
    ended = subprocess.run(
        [python, "-m", "pytest", "-q"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    verdicts = folder / ".pytest_multihost" / "verdicts.jsonl"
    if ended.returncode not in (0, 1) or not verdicts.is_file():
        print(ended.stdout[-3000:], ended.stderr[-2000:])
        return {}
    return dict(_seen(json.loads(line)) for line in verdicts.read_text("utf-8").splitlines())


def _seen(verdict: Mapping[str, object]) -> tuple[str, Seen]:
    found = verdict.get("diagnosis")
    diagnosis: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    keys = ("kind", "confidence", "culprits", "detected_by")
    told = (verdict["outcome"], *(str(diagnosis.get(key)) for key in keys))
    name = str(verdict["nodeid"]).rpartition("::")[2].partition("[")[0]
    return name, Seen(told, str(diagnosis.get("summary", verdict.get("reason", ""))))


if __name__ == "__main__":
    sys.exit(main())
