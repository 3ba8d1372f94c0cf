"""The type of a backend. Third parties offer theirs by the hook `pytest_multihost_backends`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.model.spec import BackendFacts, RankSpec, ServicePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How the ranks of a world form a process group.

    In order: `lacking` is called in pytest's process when the test is planned, `preload` once in
    the server, `start` and then `devices` in each rank. The symptoms are used when the world has
    ended, to distinguish the rank that failed from the ranks that only noticed it.

    Attributes:
        name: Its name for users: ``backend="gloo"``.
        start: Returns when the process group is up. Imports the runtime; sets the runtime's
            timeouts beyond the test's deadline, so that the watchdog sees a hang before the runtime
            ends it.
        package: Import name of the package it needs, or None.
        extra: The extra of this distribution that installs the package.
        preload: Imports the modules of every rank, before any rank is forked. Must leave the
            process with a single thread: a fork copies only the thread that calls it, and locks
            that other threads hold stay locked in the child.
        devices_of_env: Returns how many devices variables of the test's `env` give each rank; None:
            they do not say.
        lacking: Returns why a world of that many ranks cannot run on this machine, or None.
        services: The parts of the services that its worlds need, by name: see `WorldSpec.services`.
        symptoms: Regular expressions, searched in an exception's text, which show that a rank has
            only lost its connection to another rank or waited for it in vain. They must not match
            an error that a rank makes itself.
        fatal_symptoms: The same for a rank's log, for runtimes that end the process themselves.
        tells_classes: Whether verdict.json has one entry for ranks that ended alike, in worlds of
            more than `LARGE` ranks.
        confirmed_by: Name of another backend that can run the same tests, to confirm a result;
            empty: none.
        forks_scripts: Whether the ranks of a script are forked from one process, which has called
            `preload`, and are not new interpreters. They start faster and share memory.
        primary_leaves_last: Whether rank 0 hosts a service whose end would end the other ranks.
        may_run_jax: Whether threads beside the main one may be in operations that no recorder sees,
            such as those of jitted jax functions. If so, native frames are read before a rank is
            judged not to be in one.
        connects_by_proxies: Whether its runtime would connect the ranks through the proxies that
            environment variables name, as gRPC does: scripts then do not see these variables.
        operation_error: The exception of a failed torch operation, as ``module:Class``; empty:
            RuntimeError.
        hints: Advice for a test that raises an exception with this backend, by a regular expression
            that is searched in the exception's type and text.
        noise: Regular expressions of lines that its runtime prints about itself in each run. The
            terminal omits them; the ranks' logs keep them.
        offered_by: The distribution that offers it; shown when an unknown backend is asked for.
    """

    name: str
    start: Callable[[RankSpec], None]
    package: str | None = None
    extra: str | None = None
    preload: Callable[[], None] = lambda: None
    devices: Callable[[], Sequence[object]] = tuple
    devices_of_env: Callable[[Mapping[str, str]], int | None] = lambda _: None
    lacking: Callable[[int], str | None] = lambda _size: None
    services: Mapping[str, ServicePart] = field(default_factory=dict, hash=False)
    symptoms: tuple[str, ...] = ()
    fatal_symptoms: tuple[str, ...] = ()
    tells_classes: bool = False
    confirmed_by: str = ""
    forks_scripts: bool = False
    primary_leaves_last: bool = False
    may_run_jax: bool = True
    connects_by_proxies: bool = False
    operation_error: str = ""
    hints: Mapping[str, str] = field(default_factory=dict, hash=False)
    noise: tuple[str, ...] = ()
    offered_by: str = "pytest-multihost-hangs"

    @property
    def facts(self) -> BackendFacts:
        """The facts about the backend that the spec of a world contains."""
        return BackendFacts(
            may_run_jax=self.may_run_jax,
            connects_by_proxies=self.connects_by_proxies,
            operation_error=self.operation_error,
            hints=self.hints,
            noise=self.noise,
            tells_classes=self.tells_classes,
        )
