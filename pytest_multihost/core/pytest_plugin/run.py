"""One run of pytest that has worlds: its state from start to end, and its hooks.

It is imported when the first multihost test is known. All heavy imports are below this module, so a
run without worlds never loads them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_multihost.core.backends import find_backend, named_backend, offered_backends
from pytest_multihost.core.fault_planner import FaultPlanner, offered_planner
from pytest_multihost.core.files import REMEDY
from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.launch.capacity import look
from pytest_multihost.core.launch.descriptor_limit import keep_descriptors_free
from pytest_multihost.core.launch.ending_signals import (
    ignore_further_signals,
    interrupt_on_signals,
    restore_signals,
)
from pytest_multihost.core.model.acceptance import Acceptance
from pytest_multihost.core.model.errors import LaunchError, SettingError, UnsoundForkError
from pytest_multihost.core.model.event import Done
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.option import ACCESS, ARTIFACTS, RANKS
from pytest_multihost.core.pytest_plugin.acceptances import read_acceptances
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt, run_attempt
from pytest_multihost.core.pytest_plugin.item import convert, finish_report
from pytest_multihost.core.pytest_plugin.launchers import Launchers
from pytest_multihost.core.pytest_plugin.live_display import write_through
from pytest_multihost.core.pytest_plugin.options import artifacts_directory
from pytest_multihost.core.pytest_plugin.other_machines import OtherMachines
from pytest_multihost.core.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.core.pytest_plugin.scratch_folders import ScratchFolders
from pytest_multihost.core.pytest_plugin.tally import TALLY, PytestMultihostWarning, Tally
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.pytest_private import base_temp, skip_item
from pytest_multihost.core.report.artifacts import RunFolder, new_run_id
from pytest_multihost.core.report.text import stacks_text

PLATFORM = sys.platform

RUN = pytest.StashKey["Run"]()
"""The state of a run with worlds, for extensions."""

_TIMEOUT = pytest.StashKey[float]()
"""The timeout that pytest-timeout would have applied to an item, in seconds."""


def start_run(
    session: pytest.Session, chosen: Sequence[pytest.Item], problems: Sequence[str] = ()
) -> None:
    """Plan the multihost items, start their servers, and convert them to run in ranks.

    Args:
        problems: Those found before; they are reported with those of the items.

    Raises:
        pytest.UsageError: A marker or an option is wrong, or a server cannot be started.
    """
    config, option = session.config, session.config.option
    for name in ("reports", "tmpdir"):
        if not config.pluginmanager.has_plugin(name):
            raise usage_error(
                f"multihost tests need pytest's plugin {name!r}: leave out -p no:{name}"
            )
    tally = config.stash[TALLY]
    others: OtherMachines | None = config.hook.pytest_multihost_other_machines(config=config)
    find = find_backend if others is None else named_backend
    plans = plan_items(config, chosen, tally.settings, find, problems)
    tally.selected = len(plans)
    if option.collectonly or getattr(option, "setupplan", False):
        return
    if PLATFORM != "linux" and others is None:
        reason = f"multihost tests need Linux (/proc, pidfds), and this is {PLATFORM}"
        for item in chosen:
            item.add_marker(pytest.mark.skip(reason=reason))
        return
    interrupt_on_signals()
    run = _open_run(config, tally, plans, chosen, others)
    for item in chosen:
        convert(item, run.run_item)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for line in _announcement(run, chosen, reporter.verbosity):
            reporter.write_line(line)


def run_without_tests(config: pytest.Config) -> Run:
    """Return the run's state, which is made if no test runs as a world."""
    tally = config.stash[TALLY]
    return config.stash.get(RUN, None) or _open_run(config, tally, {}, (), None)


def _announcement(run: Run, chosen: Sequence[pytest.Item], verbosity: int) -> Iterator[str]:
    """Yield the lines of the run before its first test.

    Args:
        verbosity: pytest's; negative: only warnings are wanted.
    """
    others = run.others
    largest = max(plan.world.size for plan in run.plans.values())
    warning = look().warning(largest, os.cpu_count() or 1) if others is None else ""
    for note in filter(None, (warning, _unused_sizes(run.config, run.tally, chosen))):
        yield f"multihost: {note}"
    if verbosity >= 0:
        counts = f"{len(chosen)} {'test runs' if len(chosen) == 1 else 'tests run'}"
        launch = run.launchers.describe() if others is None else others.launcher.name
        how = f", launch: {launch}" if launch != "fork" else ""
        yield f"multihost: {counts} on several ranks{how}"


