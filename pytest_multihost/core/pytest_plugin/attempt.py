"""One attempt of one test: from spec to world to result to verdict to files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.launch import Launcher, hold_permits
from pytest_multihost.core.model.errors import MultihostHazardWarning
from pytest_multihost.core.model.hazard import Hazards, RankRecord
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.sweep import Acceptance, SweepResult
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.outcome.points import require_fired
from pytest_multihost.core.pytest_plugin.plan import Plan, apply_expectation
from pytest_multihost.core.pytest_plugin.tally import TALLY, Tally
from pytest_multihost.core.pytest_private import (
    base_temp,
    is_terminal,
    terminal_writer,
    uncaptured,
    write_uncounted,
)
from pytest_multihost.core.report import LiveOutput, write_trace
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    package_versions,
    write_attempt,
    write_facts,
)
from pytest_multihost.core.report.html import (
    PAGE_NAME,
    SWEEP_PAGE_NAME,
    PageModel,
    write_page,
)
from pytest_multihost.core.report.text import ERASE, overlay
from pytest_multihost.core.slots import slots_path
from pytest_multihost.core.slots.readers import plain_calls, read_record
from pytest_multihost.core.watched_world import FindBlockingRanks, WatchedWorld, WorldProgress
from pytest_multihost.extensions.engines.pytest_plugin import peers_of
from pytest_multihost.extensions.hazards import (
    HazardRule,
    accept_hazards,
    chosen_rules,
    find_hazards,
)
from pytest_multihost.extensions.netns import HOSTS_FOLDER

# Read what the ranks of a world that has passed have recorded, and look for hazards in it.


def look_for_hazards(
    judged: Judgement, scratch: Path, rules: Sequence[HazardRule], accepted: Sequence[Acceptance]
) -> Hazards | None:
    """Return the hazards of a world; None if it was disturbed, or has not passed.

    Args:
        judged: The world.
        scratch: Its directory, with the slot pages of its ranks.
        rules: The rules to apply.
        accepted: What the project accepts.
    """
    spec = judged.result.spec
    if judged.finding.status != "passed" or judged.diagnosis is not None or spec.faults:
        return None
    go_s = judged.result.go_s or 0.0
    pages = [slots_path(scratch, rank) for rank in range(spec.size)]
    if not any(rule.judges_plain_runs for rule in rules):
        calls = {plain_calls(page, since_s=go_s) for page in pages}
        if len(calls) == 1 and None not in calls:  # all ranks have launched the same, in one order
            return Hazards(tuple(rule.name for rule in rules))
    records = {
        rank: _of_test(read_record(page, rank=rank), go_s) for rank, page in enumerate(pages)
    }
    found = find_hazards(records, rules, size=spec.size, place_of=judged.context.place)
    return accept_hazards(found, accepted, nodeid=spec.nodeid)


def _of_test(record: RankRecord, go_s: float) -> RankRecord:
    """Return what was launched since the test began, numbered by name as points are."""
    counts = Counter[str]()
    launches = []
    for each in record.launches:
        if each.operation.since_s >= go_s:
            counts[each.operation.name] += 1
            launches.append(replace(each, nth=counts[each.operation.name]))
    return replace(record, launches=tuple(launches))


# Warn of hazards, or fail the test.


def warn_of_hazards(item: pytest.Item, hazards: Hazards) -> bool:
    """Warn of each hazard at its first line; return whether such warnings are errors.

    Args:
        item: The test.
        hazards: What its run has shown.
    """
    is_error = False
    for hazard in hazards.open:
        path, line, _ = item.location
        place = hazard.places[0] if hazard.places else None
        file, number = (place.file, place.line) if place is not None else (path, (line or 0) + 1)
        try:
            warnings.warn_explicit(
                hazard.text, MultihostHazardWarning, str(Path(item.config.rootpath, file)), number
            )
        except MultihostHazardWarning:  # -W error
            is_error = True
    return is_error


def fails_test(item: pytest.Item, hazards: Hazards) -> bool:
    """Tell of a test's hazards, and return whether they fail it."""
    mode = item.config.stash[TALLY].settings.hazards.mode
    return bool(hazards.open) and (mode == "fail" or warn_of_hazards(item, hazards))


# What is shown while a world runs: a line on a terminal, or with -s the ranks' output.


