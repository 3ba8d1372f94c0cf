"""The hooks in a process of pytest that a watcher watches."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_multihost.core import files
from pytest_multihost.core.artifacts_access import artifacts_access
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.extensions.live.watch.exchange import Answer, Told, answer_to, tell
from pytest_multihost.extensions.live.watch.option import IN_WORKER, WORKERS
from pytest_multihost.hookspecs import hookimpl

_SECTION = "multihost watch: for whom the ranks waited"
_FOLDER = "watched"


@dataclass(slots=True)
class WatchedTests:
    """Tells the watcher which test runs, and adds its answer to the report of a failed one.

    Attributes:
        number: The number of the present test.
        is_shown: Whether its report has the page already.
        worlds: The tests that are worlds, which their own controller watches.
    """

    folder: Path
    number: int = 0
    is_shown: bool = False
    worlds: set[pytest.Item] = field(default_factory=set)

    @classmethod
    def of(cls, folder: str) -> WatchedTests:
        """Return the hooks for the folder of a watcher."""
        return cls(Path(folder))

    @hookimpl
    def pytest_multihost_collected(self, items: Iterable[pytest.Item]) -> None:
        """Note which tests are worlds; to ask the class of an item would import all of the core."""
        self.worlds.update(items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Say that no test runs any more, unless the test is interrupted."""
        result = yield
        self._tell("")
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Say which test begins; a test that is run again begins here, too."""
        self.number, self.is_shown = self.number + 1, False
        self._tell(self._watched(item))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Say that the test's function runs, and whether pytest-timeout has set its alarm."""
        self._tell(self._watched(item), is_call=True)
        try:
            return (yield)
        finally:  # while its failure is reported, nothing is ended any more
            self._tell(self._watched(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the page to the report of a test that fails; fail one whose ranks were ended.

        Some harnesses pass although their ranks were killed.
        """
        report = yield
        if self.is_shown or not (report.failed or report.when == "call"):
            return report
        found = answer_to(self.folder, os.getpid(), self.number)
        if found is None or not (report.failed or found.has_ended):
            return report
        self.is_shown = True
        if found.has_ended:
            said = str(report.longrepr or "it would have passed")
            report.outcome, report.longrepr = "failed", f"{found.page}\n\nThe test itself: {said}"
        else:
            report.sections.append((_SECTION, found.page))
        with contextlib.suppress(OSError, MultihostError):
            _keep(item, found)
        return report

    def _watched(self, item: pytest.Item) -> str:
        """Return the id of a test; empty if it is a world."""
        return "" if item in self.worlds else item.nodeid

    def _tell(self, test: str, *, is_call: bool = False) -> None:
        with contextlib.suppress(OSError):  # the watcher is gone, or the disk is full
            controller, workers = _team() if IN_WORKER in os.environ else (0, 0)
            told = Told(self.number, test, _has_alarm(), is_call, controller, workers)
            tell(self.folder, os.getpid(), told)


def _team() -> tuple[int, int]:
    """Return the controller of a worker of xdist, and how many workers it has started at first."""
    count = os.environ.get(WORKERS, "")
    return os.getppid(), int(count) if count.isdecimal() else 0


def _has_alarm() -> bool:
    """Return whether the handler of SIGALRM is that of pytest-timeout, which fails the test."""
    handler = signal.getsignal(signal.SIGALRM)
    return getattr(handler, "__module__", "") == "pytest_timeout"


def _keep(item: pytest.Item, found: Answer) -> None:
    """Write the page and the verdict into the artifacts."""
    artifacts = files.artifacts_folder()
    files.claim(artifacts, artifacts_access())
    name = "".join(each if each.isalnum() or each in "-._" else "_" for each in item.nodeid)[-100:]
    folder = artifacts / _FOLDER / name
    files.make_directory(folder, artifacts_access())
    files.write(folder / "page.txt", f"{found.page}\n")
    files.write(folder / "verdict.json", found.verdict)
