"""Says at a test why the processes that it starts are not adopted."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field

from pytest_multihost.core.pytest_plugin.calls import IN_RANK
from pytest_multihost.core.pytest_plugin.tally import RUNNING, PytestMultihostWarning
from pytest_multihost.core.pytest_private import terminal_writer, uncaptured

_WATCH = "`--multihost-watch` watches such processes from outside"


@dataclass(slots=True)
class Refusals:
    """The calls of a run that started processes as before.

    Attributes:
        reasons: Why, and for how many tests.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    _said: set[tuple[str, str]] = field(default_factory=set)

    def add(self, what: str, why: str) -> None:
        """Say it at the test that runs: in its report, as a warning, and once on the terminal.

        The terminal shows it at once, because a hang may follow. The warning is not an exception
        under `-W error`: the test goes on as it would without this plugin.

        Args:
            what: The function that starts the processes.
            why: Why they are not adopted.
        """
        if why == IN_RANK:  # the world's report shows its ranks
            return
        if not RUNNING or (RUNNING[-1].nodeid, why) in self._said:
            return
        item, is_new = RUNNING[-1], not self.reasons[why]
        self._said.add((item.nodeid, why))
        self.reasons[why] += 1
        text = f"{what} starts processes, whose hang has no verdict: {why}"
        item.add_report_section("call", "multihost", f"{text}\n{_WATCH}")
        path, line, _ = item.location
        message = warnings.WarningMessage(
            PytestMultihostWarning(f"{text} ({_WATCH})"),
            PytestMultihostWarning,
            str(item.config.rootpath / path),
            (line or 0) + 1,
        )
        item.config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": message,
                "when": "runtest",
                "nodeid": item.nodeid,
                "location": None,
            }
        )
        writer = terminal_writer(item.config)
        if is_new and writer is not None:
            with uncaptured(item.config):
                writer.line(f"\nmultihost: {item.nodeid}: {text}; {_WATCH}")
                writer.flush()

    def __str__(self) -> str:
        """Return all reasons, the most frequent first."""
        counted = ", ".join(f"{why} ({count})" for why, count in self.reasons.most_common())
        total = self.reasons.total()
        return f"{total} started processes as before: {counted}" if counted else ""