@dataclass(slots=True)
class LiveLine:
    """A line that says where the ranks are, while a world takes longer than a second.

    Where some wait for another, it names that one and what it does.

    Attributes:
        config: The run's.
        progress: Says it.
        tick_s: How often it is to be updated.
    """

    config: pytest.Config
    progress: WorldProgress
    tick_s: ClassVar[float] = 1.0
    _shown_s: float = 0.0

    def close(self) -> None:
        """Take the line away."""
        self.progress.close()
        if self._shown_s:
            overwrite(self.config, lambda _: ERASE)

    def show(self, seconds: float, facts: Sequence[RankFacts]) -> None:
        """Show where the ranks are after `seconds`."""
        if seconds < self._shown_s + self.tick_s:
            return
        self._shown_s = seconds
        overwrite(self.config, lambda width: overlay(self.progress.text(seconds, facts), width))


def overwrite(config: pytest.Config, text: Callable[[int], str]) -> bool:
    """Write a text behind the cursor, if this is a terminal; return whether it is.

    A CI log may pretend to be one; there each update would be a line.

    Args:
        config: The run's.
        text: Returns the text, given how many columns there are for it.
    """
    writer = terminal_writer(config)
    if writer is None or os.environ.get("CI") or config.get_verbosity() < 0:
        return False
    # Past the capture, which holds the writer's descriptor while a test runs.
    with uncaptured(config):
        if is_there := is_terminal(writer):
            write_uncounted(writer, text(writer.fullwidth - writer.width_of_current_line))
    return is_there


def write_through(config: pytest.Config, text: str) -> None:
    """Write `text` to where pytest writes, also while it captures what tests write."""
    writer = terminal_writer(config)
    if writer is not None:
        with uncaptured(config):
            writer.write(text)
            writer.flush()


@contextmanager
def live_display(
    config: pytest.Config, directory: Path, size: int, find: FindBlockingRanks
) -> Iterator[LiveLine | LiveOutput]:
    """Show a running world: by a line on a terminal, or with -s the ranks' output."""
    is_captured = config.getoption("capture", None) != "no"
    output = LiveOutput(directory, size, partial(write_through, config))
    display = LiveLine(config, WorldProgress(find)) if is_captured else output
    try:
        yield display
    finally:
        display.close()


@dataclass(frozen=True, slots=True)
class CompletedAttempt:
    """One attempt of one item, when its world is over.

    Attributes:
        judged: The judged world.
        directory: Where its artifacts are.
        proven_hang: What proved a hang whose deadline was waited for: multihost_early = warn.
        sweep: What sweeping the test has shown; None if it was not asked for.
        hazards: What its run shows of hangs elsewhere; None if that was not looked for.
        is_failed_by_hazards: Whether these fail the test.
    """

    judged: Judgement
    directory: Path
    proven_hang: str | None
    sweep: SweepResult | None = None
    hazards: Hazards | None = None
    is_failed_by_hazards: bool = False

    @property
    def files(self) -> str:
        """What the page in the terminal says of the folder: the page for a browser, if any."""
        root, directory = Path(self.judged.context.root), self.directory
        where = directory.relative_to(root) if directory.is_relative_to(root) else directory
        pages = (SWEEP_PAGE_NAME, PAGE_NAME)
        page = next((each for each in pages if (directory / each).is_file()), "")
        return str(where / page)


