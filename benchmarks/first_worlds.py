"""What one multihost test costs, beside the usual ways of starting ranks.

Marginal cost: what one test more adds to a run - fixtures, ranks, process group, one collective,
reporting - and not the imports that every run pays once. The ways take turns, in every second
round backwards, and a ratio compares two of one round. Peers get what the plugin gives its ranks:
one thread per native pool, the loopback interface, a file as gloo's meeting place, and jax clients
that wait until the service listens, or they would lose a second. Exits with 0 unless a test failed.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from subprocess import STDOUT, Popen
from typing import Any

_CONFTEST = """
import json, os, pathlib, pytest, time
walls = []
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(): walls.append(-time.monotonic())
@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(): walls[-1] += time.monotonic()
def pytest_sessionfinish(): pathlib.Path("walls.json").write_text(json.dumps(walls))
@pytest.fixture(params=range(int(os.environ["TESTS"])))
def value(request): return request.param + 0.5
"""
_WORK = {
    "none": """
def work(size, value):
    from pytest_multihost import current_world
    current_world().barrier()
    return size * value
""",
    "gloo": """
import torch, torch.distributed as dist
def start(rank, size, directory, port):
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=size)
def work(size, value):
    tensor = torch.full((1024,), value)
    dist.all_reduce(tensor)
    return tensor[0].item()
end = dist.destroy_process_group
""",
    "jax": """
import jax, numpy, socket, time
from jax.sharding import Mesh, NamedSharding, PartitionSpec
def start(rank, size, directory, port):
    while rank and socket.socket().connect_ex(("127.0.0.1", port)): time.sleep(0.002)
    jax.config.update("jax_platforms", "cpu")
    place = f"127.0.0.1:{port}"
    jax.distributed.initialize(place, size, rank, cluster_detection_method="deactivate")
def work(size, value):
    mesh = Mesh(numpy.array(jax.devices()), ("rank",))
    split, whole = NamedSharding(mesh, PartitionSpec("rank")), NamedSharding(mesh, PartitionSpec())
    array = jax.make_array_from_callback((size,), split, lambda index: numpy.full(1, value, "f4"))
    return float(jax.jit(lambda x: x.sum(), out_shardings=whole)(array))
end = jax.distributed.shutdown
""",
}
_RANK = """
import json, sys, work
def main(rank, size, value, *place):
    work.start(rank, size, *place)
    assert work.work(size, value) == size * value
    work.end()
if __name__ == "__main__": main(*json.loads(sys.argv[1]))
"""
_RANK_PYTEST = """
import os, pytest, sys
sys.exit(pytest.main(["-q", "one.py", f"--basetemp=rank-{os.getpid()}"]))
"""
_TEST_OURS = """
import os, pytest
from work import work
@pytest.mark.multihost(ranks=int(os.environ["RANKS"]), backend=os.environ["BACKEND"])
def test_one(world, tmp_path, value):
    assert work(world.size, value) == value * world.size
"""
_TEST_SPAWN = """
import os, rank, torch.multiprocessing
def test_one(tmp_path, value):
    size = int(os.environ["RANKS"])
    torch.multiprocessing.spawn(rank.main, (size, value, str(tmp_path), 0), nprocs=size)
"""
_TEST_FRESH = """
import json, os, socket, subprocess, sys
def test_one(tmp_path, value):
    size = int(os.environ["RANKS"])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        rest = size, value, str(tmp_path), holder.getsockname()[1]
    command = [[sys.executable, "rank.py", json.dumps([rank, *rest])] for rank in range(size)]
    ranks = list(map(subprocess.Popen, command))
    assert [rank.wait() for rank in ranks] == [0] * size
"""
_ONE = "def test_one(tmp_path): assert tmp_path"
_FILES = {"pytest.ini": "[pytest]\n", "conftest.py": _CONFTEST, "one.py": _ONE}
_OF_PEERS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_FOREIGN = {"PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", *_OF_PEERS}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to give a test its ranks: the test, the program of a rank, and what is asked of it.

    `target`: of ours, seconds at most; of a peer, how many times our cost it is to be at least.
    """

    label: str
    test: str
    target: float | None
    rank: str = _RANK

    @property
    def is_ours(self) -> bool:
        """Whether it is this plugin. A test of a peer takes seconds, so a few of them tell."""
        return self.test == _TEST_OURS


