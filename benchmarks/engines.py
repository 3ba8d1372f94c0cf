"""Do worlds on the nodes of a cluster show the same as on one machine, and how long do they take?

    python benchmarks/engines.py [--only local exec slurm ray mpirun torchrun] [--failures]

Runs eight worlds of four ranks: without an engine; with `exec` on two machines of namespaces to
which pytest has no route; with Slurm on three such machines, each with a slurmd; with three raylets
of Ray on this machine; attached to mpirun and torchrun. The first column is a checksum of the
summary's lines on tests that failed. Times are of one run, so on a busy machine they are upper
bounds:

* around: seconds of the whole command that pytest does not count as its own
* none, gloo, jax: seconds of a passing test
* judged: seconds from the last progress of a hang until the verdict, for gloo and for jax

With --failures it prints instead what users read when something fails, how long that takes, and
how many processes are left: with `exec`, with `--only slurm` on Slurm, or with `--only ray` on Ray.
The first two need root.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "shared"))

from cluster import (  # noqa: E402 - see above
    GLOO_WORLDS,
    JAX_WORLDS,
    WORLDS,
    command,
    drive,
    entering,
    environment,
    project,
    result_lines,
)

LIMIT_S = 300.0
NAMES = ("local", "exec", "slurm", "ray", "mpirun", "torchrun")
_OWN_S = re.compile(r" in (\d+\.\d+)s")


@dataclass(frozen=True)
class Way:
    """A way to run the worlds.

    Attributes:
        before: What starts pytest.
        args: More arguments of pytest.
        variables: More variables.
    """

    before: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What one way has shown."""

    checksum: str
    lines: int
    around_s: float
    passing_s: Mapping[str, float]
    judged_s: Mapping[str, float]
    code: int


@contextlib.contextmanager
def way(name: str, path: Path) -> Iterator[Way]:
    """Prepare a way to run the worlds of a project."""
    if name == "exec":
        from machines import two_machines

        with two_machines() as entries:
            enter = entering(path / "enter", entries)
            yield Way(args=("--multihost-on", f"exec:{enter} {{i}}"))
    elif name == "slurm":
        from slurm_failures import SLURM
        from slurm_site import slurm_site

        with slurm_site() as site:
            yield Way(site.site.door, SLURM, site.variables)
    elif name == "ray":
        from ray_cluster import ray_cluster

        with ray_cluster(3) as (address, _):
            yield Way(args=("--multihost-on", f"ray:{address}"))
    elif name == "mpirun":
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        before = ("mpirun", *root, "--oversubscribe", "-n", "4")
        yield Way(before, args=("--multihost-attach",))
    elif name == "torchrun":
        program = (sys.executable, "-m", "torch.distributed.run")
        yield Way((*program, "--nproc-per-node=4", "--no-python"), args=("--multihost-attach",))
    else:
        yield Way()