def _unused_sizes(config: pytest.Config, tally: Tally, chosen: Iterable[pytest.Item]) -> str:
    """Return a note if --ranks was given and each test has a size of its own; else nothing."""
    is_of_roles = isinstance(tally.settings.get(RANKS), Mapping)
    if config.getoption("multihost_ranks") is None or is_of_roles:
        return ""
    own = (tally.axes.get(item.nodeid.partition("[")[0]) for item in chosen)
    if any(axes is None or axes.is_of_any_size for axes in own):
        return ""
    return "--ranks has no effect, because the marker of each selected test has a number of ranks"


def _open_run(
    config: pytest.Config,
    tally: Tally,
    plans: Mapping[str, Plan],
    items: Sequence[pytest.Item],
    others: OtherMachines | None,
) -> Run:
    """Open the run's folder, register its hooks, and start the servers, unless others start ranks.

    Raises:
        pytest.UsageError: The folder cannot be made, the requested way of launching is not sound,
            or a server cannot start.
    """
    workerinput: Mapping[str, str] = getattr(config, "workerinput", {})  # of an xdist worker
    tally.run_id = workerinput.get("multihost_run_id") or new_run_id()
    folder = _open_folder(config, tally, tally.run_id)
    backends = {each.name: each for plan in plans.values() for each in plan.backends}
    confirming = {each.confirmed_by for each in backends.values()}
    offered = {each.name: each for each in reversed(offered_backends(config.hook))}
    backends |= {name: offered[name] for name in confirming & offered.keys()}
    launchers = Launchers(config, tally.settings, items, backends, folder.path)
    planner = offered_planner(config.hook)
    accepted = read_acceptances(config.rootpath, tally.settings)
    run = Run(config, tally, plans, planner, launchers, folder, accepted, others)
    config.stash[RUN] = run
    config.pluginmanager.register(run, "multihost_run")  # before the servers, because it ends them
    try:
        for plan in plans.values() if others is None else ():
            launchers.get(plan.requirements)
    except UnsoundForkError as error:
        raise usage_error(
            f"{error.happened}\nSeen: {error.seen}.\n"
            "Use --multihost-launch=auto, or move the start of threads or a runtime into a fixture."
        ) from error
    except LaunchError as error:
        raise usage_error(str(error)) from error
    return run


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def _open_folder(config: pytest.Config, tally: Tally, run_id: str) -> RunFolder:
    """Open the run's folder of artifacts, or one among pytest's temporary files.

    The latter if the disk is full, or if the folder is the default one and must not be written to.

    Raises:
        pytest.UsageError: The artifacts directory cannot be used, or has files of something else.
    """
    base = artifacts_directory(config, tally.settings)
    try:
        return RunFolder.open(base, run_id, tally.settings.get(ACCESS))
    except (SettingError, OSError) as error:
        is_named = ARTIFACTS.name in tally.settings.sources
        refused = _FULL if is_named else _FULL | _READ_ONLY
        if isinstance(error, OSError) and error.errno in refused:
            instead = base_temp(config) / "artifacts"
            tally.lines.append(
                f"multihost: the artifacts are in {instead}: {base} cannot be written ({error})"
            )
            tally.settings = tally.settings.having(ARTIFACTS, instead)
            return RunFolder.open(instead, run_id, tally.settings.get(ACCESS))
        why = str(error) if isinstance(error, SettingError) else f"{error}\n{REMEDY}"
        raise usage_error(f"the artifacts directory {base} cannot be used\n{why}") from error


def _pass_on_stops(session: pytest.Session, result: WorldResult) -> None:
    """Stop the run if a rank has asked its copy of pytest's session for that."""
    for each in result.history:
        if isinstance(each.body, Done) and each.body.shouldfail:
            session.shouldfail = each.body.shouldfail
        if isinstance(each.body, Done) and each.body.shouldstop:
            session.shouldstop = each.body.shouldstop