def run_attempt(
    config: pytest.Config,
    plan: Plan,
    spec: WorldSpec,
    *,
    launcher: Launcher,
    tally: Tally,
    folder: RunFolder,
    accepted: Sequence[Acceptance] = (),
) -> CompletedAttempt:
    """Run a world, judge it, and write down what happened.

    Args:
        config: pytest's configuration.
        plan: How the test is to run.
        spec: The world.
        launcher: What starts its ranks.
        tally: Has the settings, and records files that could not be written.
        folder: The run's folder of artifacts.
        accepted: What the project accepts of sweeps and hazards.
    """
    # Not by the factory's `mktemp`: it leaves a symbolic link for every name.
    scratch = Path(tempfile.mkdtemp(prefix=f"world-{spec.seed}-", dir=base_temp(config)))
    directory = scratch  # where the artifacts' disk is full
    with tally.noting(spec.nodeid):
        directory = folder.attempt(spec.nodeid, spec.attempt)
    peers = [each for each in peers_of(config).values() if each.is_local]
    world = WatchedWorld.make(
        spec,
        directory=directory,
        scratch=scratch,
        early=tally.settings.early,
        others=frozenset(each.hello.pid for each in peers if each.hello.pid),
    )
    watchdog = world.watchdog
    # An xdist worker gets no Ctrl-C, and shares the machine with the others.
    is_worker = hasattr(config, "workerinput")
    is_kept = config.option.multihost_keep and not is_worker
    places = hold_permits(folder.path / "places", spec.size)
    display = live_display(config, directory, spec.size, watchdog.blocking_ranks)
    with places if is_worker else contextlib.nullcontext(), display as live:
        result = world.run(
            launcher,
            primary_leaves_last=plan.backend.primary_leaves_last,
            on_tick=live.show,
            tick_s=live.tick_s,
            on_hang=partial(_keep_alive, config) if is_kept else None,
        )
    judged = judge_world(result, plan.symptoms, SourceContext(str(config.rootpath)))
    finding = judged.finding
    if plan.expected is not None:
        finding = apply_expectation(finding, plan.expected, judged.diagnosis)
    # Last: a test whose fault never fired has shown nothing, even if it hung as expected.
    judged = replace(judged, finding=require_fired(finding, result))
    hazards = None
    if spec.keeps_operations and plan.expected is None:
        rules = chosen_rules(tally.settings.hazards.rules)
        hazards = look_for_hazards(judged, scratch, rules, accepted)
    attempt = CompletedAttempt(judged, directory, watchdog.warned, hazards=hazards)
    _write_artifacts(attempt, plan, folder, tally)
    if judged.finding.status == "passed":
        _remove_scratch(scratch, config)
    return attempt


def _write_artifacts(
    attempt: CompletedAttempt, plan: Plan, folder: RunFolder, tally: Tally
) -> None:
    """Write everything that is known of an attempt; note what could not be written."""
    judged, directory = attempt.judged, attempt.directory
    result, finding, root = judged.result, judged.finding, judged.context.root
    about = Attempt(
        run_id=folder.run_id,
        directory=directory.name,
        worker=os.environ.get("PYTEST_XDIST_WORKER"),
        environment=package_versions(),
    )
    is_expected = None if plan.expected is None else finding.status == "passed"
    hazards = to_json(attempt.hazards) if attempt.hazards is not None else None
    verdict = replace(build_verdict(judged, about), expected=is_expected, hazards=hazards)
    has_hazards = attempt.hazards is not None and bool(attempt.hazards.open)
    has_page = finding.outcome not in ("passed", "skipped") or has_hazards
    nodeid = result.spec.nodeid
    with tally.noting(nodeid):
        if has_page:
            write_facts(directory, result, plan.symptoms, about, root=root)
        write_attempt(directory, to_json(verdict), result.history, origin_s=result.started_s)
        folder.append_verdict(to_json(verdict))
    if has_page:
        with tally.noting(f"{nodeid}: trace.json"):
            write_trace(directory, result, judged.diagnosis, root=root)
        with tally.noting(f"{nodeid}: {PAGE_NAME}"):  # last: it lists the other files
            write_page(directory, PageModel(judged=judged, verdict=verdict))


def _remove_scratch(scratch: Path, config: pytest.Config) -> None:
    """Remove what a world that passed has left in its scratch directory.

    All of it, or with tmp_path_retention_policy = "all" only what is empty or not the test's.
    """
    if str(config.getini("tmp_path_retention_policy")) != "all":
        shutil.rmtree(scratch, ignore_errors=True)
        return
    for store in scratch.glob("*-store"):
        store.unlink(missing_ok=True)
    shutil.rmtree(scratch / HOSTS_FOLDER, ignore_errors=True)
    for directory in (*scratch.iterdir(), scratch):
        with contextlib.suppress(OSError):  # not empty: the test's own files
            directory.rmdir()


def _keep_alive(config: pytest.Config, facts: Sequence[RankFacts]) -> None:
    """Print how to attach to the ranks of a world that hangs, and wait for Ctrl-C, or an hour."""
    alive = [each for each in facts if each.pid is not None and not each.is_gone]
    lines = [f"  rank {each.rank}  py-spy dump --pid {each.pid}" for each in alive]
    head = "the world hangs and its ranks are kept; Ctrl-C ends them and goes on:"
    write_through(config, "\n".join(["", head, *lines, ""]))
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(3600)
