"""Options, ini values and environment variables, and how they are read.

Precedence: marker, command line, environment, ini, default.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import pytest

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import MAX_SECONDS
from pytest_multihost.core.model.spec import (
    MAX_RANKS,
    MAX_SEED,
    ONE,
    ClockMode,
    Early,
    HazardMode,
    Hosts,
)
from pytest_multihost.extensions.sweep.families import DEFAULT_FAMILIES, FAMILIES

# What the options say about sweeps.
#
# Read in every run of pytest; what sweeps is imported only where a test is to be swept.


ACCEPTED_NAME = "multihost-accepted.toml"
"""The file of accepted weaknesses, in pytest's rootdir, where no other one is named."""

SWEEP_SIGNATURE = (
    "multihost_sweep(families=None, *, budget=None, decisions=(), values=(), batches=()): run this"
    " multihost test again and again, each time with one disturbance, to find the hang that it"
    f" hides. `families`: some of {', '.join(FAMILIES)}; `budget`: seconds; `decisions`,"
    " `values`: functions, as 'module:function', that return another truth value or NaN on one"
    " rank; `batches`: data loaders, as 'module:name', whose data end early on one rank."
)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How tests are swept where their markers say nothing else.

    Attributes:
        families: Sweep every multihost test with these; empty: only tests with the marker.
        budget_s: Seconds for each test.
        accepted: The file of accepted weaknesses; None: the usual one, if it is there.
        is_continued: Whether earlier sweeps are to go on.
    """

    families: tuple[str, ...] = ()
    budget_s: float = 60.0
    accepted: Path | None = None
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """How one test is to be swept.

    Attributes:
        families: With which disturbances.
        budget_s: Seconds.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
        batches: Data loaders, as ``module:name``, beside those of torch and grain.
    """

    families: tuple[str, ...]
    budget_s: float
    decisions: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()


def parse_families(text: str) -> tuple[str, ...]:
    """Read "late,fails".

    Raises:
        SettingError: There is no such family.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = tuple(each for each in FAMILIES if each in parts)
    if len(found) < len(parts):
        raise SettingError(
            f"families of disturbances are {', '.join(FAMILIES)}, not {shown(text)}",
            remedy=f"Say --multihost-sweep={','.join(DEFAULT_FAMILIES)}; the names of files go"
            " before an option that stands without a value.",
        )
    return found


def has_acceptances(root: Path, settings: SweepSettings) -> bool:
    """Return whether there is a file of what the project accepts, or one is named."""
    return settings.accepted is not None or (root / ACCEPTED_NAME).exists()


T = TypeVar("T")

_RANKS = re.compile("[0-9]{1,9}")

_IMAGE = "pytest-multihost-hangs"
_ARTIFACTS = ".pytest_multihost"
_FAMILIES = "; ".join(f"{each.name}: {each.help}" for each in FAMILIES.values())

_OPTIONS = {
    "ranks": ("N[,N...]", "Number of ranks of each multihost test whose marker gives none"),
    "backend": ("NAME[,...]", "Backend of each multihost test whose marker names none"),
    "timeout": ("SECONDS", "Timeout of a world once all its ranks are ready (default: 120)"),
    "startup_timeout": ("SECONDS", "Timeout until all ranks of a world are ready (default: 60)"),
    "local_devices": ("N", "Devices of each rank, for jax, where no marker says (default: 1)"),
    "docker_image": ("IMAGE", f"Image of hosts that are containers (default: {_IMAGE})"),
    "docker_python": ("PATH|host", "Python in the image; host: the one that runs pytest, mounted"),
    "hosts": ("one|netns[:N]|docker[:N]", "What hosts are made from; N: ranks on each host"),
    "clock": ("real|jump", "How time passes in worlds; jump: over waits that only time can end"),
    "launch": ("auto|fork|server|spawn", "How ranks are started; auto: the first sound method"),
    "early": ("fail|warn|off", "What to do when a hang is proven before the timeout"),
    "mode": ("marked|auto", "Run the marked tests as worlds of ranks, or every test"),
    "artifacts": ("DIR", f"Directory for logs, stacks and verdicts (default: {_ARTIFACTS})"),
    "sweep": ("FAMILIES", f"Disturb passing tests in turn; of: {_FAMILIES}"),
    "sweep_budget": ("SECONDS", "How long each test is swept (default: 60)"),
    "sweep_accept": ("FILE", f"Weaknesses that are accepted (default: {ACCEPTED_NAME})"),
    "hazards": ("off|warn|fail", "What to do where a passing test shows what can hang elsewhere"),
    "hazard_rules": ("RULE[,...]|all", "Rules to look for hazards by (default: the certain ones)"),
}
"""Settings with three names each - `--multihost-x`, `PYTEST_MULTIHOST_X`, the ini's `multihost_x` -
by the part that these share: the placeholder for the value, and the help text."""