_SPAWN = Way("`torch.multiprocessing.spawn`", _TEST_SPAWN, 30)
_FRESH = Way("a fresh interpreter per rank", _TEST_FRESH, 8)
_PYTEST = Way(f"{_FRESH.label}, running pytest", _TEST_FRESH, 8, _RANK_PYTEST)
_PASS = Way(f"{_FRESH.label}, running `pass`", _TEST_FRESH, None, "pass")
WAYS = {
    "none": (Way("**this plugin**", _TEST_OURS, 0.05), _PYTEST, _PASS),
    "gloo": (Way("**this plugin**", _TEST_OURS, 0.15), _SPAWN, _FRESH),
    "jax": (Way("**this plugin**", _TEST_OURS, 0.35), _FRESH),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Wall seconds of each test; CPU seconds, of a run or per test; the plugin's verdicts."""

    walls: Sequence[float]
    cpu_s: float
    verdicts: Sequence[Mapping[str, Any]]


Samples = dict[tuple[str, Way], list[Sample]]


def run_pytest(backend: str, way: Way, *, tests: int, ranks: int) -> Sample:
    """Run a new project of `tests` tests."""
    variables = {"TESTS": str(tests), "RANKS": str(ranks), "BACKEND": backend}
    variables |= {} if way.is_ours else _OF_PEERS
    command = [sys.executable, "-m", "pytest", "-q", "--basetemp=scratch"]
    command += ["-p", "multihost_hangs"] if way.is_ours else []
    files = {"work.py": _WORK[backend], "rank.py": way.rank, "test_one.py": way.test}
    with tempfile.TemporaryDirectory(prefix="first-worlds-") as name:
        project = Path(name)
        for file, text in (_FILES | files).items():
            (project / file).write_text(text)
        cpu_s = _run(command, project, variables)
        walls = json.loads((project / "walls.json").read_text())
        path = project / ".pytest_multihost/verdicts.jsonl"
        lines = path.read_text().splitlines() if path.exists() else ()
        return Sample(walls, cpu_s, [json.loads(line) for line in lines])


def _run(command: Sequence[str], project: Path, variables: Mapping[str, str]) -> float:
    """Run `command` in `project` and return the CPU seconds of its whole process tree.

    wait4 counts a process and every descendant that was waited for on the way up: the server waits
    for its ranks, pytest for the server and for what peers start. Checked with ranks that burn a
    known time: all of it appears.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    with (project / "output.txt").open("w+b") as output:
        process = Popen(command, cwd=project, env=environment, stdout=output, stderr=STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((project / "output.txt").read_text())
    return usage.ru_utime + usage.ru_stime


def measure(backend: str, way: Way, *, tests: int, ranks: int) -> Sample:
    """Measure what each of `tests` tests adds to a run of one of ours, or of none of a peer's."""
    base = 1 if way.is_ours else 0
    less = run_pytest(backend, way, tests=base, ranks=ranks)
    more = run_pytest(backend, way, tests=base + tests, ranks=ranks)
    return Sample(more.walls[base:], (more.cpu_s - less.cpu_s) / tests, more.verdicts[base:])


def measure_all(*, tests: int, peer_tests: int, ranks: int, rounds: int) -> Samples:
    """Measure all ways in turn, `rounds` times."""
    samples: Samples = {}
    for number in range(rounds):
        for backend, ways in WAYS.items():
            for way in reversed(ways) if number % 2 else ways:
                count = tests if way.is_ours else peer_tests
                sample = measure(backend, way, tests=count, ranks=ranks)
                samples.setdefault((backend, way), []).append(sample)
    return samples


def table(samples: Samples) -> str:
    """Return the table: our cost, then each peer's and its ratio to ours."""
    head = "| backend | one test more | wall: median (min-max, n) | CPU: median (min-max, n)"
    lines = [f"{head} | target | met by wall, CPU | of it, s |", "|---" * 7 + "|"]
    for backend, (own, *peers) in WAYS.items():
        ours = samples[backend, own]
        lines.append(_row(f"{backend} | {own.label}", _sides(ours), "s", own.target, _split(ours)))
        for peer in peers:
            theirs = samples[backend, peer]
            walls = [median(a.walls) / median(b.walls) for a, b in zip(theirs, ours, strict=True)]
            cpu = [a.cpu_s / b.cpu_s for a, b in zip(theirs, ours, strict=True)]
            lines.append(_row(f"{backend} | {peer.label}", _sides(theirs), "s", None))
            lines.append(_row(f"{backend} | ... to ours", [walls, cpu], "x", peer.target))
    return "\n".join(lines)


def _sides(samples: Sequence[Sample]) -> list[list[float]]:
    walls = [wall for sample in samples for wall in sample.walls]
    return [walls, [sample.cpu_s for sample in samples]]


def _split(samples: Sequence[Sample]) -> str:
    """Say what the wall time of our tests consists of, and what the ranks use of the CPU."""
    text = "ready {:.3f}, test and end {:.3f}, reporting {:.3f}; ranks' CPU {:.3f}"
    parts = []
    for sample in samples:
        for wall_s, verdict in zip(sample.walls, sample.verdicts, strict=True):
            ready_s, end_s = verdict["startup_s"], verdict["duration_s"]
            parts.append((ready_s, end_s - ready_s, wall_s - end_s, _ranks_cpu_s(verdict)))
    return text.format(*map(median, zip(*parts, strict=True)))


def _ranks_cpu_s(verdict: Mapping[str, Any]) -> float:
    return sum(rank["cpu_s"] for rank in verdict["rank_results"])


def _row(head: str, sides: list[list[float]], unit: str, goal: float | None, end: str = "") -> str:
    aim = met = ""
    if goal is not None:
        aim = f"{'<=' if unit == 's' else '>='} {goal:g} {unit}"
        within = [(median(side) <= goal) == (unit == "s") for side in sides]
        met = ", ".join("yes" if each else "no" for each in within)
    cells = [head, *(_figures(side, unit) for side in sides), aim, met, end]
    return f"| {' | '.join(cells)} |"


def _figures(values: Sequence[float], unit: str) -> str:
    low, middle, high = (f"{of(values):.{3 if unit == 's' else 1}f}" for of in (min, median, max))
    return f"{middle} {unit} ({low}-{high}, {len(values)})"


def _state() -> str:
    """Say how busy the machine is, and how fast: what a fixed loop takes."""
    load, start = os.getloadavg()[0], time.process_time()
    sum(range(2_000_000))
    return f"load {load:.1f}, {time.process_time() - start:.3f} s for a fixed loop"


def show_sizes() -> None:
    """Run one large world of two kinds and print how it went."""
    print("| backend | ranks | wall s | ready s | ranks' CPU s | result |\n" + "|---" * 6 + "|")
    for backend, ranks in (("none", 64), ("gloo", 32)):
        sample = run_pytest(backend, WAYS[backend][0], tests=1, ranks=ranks)
        (wall_s,), (verdict,) = sample.walls, sample.verdicts
        times = f"{wall_s:.3f} | {verdict['startup_s']:.3f} | {_ranks_cpu_s(verdict):.3f}"
        print(f"| {backend} | {ranks} | {times} | {verdict['outcome']} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What one multihost test costs, beside peers.")
    parser.add_argument("--tests", type=int, default=20, help="tests per round, where fast")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of each world")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="one short round, under a minute")
    parser.add_argument("--sizes", action="store_true", help="only run one large world each")
    options = parser.parse_args()
    if options.sizes:
        return show_sizes()
    few = 1 if options.quick else 3
    versions = ", ".join(f"{name} {version(name)}" for name in ("pytest", "torch", "jax"))
    print(f"{options.ranks} ranks. Python {platform.python_version()}, {versions}.")
    print(f"{len(os.sched_getaffinity(0))} cores. At the start: {_state()}.")
    samples = measure_all(tests=options.tests, ranks=options.ranks, peer_tests=few, rounds=few)
    print(f"At the end: {_state()}.\n\n{table(samples)}")
    if options.json:
        ways = {f"{key}, {way.label}": list(map(asdict, samples[key, way])) for key, way in samples}
        options.json.write_text(json.dumps(ways) + "\n")
    return None


if __name__ == "__main__":
    main()
