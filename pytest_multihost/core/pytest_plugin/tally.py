"""Counts worlds in every run, also one without any, and reports at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost.core.option import Settings

# Every run of pytest imports this module.
if TYPE_CHECKING:
    from pathlib import Path

    import pluggy

    from pytest_multihost.core.pytest_plugin.marks import Axes


class PytestMultihostWarning(pytest.PytestWarning):
    """Worlds were requested and none ran."""


@dataclass(slots=True)
class Tally:
    """The counts and final lines of one run of pytest.

    Attributes:
        settings: The run's settings; markers override them.
        run_id: Name of the run; the same in all processes of pytest-xdist.
        selected: Number of selected multihost items, including those of xdist's workers.
        ran: Number of started worlds, including those of xdist's workers.
        skipped: How many of them all ranks have skipped.
        fatal: Why the run fails although no test did.
        unwritten: Artifacts that could not be written, and why.
        lines: The summaries of analyses, one line each.
        axes: The sizes and backends of the collected tests, by their ids without parameters.
    """

    settings: Settings
    run_id: str | None = None
    selected: int = 0
    ran: int = 0
    skipped: int = 0
    fatal: str | None = None
    unwritten: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    axes: dict[str, Axes] = field(default_factory=dict)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Record an error of writing artifacts instead of raising it, so the verdict is shown."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no error may hide the verdict
            self.note(what, error)

    def note(self, what: str, error: Exception) -> None:
        """Record an error of writing artifacts."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self.unwritten.append(f"{what}: {text}")


TALLY = pytest.StashKey[Tally]()

RUNNING: list[pytest.Item] = []
"""The test that runs in this process; the last of several, in a run of pytest inside another."""


def end_run(tally: Tally, session: pytest.Session) -> None:
    """Write the run's page; warn, or fail the run, if worlds were requested and none ran."""
    config = session.config
    if hasattr(config, "workerinput"):  # the controller adds up its workers' counts
        worker: Any = config
        summed = ("selected", "ran", "skipped", "unwritten", "lines")
        worker.workeroutput["multihost"] = {name: getattr(tally, name) for name in summed}
        return
    if tally.ran and tally.run_id is not None:
        from pytest_multihost.core.pytest_plugin.options import artifacts_directory

        folder = artifacts_directory(config, tally.settings) / tally.run_id
        # `multihost open` writes the page of a run that has nothing to show but passed tests.
        if any(folder.glob("*/*.html")):
            _write_index(tally, folder, config.hook)
    is_required = bool(config.getini("multihost_require"))
    message = _missing(tally, is_required=is_required, asked=_asked(config, tally.settings))
    ended = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    # pytester's sessions end without a status.
    status = getattr(session, "exitstatus", pytest.ExitCode.OK)
    has_own_error = status not in (*ended, pytest.ExitCode.TESTS_FAILED)
    if message is None or config.option.collectonly or session.shouldstop or has_own_error:
        return
    if is_required:
        tally.fatal = message
    else:
        try:
            warning = PytestMultihostWarning(message)
            config.issue_config_time_warning(warning, stacklevel=2)
        except PytestMultihostWarning:  # -W error
            tally.fatal = message
    if tally.fatal and status in ended:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _write_index(tally: Tally, folder: Path, hook: pluggy.HookRelay) -> None:
    from pytest_multihost.core.registry import offered_renderers
    from pytest_multihost.core.report.html import write_index

    with tally.noting("the run's page"):
        write_index(folder, offered_renderers(hook))


def _asked(config: pytest.Config, settings: Settings) -> str:
    """Return the first option of the command line that asks for more than a setting; or nothing.

    Settings such as a timeout may stand in `addopts`, for the other tests of a project.
    """
    flags = ("--multihost-fault", "--multihost-points", "--multihost-keep")
    given = [each for each in flags if config.getoption(each[2:].replace("-", "_"), None)]
    known = (each for each in settings.options if each.bare is not None)
    bare = (each.flag for each in known if each.needs_worlds)
    given += sorted({*bare} & {*settings.sources.values()})
    return "--ranks" if config.getoption("multihost_ranks") is not None else next(iter(given), "")


def _missing(tally: Tally, *, is_required: bool, asked: str) -> str | None:
    if tally.ran > (tally.skipped if is_required else 0):
        return None
    if tally.selected:
        one = tally.selected == 1
        what = "1 multihost test was" if one else f"{tally.selected} multihost tests were"
        where = " in any rank: all were skipped there" if tally.ran else ""
        return f"{what} selected, and {'it did not run' if one else 'none ran'}{where}"
    if asked:
        return f"{asked} was given, but no selected test is marked with @pytest.mark.multihost"
    if is_required:
        return "multihost_require is set, but no selected test is multihost"
    return None


def summarize(reporter: pytest.TerminalReporter, tally: Tally) -> None:
    """Write the final lines, which artifacts are missing, and why a run without failures fails."""
    from pytest_multihost.core.model.printable import printable

    if tally.ran and getattr(reporter.config.option, "numprocesses", None):
        # With xdist only the workers collect, so the header has no line about worlds.
        runs = "1 test ran" if tally.ran == 1 else f"{tally.ran} tests ran"
        reporter.write_line(f"multihost: {runs} on several ranks")
    for line in tally.lines:
        reporter.write_line(printable(line))
    if tally.unwritten:
        count, first = len(tally.unwritten), tally.unwritten[0]
        noun = "artifact" if count == 1 else "artifacts"
        message = f"multihost: {count} {noun} could not be written. First: {first}"
        reporter.write_line(printable(message), yellow=True)
    if tally.fatal:
        reporter.write_sep("=", "multihost", red=True, bold=True)
        reporter.write_line(f"FAILED: {tally.fatal}", red=True)
