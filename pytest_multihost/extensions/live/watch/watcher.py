"""The work of the process above pytest: it finds jobs that have come to rest, and judges them.

It looks only once nothing below it has worked for a while, and then ever more seldom. It says one
line when it is proven that neither the ranks nor the test that has started them can move, and keeps
the page of the last look for the test's report. It signals no process, except with `END`.

Most runs never come to rest. So the judging code is imported for the first look only.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.core import files
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.printable import printable
from pytest_multihost.extensions.live.watch.exchange import Answer, Told, answer, answer_to, told_in
from pytest_multihost.extensions.live.watch.option import END, REPORT
from pytest_multihost.extensions.live.watch.tree import Tree, read_tree

if TYPE_CHECKING:
    from pytest_multihost.extensions.live.processes import Job
    from pytest_multihost.extensions.live.seen_world import SeenJob

STILL_S = 1.0
"""How long nothing must work before a look at a job."""

STILL_LONG_S = 3.0
"""The same until the looks, with the first one, have used no more than `_SHARE` of a processor."""

_SHARE, _FIRST_LOOK_S = 0.01, 1.0
_IDLE_SHARE = 0.1
_FIRST_S, _MOST_S = 1.0, 60.0
"""Time from one look to the next: at first, and at most."""

_ALWAYS = "PYTEST_MULTIHOST_WATCH_ALWAYS"
"""A variable of benchmarks: looks are taken although jobs work, and looks are written to a file.

It is the path of this file, which has one JSON object a line.
"""

ENDS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Signals with which a user ends the run: the ranks work again then, to end."""

ENDING_S = 3.0
"""How long after such a signal the pages are shown although the run has not ended."""

_AWAKE_NS = 300_000_000
"""A job that has worked this long since a look is not where it was."""


@dataclass(slots=True)
class _Watch:
    """One test that runs.

    Attributes:
        told: The last message of its process.
        still_s: Since when nothing has worked.
        next_s: When it is worth looking again.
        seen: The tree at the last look.
        had_children: Whether it has started processes.
        is_said: Whether the line has been written.
        is_kept: Whether the page stays, whatever the ranks do.
    """

    told: Told
    still_s: float
    next_s: float = 0.0
    wait_s: float = _FIRST_S
    seen: Tree | None = None
    had_children: bool = False
    is_said: bool = False
    is_kept: bool = False