def measure(name: str) -> Row:
    """Run all worlds in one way."""
    with tempfile.TemporaryDirectory() as folder:
        path = project(Path(folder) / "it", WORLDS + GLOO_WORLDS + JAX_WORLDS)
        with way(name, path) as how:
            started_s = time.monotonic()
            done = subprocess.run(
                [*how.before, *command(*how.args)],
                cwd=path,
                env={**environment(), **how.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
            whole_s = time.monotonic() - started_s
        lines = result_lines(done.stdout)
        own = _OWN_S.findall(done.stdout)
        if not own:
            raise RuntimeError(done.stdout)
        found = verdicts(path)
        return Row(
            checksum=hashlib.md5("\n".join(lines).encode(), usedforsecurity=False).hexdigest()[:8],
            lines=len(lines),
            around_s=whole_s - float(own[-1]),
            passing_s={
                each: found[test]["startup_s"] + found[test]["duration_s"]
                for each, test in (
                    ("none", "test_meets"),
                    ("gloo", "test_gloo"),
                    ("jax", "test_jax"),
                )
            },
            judged_s={
                each: found[test]["diagnosis"]["detected_after_s"]
                for each, test in (("gloo", "test_gloo_waits"), ("jax", "test_jax_waits"))
            },
            code=done.returncode,
        )


def verdicts(path: Path) -> Mapping[str, Any]:
    """Return the verdicts of a run, by the test's name."""
    text = (path / ".pytest_multihost" / "verdicts.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return {each["nodeid"].rpartition("::")[2]: each for each in found}


def table(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a Markdown table, one for each way."""
    yield "| way | summary | lines | around | none | gloo | jax | judged gloo | jax | exit |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name in names:
        try:
            row = measure(name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            yield f"| {name} | {type(error).__name__}: {str(error)[-200:]!r} |"
            continue
        cells = [row.checksum, str(row.lines), f"{row.around_s:.1f}"]
        cells += [f"{row.passing_s[each]:.2f}" for each in ("none", "gloo", "jax")]
        cells += [f"{row.judged_s[each]:.2f}" for each in ("gloo", "jax")]
        yield f"| {name} | {' | '.join(cells)} | {row.code} |"


# Failures

SLEEPS = """
import os, signal, time, psutil, pytest

@pytest.mark.multihost(timeout=900)
def test_sleeps(world):
    open(f"up-{world.rank}", "w").close()
    if world.rank == 3 and os.environ.get("TORCH_VICTIM"):
        os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
    time.sleep(600)
"""
HERE = ("--multihost-on", "exec:env NODE={i}")


def disturbed(path: Path, disturb: Callable[[int], object], *on: str) -> tuple[str, float]:
    """Disturb a run while its ranks sleep; return its output, and the seconds until its end.

    Args:
        disturb: Gets the process id of pytest.
        on: Options that name the engine.
    """
    process = subprocess.Popen(
        command(*on),
        cwd=path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while len(list(path.glob("up-*"))) < 4 and process.poll() is None:
        time.sleep(0.05)
    started_s = time.monotonic()
    disturb(process.pid)
    output, _ = process.communicate(timeout=LIMIT_S)
    return output, time.monotonic() - started_s


def signalled(path: Path, number: int, *on: str) -> tuple[str, float]:
    """Signal pytest while its ranks sleep; see `disturbed`."""
    return disturbed(path, lambda pid: os.kill(pid, number), *on)


def driven(path: Path, *args: str, **variables: str) -> tuple[str, float]:
    """Run pytest to its end; return its output and the seconds."""
    started_s = time.monotonic()
    done = drive(path, *args, **variables)
    return done.stdout, time.monotonic() - started_s


Failures = Mapping[str, tuple[Callable[[Path], tuple[str, float]], str]]
"""By the name of each failure: what makes it happen, and what the words for users match."""


def failures_of_runs(*on: str) -> Failures:
    """Return what can fail in a run on any engine.

    Args:
        on: Options that name the engine.
    """
    return {
        "a peer is killed in a test": (
            lambda path: driven(path, *on, TORCH_VICTIM="1"),
            r"multihost: node.*is gone.*",
        ),
        "pytest gets SIGTERM": (
            lambda path: signalled(path, signal.SIGTERM, *on),
            r"interrupted by \w+",
        ),
        "pytest is killed": (lambda path: signalled(path, signal.SIGKILL, *on), r"^$"),
    }


FAILURES: Failures = {
    "a peer dies at its start": (
        lambda path: driven(path, "--multihost-on", "exec:sh -c 'echo no pod {i} >&2; exit 3'"),
        r"the peer on node.*",
    ),
    **failures_of_runs(*HERE),
    "another version": (
        lambda path: driven(
            path, "--multihost-on", f"exec:env PYTHONPATH={_other_version(path)} NODE={{i}}"
        ),
        r".*0\.0\.9.*",
    ),
    "no such directory": (
        lambda path: driven(path, "--multihost-on", f"exec:{_hiding(path)} {{i}}"),
        r"this node does not have.*",
    ),
}


def _other_version(path: Path) -> Path:
    about = path.parent / "other" / "torch-0.0.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.9\n")
    return about.parent


def _hiding(path: Path) -> Path:
    from cluster import script

    hide = f"mount -t tmpfs none {path}"
    line = f'shift; cd /; exec unshare --mount sh -c \'{hide} && exec "$@"\' sh "$@"'
    return script(path.parent / "enter", line)


def failures_on_ray(address: str, cluster: subprocess.Popen[str]) -> Failures:
    """Return what can fail on two nodes of Ray; the last one ends a raylet for good."""
    on = ("--multihost-on", f"ray:{address}")

    def end_raylet(_: int) -> None:
        assert cluster.stdin is not None
        cluster.stdin.write("one\n")
        cluster.stdin.flush()

    def other(path: Path) -> str:
        return json.dumps({"runtime_env": {"env_vars": {"PYTHONPATH": str(_other_version(path))}}})

    no_room = (*on, "--multihost-nodes=3", "--multihost-queue-timeout=5")
    return {
        "there is no cluster": (
            lambda path: driven(path, "--multihost-on", "ray:127.0.0.1:1"),
            r"Ray has not started the peers.*\n.*",
        ),
        "there is no room": (
            lambda path: driven(path, *no_room),
            r"ray has not provided the nodes.*\n.*",
        ),
        "a peer dies at its start": (
            lambda path: driven(path, *on, "--multihost-python=/bin/false"),
            r"the peer on node.*",
        ),
        **failures_of_runs(*on),
        "another version": (
            lambda path: driven(path, *on, "--multihost-ray", other(path)),
            r".*0\.0\.9.*",
        ),
        "a raylet is killed": (
            lambda path: disturbed(path, end_raylet, *on),
            r"ERROR test_.*|its actor is lost.*",
        ),
    }


def failures(given: Failures) -> Iterator[str]:
    """Yield the lines of a Markdown table, one for each failure."""
    yield "| event | what users read | seconds | left after 5 s |"
    yield "|---|---|---|---|"
    for name, (act, words) in given.items():
        with tempfile.TemporaryDirectory() as folder:
            path = project(Path(folder) / "it", SLEEPS)
            output, took_s = act(path)
            found = re.search(words, output, re.MULTILINE)
            deadline_s = time.monotonic() + 5
            while (left := _left(path)) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            said = found[0] if found is not None else f"?? {output[-300:]!r}"
            shown = " ".join(said.split()) or "nothing"
            yield f"| {name} | {shown} | {took_s:.1f} | {len(left)} |"


def failures_of_ray() -> Iterator[str]:
    """Yield the lines of a Markdown table, one for each failure on two nodes of Ray."""
    from ray_cluster import ray_cluster

    with ray_cluster(2) as (address, cluster):
        yield from failures(failures_on_ray(address, cluster))


def failures_of_slurm() -> Iterator[str]:
    """Yield the lines of a Markdown table, one for each failure on three nodes of Slurm."""
    import slurm_failures
    from slurm_site import slurm_site

    yield "| event | what users read | seconds | exit | seconds until nothing is left |"
    yield "|---|---|---|---|---|"
    for name, failure in slurm_failures.FAILURES.items():
        with slurm_site() as site, tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "it"
            shown = failure.act(site, path)
            ended_s = time.monotonic()
            lines = [re.search(f".*{each}.*", shown.output, re.MULTILINE) for each in failure.words]
            said = "; ".join(each[0].strip() if each else "??" for each in lines)
            while _left(path) and time.monotonic() < ended_s + LIMIT_S:
                time.sleep(0.05)
            left_s = time.monotonic() - ended_s
            yield f"| {name} | {said} | {shown.seconds:.1f} | {shown.code} | {left_s:.1f} |"


def _left(path: Path) -> Sequence[int]:
    """Return the processes that work in a project."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.cwd() == str(path) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--failures", action="store_true")
    options = parser.parse_args()
    if not options.failures:
        lines = table(options.only)
    elif options.only == ["slurm"]:
        lines = failures_of_slurm()
    elif options.only == ["ray"]:
        lines = failures_of_ray()
    else:
        lines = failures(FAILURES)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
