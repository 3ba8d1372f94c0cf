"""Runs a function on ranks that are forked from pytest's own process, inside a test.

The test itself runs here, once, and may have set up anything: the ranks have a copy of it, as
processes have that multiprocessing forks. The world is like other worlds: it has a watchdog,
faults, hazards, a verdict and artifacts.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pluggy
import pytest

from pytest_multihost.core import files
from pytest_multihost.core.backends import Backend
from pytest_multihost.core.launch.server import ServerLauncher, call_fork_problems, fork_server
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import NoWorldError, SettingError, UnsoundForkError
from pytest_multihost.core.model.event import Interrupted
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.outcome import RankFacts, RankFinding
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.item import add_results
from pytest_multihost.core.pytest_plugin.plan import Plan, plan_items
from pytest_multihost.core.pytest_plugin.run import Run, run_without_tests
from pytest_multihost.core.pytest_plugin.tally import RUNNING
from pytest_multihost.core.rank import current_world, prepare_recording
from pytest_multihost.core.rank.body import run_body
from pytest_multihost.core.rank.stages import start_backend, start_rank
from pytest_multihost.core.report.text import page_sections

_KEPT = ("PYTEST_MULTIHOST_", "GLOO_SOCKET_IFNAME")
"""The variables of a rank that it keeps, beside those of pytest's process."""


IN_RANK = "this process is itself a rank"
"""Why a rank starts processes as before."""

_PYTEST = os.getpid()
"""The process that has imported this: the others are forked from it."""


class CallFailedError(RuntimeError):
    """A rank of a call has failed; torch's own exceptions take its place where torch is loaded.

    Attributes:
        error_index: The rank.
        error_pid: Its process.
    """

    def __init__(self, message: str, error_index: int, error_pid: int) -> None:
        super().__init__(message)
        self.error_index, self.error_pid = error_index, error_pid


class CallHungError(pytest.fail.Exception):  # type: ignore[misc, name-defined]
    """The ranks of a call hang; has the verdict's page."""

    def __init__(self, page: str) -> None:
        super().__init__(page, pytrace=False)


def spawn(fn: Callable[..., object], args: Sequence[Any] = (), nprocs: int = 2) -> None:
    """Run ``fn(rank, *args)`` on `nprocs` ranks, inside a test that runs in pytest's process.

    It takes the place of `torch.multiprocessing.spawn`, and raises the same exceptions:
    `ProcessRaisedException` with the traceback of the rank, or `ProcessExitedException`. The ranks
    are forked from pytest's process, so nothing is imported again, and nothing need be pickled. A
    hang is proven, and fails the test with its verdict.

    Raises:
        UnsoundForkError: pytest's process has threads or a runtime that a fork would break.
        SettingError: No test runs in this process, or it is itself a rank.
    """
    __tracebackhide__ = True
    call_ranks(lambda rank: fn(rank, *args), nprocs)


def call_problems() -> list[str]:
    """Return why no function can be run on ranks here; empty if it can."""
    if not RUNNING or os.getpid() != _PYTEST:
        return ["no test runs in this process"]
    try:
        current_world()
    except NoWorldError:
        return call_fork_problems()
    return [IN_RANK]


def call_ranks(function: Callable[[int], object], size: int) -> None:
    """Run ``function(rank)`` on ranks.

    Raises:
        UnsoundForkError: pytest's process cannot be forked.
        SettingError: No test runs in this process, or it is itself a rank.
        CallHungError: The ranks hang.
        CallFailedError: A rank failed; or torch's exception.
    """
    __tracebackhide__ = True
    attempt = run_call(function, size)
    item = RUNNING[-1]
    finding = attempt.judged.finding
    if finding.status in ("passed", "xpassed"):
        raise_findings(attempt)
        return
    if finding.outcome == "hung":
        raise hung_error(attempt)
    item.add_report_section("call", "multihost", _page(attempt))
    first = next((e for e in finding.ranks if e.facts.rank == finding.headline), finding.ranks[0])
    raise _failure(first)


def run_call(
    function: Callable[[int], object],
    size: int,
    *,
    timeout_s: float | None = None,
    leaves: bool = False,
) -> CompletedAttempt:
    """Run ``function(rank)`` on ranks, and add their output to the test's report.

    Args:
        timeout_s: The world's timeout; None: as for other tests of the run.
        leaves: Whether the process of a rank ends with its function.

    Raises:
        UnsoundForkError: pytest's process cannot be forked.
        SettingError: No test runs in this process, or it is itself a rank.
    """
    __tracebackhide__ = True
    call = prepare_call(function, size, timeout_s=timeout_s, leaves=leaves)
    attempt = call.run_world()
    add_results(call.item, attempt)
    return attempt


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A function that is to run on ranks, with the server that forks them.

    Attributes:
        item: The test that calls it.
    """

    item: pytest.Item
    run: Run
    plan: Plan
    launcher: ServerLauncher

    def run_world(self) -> CompletedAttempt:
        """Run the world; any thread may do it."""
        __tracebackhide__ = True
        try:
            return self.run.run_world(self.item, self.plan, self.launcher)
        finally:
            self.launcher.close()


def prepare_call(
    function: Callable[[int], object],
    size: int,
    *,
    timeout_s: float | None = None,
    leaves: bool = False,
) -> PreparedCall:
    """Fork the server whose ranks run ``function(rank)``. `run_call` describes the arguments.

    Raises:
        UnsoundForkError: pytest's process cannot be forked.
        SettingError: No test runs in this process, or it is itself a rank.
    """
    __tracebackhide__ = True
    if problems := call_problems():
        kind = UnsoundForkError if RUNNING else SettingError
        raise kind("a function cannot be run on ranks here", seen="; ".join(problems))
    item = RUNNING[-1]
    run = run_without_tests(item.config)
    timeout = {} if timeout_s is None else {"timeout": timeout_s}
    mark = pytest.mark.multihost(ranks=size, backend="none", **timeout)
    item.add_marker(mark)
    try:
        [plan] = plan_items(item.config, [item], run.tally.settings).values()
    finally:
        item.own_markers.remove(mark.mark)
    call = _Call(function, dict(os.environ), leaves=leaves)
    start = partial(call.run, backend=plan.backend, plugins=item.config.pluginmanager)
    fork = partial(fork_server, start, _prepare, find_problems=call_fork_problems)
    launcher = ServerLauncher({"fork": fork})
    launcher.open()
    return PreparedCall(item, run, plan, launcher)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a call's ranks to pytest's process, in files of a folder.

    Attributes:
        folder: Of this call alone.
    """

    folder: str

    def give(self, rank: int, value: object) -> None:
        """Keep the answer of a rank; it must be possible to pickle it."""
        files.write(Path(self.folder, str(rank)), pickle.dumps(value))

    def of(self, rank: int, default: object = None) -> Any:  # noqa: ANN401 - any value
        """Return the answer of a rank."""
        path = Path(self.folder, str(rank))
        return pickle.loads(path.read_bytes()) if path.exists() else default  # noqa: S301 - our own