_WITHOUT_VALUE = {"sweep": ",".join(DEFAULT_FAMILIES)}
"""What options mean that may stand without a value."""


def add_options(parser: pytest.Parser) -> None:
    """Declare everything that a user can set, but for what `attach.options` declares."""
    group = parser.getgroup("multihost", "worlds of ranks")
    for stem, (metavar, text) in _OPTIONS.items():
        dest = f"multihost_{stem}"
        flags = (*(("--ranks",) if stem == "ranks" else ()), _flag(dest))
        bare = {"nargs": "?", "const": _WITHOUT_VALUE[stem]} if stem in _WITHOUT_VALUE else {}
        group.addoption(*flags, dest=dest, default=None, metavar=metavar, help=text, **bare)
        parser.addini(dest, text, type="string", default="")
    text = "Go on with sweeps that were interrupted or had no time left"
    group.addoption("--multihost-sweep-continue", action="store_true", help=text)
    text = "Add a fault to every multihost test, such as 'slow_io(rank=0, seconds=2)'"
    group.addoption("--multihost-fault", action="append", metavar="FAULT", help=text)
    text = "Keep the ranks of a world that hangs alive until Ctrl-C; print how to attach to them"
    group.addoption("--multihost-keep", action="store_true", help=text)
    text = "Seed of whatever is random in a world"
    group.addoption("--multihost-seed", type=parse_seed, metavar="N", help=text)
    text = "Repeat a world exactly: the token that was printed when it failed"
    group.addoption("--multihost-replay", metavar="TOKEN", help=text)
    text = "List the points that each rank passes, where at= can place a fault"
    group.addoption("--multihost-points", action="store_true", help=text)
    text = "Fail the run if multihost tests were requested and none ran"
    parser.addini("multihost_require", text, type="bool", default=False)
    text = "Fail tests for which there are not enough GPUs, instead of skipping them"
    parser.addini("multihost_require_gpu", text, type="bool", default=False)


