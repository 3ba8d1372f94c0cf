"""The core's own options, of tests and of scripts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from pytest_multihost.core.artifacts_access import ACCESS as MODES
from pytest_multihost.core.host_kind import HostKind, Hosts
from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.setting_values import (
    DEFAULT_BACKEND,
    MAX_RANKS,
    NO_TIMEOUT_S,
    Early,
)
from pytest_multihost.core.option.marker_values import (
    as_tuple,
    is_count,
    is_name,
    is_seconds,
    must_be,
    one_or_more,
)
from pytest_multihost.core.option.option import ForScripts, MarkerKey, Option, T
from pytest_multihost.core.option.texts import (
    one_of,
    parse_count,
    parse_names,
    parse_ranks,
    parse_seconds,
)

_SECONDS = must_be(is_seconds, "a positive number of seconds, at most 1e9")

RANKS: Option[tuple[int, ...] | Mapping[str, int] | None] = Option(
    name="ranks",
    metavar="N[,N...]",
    help="Number of ranks of each multihost test whose marker gives none; ROLE=N[,ROLE=N...]: of"
    " roles",
    parse=parse_ranks,
    default=None,
    flags=("--ranks",),
    key=MarkerKey(
        must_be(
            one_or_more(is_count),
            f"a whole number from 1 to {MAX_RANKS}, or a list of different ones",
        ),
        as_tuple,
    ),
    is_replayed=True,
)
"""World sizes, several of which parametrize a test; or sizes of roles, by their names."""

BACKENDS: Option[tuple[str, ...]] = Option(
    name="backend",
    metavar="NAME[,...]",
    help="Backend of each multihost test whose marker names none",
    parse=parse_names,
    default=(DEFAULT_BACKEND,),
    key=MarkerKey(must_be(one_or_more(is_name), "a name, or a list of different names"), as_tuple),
    is_replayed=True,
    for_scripts=ForScripts(
        help="initialise this runtime before the script; default: none, the script does it",
        default=(DEFAULT_BACKEND,),
        metavar="NAME",
    ),
)
"""Names of backends; several parametrize a test."""

TIMEOUT: Option[float] = Option(
    name="timeout",
    metavar="SECONDS",
    help="Timeout of a multihost test once all its ranks are ready (default: 120)",
    parse=parse_seconds,
    default=120.0,
    key=MarkerKey(_SECONDS, float),
    is_replayed=True,
    for_scripts=ForScripts(
        help="end the job after this time; default: never", default=NO_TIMEOUT_S
    ),
)

STARTUP_TIMEOUT: Option[float] = Option(
    name="startup_timeout",
    metavar="SECONDS",
    help="Timeout until all ranks of a test are ready (default: 60)",
    parse=parse_seconds,
    default=60.0,
    key=MarkerKey(_SECONDS, float),
    is_replayed=True,
)

LOCAL_DEVICES: Option[int] = Option(
    name="local_devices",
    metavar="N",
    help="Devices of each rank, for jax, unless the marker says (default: 1)",
    parse=parse_count,
    default=1,
    key=MarkerKey(must_be(is_count, f"a whole number from 1 to {MAX_RANKS}"), int),
    is_replayed=True,
)


def hosts_option(kinds: Collection[HostKind]) -> Option[Hosts]:
    """Return the option for the kind of hosts, which accepts these kinds."""

    def check(value: object) -> str | None:
        try:
            Hosts.parse(value, kinds)
        except SettingError as error:
            return str(error)
        return None

    def parse(value: object) -> Hosts:
        return Hosts.parse(value, kinds)

    return Option(
        name="hosts",
        metavar="one|KIND[:N]",
        help="Kind of the hosts, such as netns; N: ranks on each host",
        parse=parse,
        default=Hosts(),
        key=MarkerKey(check, parse),
        is_replayed=True,
    )


HOSTS = hosts_option(())
"""A placeholder until the kinds of hosts are known; see `with_host_kinds`."""

LAUNCH: Option[str] = Option(
    name="launch",
    metavar="auto|fork|server|spawn",
    help="How ranks are started; auto: the first method that is safe here",
    parse=one_of("auto", "fork", "server", "spawn"),
    default="auto",
    is_replayed=True,
)

EARLY: Option[Early] = Option(
    name="early",
    metavar="fail|warn|off",
    help="Action when a hang is proven before the timeout",
    parse=one_of(*get_args(Early)),
    default="fail",
)

MODE: Option[str] = Option(
    name="mode",
    metavar="marked|auto",
    help="Run the marked tests on several ranks, or every test",
    parse=one_of("marked", "auto"),
    default="marked",
    is_replayed=True,
)

ARTIFACTS: Option[Path] = Option(
    name="artifacts",
    metavar="DIR",
    help="Directory for logs, stacks and verdicts (default: .pytest_multihost)",
    parse=Path,
    default=Path(".pytest_multihost"),
)
"""Relative to pytest's rootdir; see `artifacts_directory`."""


def _access(text: str) -> int:
    return MODES[one_of(*MODES)(text)]


ACCESS: Option[int] = Option(
    name="artifacts_access",
    metavar="|".join(MODES),
    help="Users who may read the artifacts: you alone, your group, or all (default: me)",
    parse=_access,
    default=MODES["me"],
)

ACCEPTED_NAME = "multihost-accepted.toml"
"""The default name of the file of accepted weaknesses, in pytest's rootdir."""

ACCEPTED: Option[Path | None] = Option(
    name="sweep_accept",  # named before the file had other uses
    metavar="FILE",
    help=f"Weaknesses that are accepted (default: {ACCEPTED_NAME})",
    parse=Path,
    default=None,
)


def _time_of_scripts(name: str, told: str, default: T) -> Option[float | T]:
    """Return an option of scripts alone, a number of seconds."""
    return Option(
        name=name,
        metavar="SECONDS",
        help=told,
        parse=parse_seconds,
        default=default,
        for_scripts=ForScripts(help=told, default=default),
        is_for_tests=False,
    )


HORIZON: Option[float] = _time_of_scripts(
    "horizon",
    "report a hang if no rank can make progress within this time; default: 300",
    default=300.0,
)

PATIENCE: Option[float | None] = _time_of_scripts(
    "patience",
    "report a hang once a rank has waited this long for another rank, even if that one is busy;"
    " default: no such limit",
    default=None,
)

_TABLE: tuple[Option[Any], ...] = (
    RANKS,
    BACKENDS,
    TIMEOUT,
    STARTUP_TIMEOUT,
    LOCAL_DEVICES,
    HOSTS,
    LAUNCH,
    EARLY,
    MODE,
    ARTIFACTS,
    ACCESS,
    ACCEPTED,
    HORIZON,
    PATIENCE,
)

CORE_OPTIONS: tuple[Option[Any], ...] = tuple(each for each in _TABLE if each.is_for_tests)
"""The core's options of tests."""

SCRIPT_OPTIONS: tuple[Option[Any], ...] = tuple(each for each in _TABLE if each.for_scripts)
"""The core's options of ``multihost run``, beside its switches."""