def exit_code(of: RankFacts) -> int | None:
    """Return the exit code of a rank's process, negative for a signal; None: the harness ended it.

    It is 0 for a rank that has left.
    """
    ended = of.exit
    if ended is None or of.was_ended:
        return None
    return -ended.signal if ended.signal else ended.code


def raise_findings(attempt: CompletedAttempt) -> None:
    """Fail the test if an analysis of a world that passed fails it."""
    failing = [each for each in attempt.analyses if each.fails_test]
    if failing:
        pytest.fail(failing[0].headline, pytrace=False)


def hung_error(attempt: CompletedAttempt) -> CallHungError:
    """Return the error that has the verdict's page."""
    return CallHungError(f"HUNG  {attempt.judged.finding.reason}\n{_page(attempt)}")


def note_call(attempt: CompletedAttempt) -> None:
    """Add the verdict to the report of the test, which decides by itself how it ends."""
    item, finding = RUNNING[-1], attempt.judged.finding
    if finding.status not in ("passed", "xpassed"):
        item.add_report_section("call", "multihost", f"{finding.reason}\n{_page(attempt)}")
    item.stash[HUNG_CALL] = finding.outcome == "hung" or item.stash.get(HUNG_CALL, False)


HUNG_CALL = pytest.StashKey[bool]()
"""Whether a call of a test hung, and the test went on."""


def _page(attempt: CompletedAttempt) -> str:
    sections = page_sections(attempt.judged, files=attempt.files, columns=None, added={})
    return "\n".join(text for each in sections for text in (each.title, each.text))


def _prepare() -> Callable[[], None]:
    """Prepare the server that forks the ranks of a call."""
    # The server collects garbage before it forks many worlds. For one world that would cost more
    # than all else: it copies each page of pytest's process that has an object.
    gc.freeze()
    prepare_recording()
    return lambda: None


@dataclass(frozen=True, slots=True)
class _Call:
    """A function that runs in ranks, with the environment of pytest's process."""

    function: Callable[[int], object]
    variables: Mapping[str, str]
    leaves: bool = False

    def run(
        self, spec: RankSpec, channel: Channel, *, backend: Backend, plugins: pluggy.PluginManager
    ) -> NoReturn:
        """Run the function in a rank. Never returns."""
        start_rank(spec, channel)
        start_backend(spec, channel, backend)
        body = partial(self._body, spec.rank)
        run_body(spec, channel, backend, plugins, body, leaves=self.leaves)
        os._exit(0)  # of a process that the function has forked

    def _body(self, rank: int) -> None:
        own = {name: text for name, text in os.environ.items() if name.startswith(_KEPT)}
        os.environ.clear()
        os.environ.update({**own, **self.variables})
        try:
            self.function(rank)
        except SystemExit as ended:
            if ended.code:
                raise


def _failure(of: RankFinding) -> Exception:
    """Return the exception about a rank, as torch has it."""
    torch: Any = sys.modules.get("torch.multiprocessing.spawn")
    rank, pid, failure = of.facts.rank, of.facts.pid or 0, of.facts.failure
    if isinstance(failure, Interrupted) and failure.error.type != "SystemExit":
        text = failure.error.text or f"{failure.error.type}: {failure.error.message}"
        message = f"\n\n-- Process {rank} terminated with the following error:\n{text}"
        kind = CallFailedError if torch is None else torch.ProcessRaisedException
        failed: Exception = kind(message, rank, pid)
        return failed
    number = of.facts.exit.signal if of.facts.exit is not None else None
    if number is not None:
        name = signal.Signals(number).name
        how, code = f"signal {name}", -number
    else:
        name, code = None, _code(failure, of)
        how = f"exit code {code}"
    message = f"process {rank} terminated with {how}"
    if torch is None:
        return CallFailedError(message, rank, pid)
    exited: Exception = torch.ProcessExitedException(message, rank, pid, code, name)
    return exited


def _code(failure: object, of: RankFinding) -> int:
    """Return the exit code that its process would have had."""
    if isinstance(failure, Interrupted):
        text = failure.error.message
        is_exit = failure.error.type == "SystemExit"
        return int(text) if is_exit and text.lstrip("-").isdigit() else 1
    return of.exit_code or 0