def _flag(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class HazardSettings:
    """How hazards are looked for.

    Attributes:
        mode: What to do about them.
        rules: The names of the rules to apply; none: those that are applied by default.
    """

    mode: HazardMode = "warn"
    rules: tuple[str, ...] = ()

    @property
    def is_on(self) -> bool:
        """Whether they are looked for."""
        return self.mode != "off"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: what applies where a marker is silent, and what applies to all tests.

    Attributes:
        ranks: World sizes; several parametrize. None where no number was given.
        backends: Names of backends; several parametrize.
        timeout_s: Seconds from all ranks ready to the end.
        startup_timeout_s: Seconds until all ranks are ready.
        local_devices: Devices per rank, for jax.
        hosts: What hosts are made from; "one" is this machine as it is.
        clock: How time passes in worlds.
        docker_image: Image of hosts that are containers.
        docker_python: The interpreter in it; "host": that of this process is mounted.
        launch: How ranks are started; "auto": the first way that is sound.
        early: A proven hang ends the world at once, or only warns; "off": it is not looked for.
        is_auto: Whether unmarked tests are multihost too.
        artifacts: Absolute path of the artifacts directory.
        is_required: Whether a run without multihost tests fails.
        is_gpu_required: Whether a test for which there are not enough GPUs fails.
        has_ranks_option: Whether `--ranks` was on the command line.
        sweep: How tests are swept.
        hazards: How hazards are looked for.
    """

    ranks: tuple[int, ...] | None
    backends: tuple[str, ...]
    timeout_s: float
    startup_timeout_s: float
    local_devices: int
    hosts: Hosts
    clock: ClockMode
    docker_image: str
    docker_python: str
    launch: str
    early: Early
    is_auto: bool
    artifacts: Path
    is_required: bool
    is_gpu_required: bool
    has_ranks_option: bool
    sweep: SweepSettings = field(default_factory=SweepSettings)
    hazards: HazardSettings = field(default_factory=HazardSettings)


def read_settings(config: pytest.Config) -> Settings:
    """Read the settings.

    Raises:
        pytest.UsageError: Some cannot be used; names each, and where it was set.
    """
    problems: list[str] = []
    read = partial(_read, config, problems)
    settings = Settings(
        ranks=read("ranks", parse_ranks),
        backends=read("backend", parse_names) or ("none",),
        timeout_s=read("timeout", parse_seconds) or 120.0,
        startup_timeout_s=read("startup_timeout", parse_seconds) or 60.0,
        local_devices=read("local_devices", parse_count) or 1,
        hosts=read("hosts", Hosts.parse) or ONE,
        clock=read("clock", _one_of(*get_args(ClockMode))) or "real",
        docker_image=read("docker_image", str) or _IMAGE,
        docker_python=read("docker_python", str) or "python3",
        launch=read("launch", _one_of("auto", "fork", "server", "spawn")) or "auto",
        early=read("early", _one_of(*get_args(Early))) or "fail",
        is_auto=read("mode", _one_of("marked", "auto")) == "auto",
        artifacts=config.rootpath / (read("artifacts", str) or _ARTIFACTS),
        is_required=bool(config.getini("multihost_require")),
        is_gpu_required=bool(config.getini("multihost_require_gpu")),
        has_ranks_option=config.getoption("multihost_ranks") is not None,
        sweep=SweepSettings(
            families=read("sweep", parse_families) or (),
            budget_s=read("sweep_budget", parse_seconds) or 60.0,
            accepted=read("sweep_accept", config.rootpath.joinpath),
            is_continued=config.getoption("multihost_sweep_continue"),
        ),
        hazards=HazardSettings(
            mode=read("hazards", _one_of(*get_args(HazardMode))) or "warn",
            rules=read("hazard_rules", parse_rules) or (),
        ),
    )
    if problems:
        raise pytest.UsageError("\n".join(problems))
    return settings


def _read(
    config: pytest.Config, problems: list[str], stem: str, parse: Callable[[str], T]
) -> T | None:
    """Return the setting from the first source that has it, or None; add what is wrong with it."""
    name = f"multihost_{stem}"
    variable = f"PYTEST_{name.upper()}"
    sources = {
        _flag(name): config.getoption(name),
        variable: os.environ.get(variable),
        f"{name} (ini)": config.getini(name),
    }
    source, value = next(((each, text) for each, text in sources.items() if text), ("", ""))
    try:
        return parse(value) if value else None
    except SettingError as error:
        problems.append(f"{source}: {error}")
        return None


def parse_count(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        SettingError: It is none.
    """
    if not (text.isdecimal() and int(text) > 0):
        raise SettingError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read "4" or "1,2,4".

    Raises:
        SettingError: A part is no such number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(_RANKS.fullmatch(part) and 1 <= int(part) <= MAX_RANKS for part in parts):
        raise SettingError(f"ranks must be whole numbers from 1 to {MAX_RANKS}, not {shown(text)}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_seed(text: str) -> int:
    """Read a whole number.

    Raises:
        argparse.ArgumentTypeError: It is none, or has too many digits for the name of a file.
    """
    try:
        seed = int(text)
    except ValueError:
        seed = MAX_SEED + 1
    if abs(seed) > MAX_SEED:
        wanted = f"must be a whole number of at most {MAX_SEED}"
        raise argparse.ArgumentTypeError(f"{wanted}, not {shown(text)}")
    return seed


def parse_names(text: str) -> tuple[str, ...]:
    """Read "gloo" or "gloo,jax".

    Raises:
        SettingError: A part is empty.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise SettingError(f"a name is missing in {shown(text)}")
    return parts


def parse_rules(text: str) -> tuple[str, ...]:
    """Read "order,threads", or "all".

    Raises:
        SettingError: There is no such rule.
    """
    from pytest_multihost.extensions.hazards import RULES  # here, because most runs name no rules

    parts = {part.strip() for part in text.split(",")}
    if text != "all" and (unknown := parts - RULES.keys()):
        raise SettingError(f"rules are {', '.join(RULES)}, or all, not {shown(min(unknown))}")
    return tuple(name for name in RULES if text == "all" or name in parts)


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds.

    Raises:
        SettingError: It is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        wanted = "a positive number of seconds, at most 1e9"
        raise SettingError(f"must be {wanted}, not {shown(text)}")
    return seconds


def _one_of(*choices: T) -> Callable[[str], T]:
    """Return a function that reads one of the texts `choices`."""

    def parse(text: str) -> T:
        for choice in choices:
            if text == choice:
                return choice
        raise SettingError(f"must be one of {', '.join(map(str, choices))}, not {shown(text)}")

    return parse


ONE_PROCESS_ALONE: Mapping[str, object] = {
    "basetemp": None,
    "cacheclear": False,
    "dist": "no",  # xdist
    "log_file": os.devnull,
    "numprocesses": None,
    "pastebin": None,
    "report_log": None,  # pytest-reportlog
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
"""Options of pytest and its neighbours that must act in one process alone, with what switches them
off in the others."""


def switch_off(config: pytest.Config, options: Mapping[str, object]) -> None:
    """Give those of `options` that this pytest knows the values that switch them off."""
    for name, value in options.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
