"""What all tests share: a real run of pytest with our plugin, and what it left behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtimes import pytest_make_collect_report, skip_if_missing  # noqa: F401 - a hook
from shared_run import part_of, run_together, shared_base
from tiers import NEEDS, add_markers, may_be_fast

from pytest_multihost.testing import LaunchError

pytest_plugins = ["browsers", "pytester"]

# Programs that hang on purpose, with rootdirs and conftest files of their own (make corpus).
collect_ignore = ["corpus", "found", "hazards", "latent"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the needs, and let signals reach what tests start, where they are ignored.

    A shell without job control ignores Ctrl-C in what it runs in the background, and nohup a
    terminal's end. That is inherited, but for what has a handler instead.
    """
    for name, need in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {need.tier} tier: {need.meaning}")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@dataclass(frozen=True)
class Worlds:
    """A finished run of pytest.

    Attributes:
        run: What pytester saw of it.
        verdicts: The lines of verdicts.jsonl by test name; of several attempts the last.
        all_verdicts: Every line, in order.
        path: The run's rootdir.
    """

    run: pytest.RunResult
    verdicts: Mapping[str, Mapping[str, Any]]
    all_verdicts: list[Mapping[str, Any]]
    path: Path

    @property
    def stdout(self) -> str:
        return self.run.stdout.str()

    def directory(self, test: str) -> Path:
        """Return the artifacts of a test's last attempt."""
        verdict = self.verdicts[test]
        return self.path / ".pytest_multihost" / str(verdict["run_id"]) / str(verdict["dir"])

    def output(self, test: str, rank: int) -> str:
        """Return what a rank of a test printed."""
        return (self.directory(test) / f"rank-{rank}.log").read_text()


@pytest.fixture
def run_worlds(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run pytest with our plugin, and no other, on a source text.

    Afterwards nothing of the run may be alive: every process that names its directory counts.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "160")
    pytests = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", *pytests):
        monkeypatch.delenv(name, raising=False)
    before = {process.pid for process in psutil.process_iter()}

    def run(source: str, *args: str, timeout: float = 100) -> Worlds:
        pytester.makepyfile(test_worlds=source)
        result = pytester.runpytest_subprocess("-p", "multihost_hangs", *args, timeout=timeout)
        skip_if_missing(result.stdout.str() + result.stderr.str())
        return read_worlds(pytester.path, result)

    yield run
    assert survivors(before, pytester.path) == []


@pytest.fixture
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Return what became of the test's program, in a run that it shares (see `shared_run`)."""
    run, name = run_together(request.node, shared_base(tmp_path_factory))
    part = part_of(run, name)
    skip_if_missing(part.stdout.str() + part.stderr.str())
    assert survivors(set(), run.path) == []
    found = read_worlds(run.path, part).all_verdicts
    own = [each for each in found if each["nodeid"].startswith(f"{name}.py::")]
    by_name = {verdict["nodeid"].rpartition("::")[2]: verdict for verdict in own}
    return Worlds(part, by_name, own, run.path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of a run of the fast tier the files that have no test of it."""
    if config.option.markexpr != "fast" or collection_path.suffix != ".py":
        return None
    return None if may_be_fast(collection_path, config.rootpath) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with their needs, and give those of a shared run the time of all its programs."""
    add_markers(items)
    for item in items:
        if item.get_closest_marker("program"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def netns_hosts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip what needs hosts of network namespaces where these cannot be made, saying why."""
    part = pytest.importorskip("pytest_multihost.extensions.netns.server_part")
    folder = tmp_path_factory.mktemp("hosts") / "hosts"
    try:
        part.probe(folder)
    except LaunchError as error:
        pytest.skip(" ".join(str(error).splitlines()))


def read_worlds(path: Path, result: pytest.RunResult) -> Worlds:
    """Collect what a run has written."""
    file = path / ".pytest_multihost" / "verdicts.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    by_name = {verdict["nodeid"].rpartition("::")[2]: verdict for verdict in found}
    return Worlds(result, by_name, found, path)


def survivors(before: set[int], path: Path) -> list[str]:
    """Return the command lines of new processes that work below `path`."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.pid not in before and Path(process.cwd()).is_relative_to(path)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())}")
        except psutil.Error:  # gone meanwhile
            continue
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests of containers did not run, and why: nobody reads single skips."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [each.longrepr[2] for each in skipped if "engines/containers/" in each.nodeid]
    for reason in sorted(set(reasons)):
        count = reasons.count(reason)
        terminalreporter.write_line(f"docker: {count} tests did not run: {reason}")