UNSEALED = (
    "multihost: the roles share this machine's network (hosts='one'), so other processes can"
    " connect to them; while a role listens, no hang can be proven."
)
"""The beginning of a note about tests whose roles could not be sealed off."""


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Run:
    """The state of a run of pytest with worlds, and a plugin of that run.

    Attributes:
        plans: The plan of each multihost item, by its node id.
        planner: Reads and checks faults.
        accepted: The weaknesses that the project accepts, with reasons.
        others: The machines that start the ranks; None: this one does.
    """

    config: pytest.Config
    tally: Tally
    plans: Mapping[str, Plan]
    planner: FaultPlanner
    launchers: Launchers
    folder: RunFolder
    accepted: Sequence[Acceptance] = ()
    others: OtherMachines | None = None
    _attempts: Counter[str] = field(default_factory=Counter)
    _scratches: ScratchFolders = field(init=False)

    def __post_init__(self) -> None:
        self._scratches = ScratchFolders(self.config)

    def run_item(self, item: pytest.Item) -> CompletedAttempt:
        """Run one item as a world; skip or fail it if this machine cannot run the world.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM came; the ranks have been ended and the verdict has
                been written.
        """
        attempt = self.run_world(item, self.plans[item.nodeid])
        further = self.config.hook.pytest_multihost_explore(item=item, attempt=attempt)
        attempt = replace(attempt, analyses=(*attempt.analyses, *further))
        self.tally.lines += [each.summary for each in attempt.analyses if each.summary]
        return attempt

    def run_world(
        self, item: pytest.Item, plan: Plan, launcher: Launcher | None = None
    ) -> CompletedAttempt:
        """Run one world of an item; skip or fail the item if this machine cannot run it.

        Args:
            launcher: The launcher of the ranks, if they run something else than the item.

        Raises:
            KeyboardInterrupt: As for `run_item`.
        """
        with contextlib.suppress(LaunchError):  # the world says it
            keep_descriptors_free()
        interrupt_on_signals()  # again, if a test before this one has handled an interruption
        if self.others is None:
            plan = self._on_machine(plan)
        self._attempts[item.nodeid] += 1
        spec = self._spec(item, plan)
        if missing := self._lacking(plan, spec):
            end = pytest.fail if self.config.getini("multihost_require_gpu") else skip_item
            end(missing)
        own = launcher
        if own is None:
            own = self.others.launcher if self.others else self.launchers.get(plan.requirements)
        launcher = self.config.hook.pytest_multihost_launch(item=item, spec=spec, launcher=own)
        self.tally.ran += 1
        attempt = run_attempt(
            item,
            plan,
            spec,
            launcher=launcher,
            tally=self.tally,
            folder=self.folder,
            scratches=self._scratches,
        )
        judged = attempt.judged
        self.tally.skipped += judged.finding.status == "skipped"
        if judged.result.ending == "interrupted":
            stacks = stacks_text(judged)
            shown = f"{item.nodeid}: where the ranks were:\n{stacks}\nfiles {attempt.files}"
            write_through(self.config, f"\n{shown}\n")
            raise KeyboardInterrupt(judged.result.reason)
        _pass_on_stops(item.session, judged.result)
        if attempt.proven_hang is not None:
            message = f"a hang was detected before the deadline ({attempt.proven_hang})"
            item.warn(
                PytestMultihostWarning(
                    f"{message}; with multihost_early = warn the test goes on to its deadline"
                )
            )
        return attempt

    def _spec(self, item: pytest.Item, plan: Plan) -> WorldSpec:
        own_s = plan.world.timeout_s
        given_s = item.stash.get(_TIMEOUT, own_s)
        timeout_s = min(given_s, own_s) if plan.has_own_timeout else given_s
        spec = replace(
            plan.world,
            attempt=self._attempts[item.nodeid],
            timeout_s=timeout_s,
            timeout_from=plan.world.timeout_from if timeout_s == own_s else "pytest-timeout",
        )
        changed: WorldSpec = self.config.hook.pytest_multihost_prepare(
            item=item, plan=plan, spec=spec
        )
        return changed

    def _lacking(self, plan: Plan, spec: WorldSpec) -> str | None:
        """Return the part that the machines of the ranks lack for a world; None or empty: none."""
        if self.others is None:
            return replace(plan.planned, spec=spec).lacking
        try:
            return self.others.lacking(plan, spec)
        except LaunchError as error:
            pytest.fail(str(error), pytrace=False)

    def _on_machine(self, plan: Plan) -> Plan:
        """Return the plan as this machine can run it; skip the test if it cannot.

        Without the rights for the host that roles have by default, they are on this machine.
        """
        for fault in plan.world.faults:
            if reason := self.planner.lacking(fault):
                skip_item(reason)
        if not (reason := self.launchers.host_problem(plan.hosts, plan.requirements)):
            return plan
        if not plan.is_sealed:
            skip_item(reason)
        note = f"{UNSEALED} {reason}"
        self.tally.lines += [note] if note not in self.tally.lines else []
        return plan.unsealed()

    # Hooks that only a run with worlds needs

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Set the report's status to the ranks' result, after all other plugins."""
        report = yield
        finish_report(item, call, report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Ignore further signals, which would end pytest with a traceback before its summary."""
        ignore_further_signals()

    def pytest_unconfigure(self) -> None:
        """End the servers."""
        self.launchers.close()
        self._scratches.close()
        restore_signals()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:  # noqa: ANN401
        """Use pytest-timeout's timeout for the world: its timer would end pytest, not the ranks."""
        if item.nodeid not in self.plans:
            return None
        item.stash[_TIMEOUT] = float(settings.timeout)
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """Return True for a multihost item, which has no timer to cancel."""
        return True if _TIMEOUT in item.stash else None