@dataclass(slots=True)
class Watcher:
    """Watches the processes below another one.

    Attributes:
        child: The process that is watched, with all that it starts.
        folder: Where pytest tells which test it runs.
        mode: `REPORT` or `END`.
    """

    child: int
    folder: Path
    mode: str = REPORT
    _watches: dict[int, _Watch] = field(default_factory=dict)
    _last: tuple[float, Tree] = (0.0, Tree())
    _look: threading.Thread | None = None
    _ranks: dict[int, bool] = field(default_factory=dict)
    _gone: tuple[Told, ...] = ()
    _around: dict[int, int] = field(default_factory=dict)
    _imported_s: float = 0.0
    _paid_s: float = field(default_factory=lambda: time.monotonic() + _FIRST_LOOK_S / _SHARE)
    _kept_s: float = math.inf
    _is_shown: bool = False
    _always: str = field(default_factory=lambda: os.environ.get(_ALWAYS, ""))

    @property
    def is_still(self) -> bool:
        """Whether nothing has worked between the last two readings in a test, if one runs."""
        return any(each.still_s < self._last[0] for each in self._watches.values())

    def used_s(self) -> float:
        """Return the processor time of this thread, without the import for the first look."""
        return time.thread_time() - self._imported_s

    def look(self) -> None:
        """Read the tree, and begin to look at a job that has come to rest."""
        now_s, tree = time.monotonic(), read_tree(self.child)
        found = told_in(self.folder)
        told = {pid: each for pid, each in found.items() if pid in tree.parents}
        self._gone = tuple(e for pid, e in found.items() if pid not in told and e.controller)
        running = {pid: each for pid, each in told.items() if each.test}
        if not told:  # no pytest runs below: the command itself has started the ranks
            running = {self.child: Told(1, is_call=True)}
        last_s, last = self._last
        for pid, each in running.items():
            self._follow(pid, each, tree, last, now_s - last_s, now_s)
        self._watches = {pid: each for pid, each in self._watches.items() if pid in running}
        self._last = now_s, tree
        self._around = {
            each: pid
            for pid in reversed(tree.parents)  # the outermost at last
            if pid in running
            for each in tree.below(pid) - {pid}
            if each in running
        }
        inner = {each for each in self._around if self._has_ranks(each)}
        outer = {pid for pid in running if not inner.isdisjoint(tree.below(pid) - {pid})}
        if now_s > self._kept_s + ENDING_S:  # pytest waits for its ranks, as multiprocessing does
            self.end()
        is_looking = self._look is not None and self._look.is_alive()
        still_s = STILL_S if now_s >= self._paid_s or self._always else STILL_LONG_S
        due = {
            pid: each
            for pid, each in self._watches.items()
            if now_s - each.still_s >= still_s and now_s >= each.next_s
            if self._has_ranks(pid) and pid not in outer
        }
        if due and not is_looking:
            self._look = threading.Thread(target=self._look_at, args=(due, tree), daemon=True)
            self._look.start()

    def keep(self) -> None:
        """Keep the pages of the tests that run now: a user ends the run."""
        self._kept_s = min(self._kept_s, time.monotonic())
        for each in self._watches.values():
            each.is_kept = True

    def _follow(
        self, pid: int, told: Told, tree: Tree, last: Tree, elapsed_s: float, now_s: float
    ) -> None:
        """Note whether a test has worked since the last reading."""
        watch = self._watches.get(pid)
        if watch is None or watch.told.number != told.number:
            watch = self._watches[pid] = _Watch(told, now_s)
            answer(self.folder, pid, None)
        watch.told = told
        below = tree.below(pid)
        watch.had_children |= len(below) > 1 or self._is_of_several(pid)
        is_idle = tree.used_since(last, below) <= _IDLE_SHARE * elapsed_s * 1e9
        if not self._always and (not is_idle or below - last.parents.keys()):
            watch.still_s = now_s
        if watch.seen is None or watch.is_kept or not ENDS.isdisjoint(signal.sigpending()):
            return
        others = below if self._is_rank(pid) else below - {pid}  # pytest may work, as after Ctrl-C
        if tree.ran_since(watch.seen, others) > _AWAKE_NS:
            watch.seen, watch.wait_s = None, _FIRST_S
            answer(self.folder, pid, None)

    def _has_ranks(self, pid: int) -> bool:
        """Return whether a test has started processes, or is one of several ranks."""
        return self._watches[pid].had_children or self._is_rank(pid)

    def _is_rank(self, pid: int) -> bool:
        if pid not in self._ranks:
            begun_s = time.thread_time()
            from pytest_multihost.extensions.live.watch.judging import is_rank

            self._imported_s += time.thread_time() - begun_s
            self._ranks[pid] = is_rank(pid)
        return self._ranks[pid]

    def _look_at(self, due: Mapping[int, _Watch], tree: Tree) -> None:
        """Judge the jobs of tests that have come to rest."""
        from pytest_multihost.extensions.live.watch.judging import Team, jobs_of, judged_with_test
        from pytest_multihost.extensions.live.watch.strays import strays_of

        for pid, watch in due.items():
            begun_s, told = _used_s(), watch.told
            team = Team(self._same_test(pid), self._gone_in(told), told.workers)
            try:
                for job in jobs_of(pid, self.child, team, self._around.get(pid, 0)):
                    asked = replace(
                        job,
                        alarmed=self._alarmed(),
                        controllers=frozenset({told.controller} - {0, job.within}),
                        strays=strays_of(self.child, str(self.folder)) if job.ended else (),
                    )
                    found, seen = judged_with_test(asked, pid)
                    self._record(watch, seen)
                    if not watch.is_kept:
                        self._keep(pid, watch, tree, found, seen)
            except (MultihostError, OSError, LookupError, ValueError):
                pass  # it has ended meanwhile, or may not be read
            cost_s = _used_s() - begun_s
            self._paid_s = max(self._paid_s, time.monotonic()) + cost_s / _SHARE
            watch.next_s = time.monotonic() + max(watch.wait_s, 10 * cost_s)
            watch.wait_s = _FIRST_S if self._always else min(2 * watch.wait_s, _MOST_S)

    def _record(self, watch: _Watch, seen: SeenJob) -> None:
        """Write a look to the file of benchmarks, if there is one."""
        if self._always:
            told = {
                "test": watch.told.test,
                "is_proven": seen.is_proven and seen.judged.finding.outcome == "hung",
                "outcome": seen.judged.finding.outcome,
                "reason": str(seen.judged.finding.reason),
            }
            files.append(Path(self._always), f"{json.dumps(told)}\n")

    def _alarmed(self) -> frozenset[int]:
        return frozenset(pid for pid, each in told_in(self.folder).items() if each.has_alarm)

    def _same_test(self, pid: int) -> list[int]:
        """Return the workers that run the same test at once, as with ``--dist=each``."""
        test = self._watches[pid].told.test
        return [each for each, watch in self._watches.items() if test and watch.told.test == test]

    def _is_of_several(self, pid: int) -> bool:
        """Return whether other workers run the same test, or have ended while they ran it."""
        return len(self._same_test(pid)) + self._gone_in(self._watches[pid].told) > 1

    def _gone_in(self, told: Told) -> int:
        """Return how many workers have ended while they ran a test, as with ``--dist=each``."""
        alike = (each for each in self._gone if each.controller == told.controller)
        return sum(bool(told.test) and each.test == told.test for each in alike)

    def _keep(self, pid: int, watch: _Watch, tree: Tree, job: Job, seen: SeenJob) -> None:
        """Keep the page of a look for the report, and say the line if it is a proof."""
        from pytest_multihost.extensions.live.shown import texts_of
        from pytest_multihost.extensions.live.watch.ending import end_ranks, stop_run
        from pytest_multihost.extensions.live.watch.judging import summary_of, why_whole_run

        if seen.judged.diagnosis is None and not seen.left_behind:
            return
        texts = texts_of(job, seen.judged)
        is_proven = seen.is_proven and seen.judged.finding.outcome == "hung"
        ends = is_proven and self.mode == END and job.within == pid and self._is_in_call(pid, watch)
        why_whole = why_whole_run(job, seen)
        told = Answer(
            watch.told.number,
            texts.page,
            texts.verdict,
            is_proven,
            has_ended=ends and not why_whole,
        )
        answer(self.folder, pid, told)
        watch.seen = tree
        is_first = pid == min(job.pids.values()) or pid not in job.pids.values()
        if is_proven and is_first and not watch.is_said:
            watch.is_said = True
            whose = watch.told.test or f"process {pid}"
            then = f"; {why_whole or 'its ranks are ended'}" if ends else ""
            said = summary_of(job, seen)
            _say(f"{said}: nothing can move any more in {whose}{then}")
            if not watch.told.test:
                _say(texts.page)
        if ends and why_whole:
            stop_run(pid)
        elif ends:
            watch.seen = None  # the answer stays, whatever the test does now
            end_ranks(job.pids.values())

    def _is_in_call(self, pid: int, watch: _Watch) -> bool:
        """Return whether a test's function still runs since the look at it."""
        told = told_in(self.folder).get(pid)
        return watch.told.is_call and (
            told is None or (told.number, told.is_call) == (watch.told.number, True)
        )

    def end(self) -> None:
        """Show the page of a test that was interrupted: it has no report."""
        if self._is_shown:
            return
        self._is_shown = True
        pages = dict[str, str]()  # with --dist=each several processes have the same test
        for pid, told in sorted(told_in(self.folder).items()):
            found = answer_to(self.folder, pid, told.number)
            if told.test and found is not None:
                pages.setdefault(told.test, found.page)
        for test, page in pages.items():
            _say(f"{test} was interrupted\n{page}")


def _used_s() -> float:
    """Return the processor time of this process and of its ended children, as py-spy."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def _say(text: str) -> None:
    sys.stderr.write(f"\nmultihost watch: {printable(text, keeps_lines=True)}\n")
    sys.stderr.flush()
