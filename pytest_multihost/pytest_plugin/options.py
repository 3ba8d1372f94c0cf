"""Options, ini values and environment variables, and how they are read.

Precedence: marker, command line, environment, ini, default.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

import pytest

from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.hosts import ONE, parse_hosts

T = TypeVar("T")

DEFAULT_RANKS = 2
DEFAULT_BACKEND = "none"
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_STARTUP_TIMEOUT_S = 60.0
Early = Literal["fail", "warn", "off"]
LAUNCHES = ("auto", "fork", "server", "spawn")
DEFAULT_IMAGE = "pytest-multihost-hangs"
DEFAULT_PYTHON = "python3"
DEFAULT_ARTIFACTS = ".pytest_multihost"


@dataclass(frozen=True, slots=True)
class _Option:
    """One setting under its three names: `--multihost-x`, `multihost_x`, `PYTEST_MULTIHOST_X`."""

    stem: str
    metavar: str
    help: str
    flags: tuple[str, ...] = ()


_OPTIONS = (
    _Option("ranks", "N[,N...]", "Ranks for every multihost test that names none", ("--ranks",)),
    _Option("backend", "NAME[,...]", "Backend for every multihost test that names none"),
    _Option("timeout", "SECONDS", "Time for a world from all ranks ready to its end"),
    _Option("startup_timeout", "SECONDS", "Time until all ranks of a world are ready"),
    _Option("docker_image", "IMAGE", "Image of hosts that are containers"),
    _Option("docker_python", "PATH|host", "Its Python; host: the one that runs pytest is lent"),
    _Option("hosts", "one|netns[:N]|docker[:N]", "What the hosts of worlds are made from"),
    _Option("launch", "auto|fork|server|spawn", "How ranks are started; auto: the first sound one"),
    _Option("early", "fail|warn|off", "What a hang does that is proven before the deadline"),
    _Option("mode", "marked|auto", "Which tests run as worlds: the marked ones, or every one"),
    _Option("artifacts", "DIR", "Where logs, stacks and verdicts go"),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare everything a user can set."""
    group = parser.getgroup("multihost", "worlds of ranks")
    for option in _OPTIONS:
        flag = f"--multihost-{option.stem.replace('_', '-')}"
        dest = f"multihost_{option.stem}"
        group.addoption(
            *option.flags, flag, dest=dest, default=None, metavar=option.metavar, help=option.help
        )
        parser.addini(dest, option.help, type="string", default="")
    group.addoption(
        "--multihost-fault",
        action="append",
        metavar="FAULT",
        help="Give a fault to every multihost test, as 'slow_io(rank=0, seconds=2)'",
    )
    group.addoption(
        "--multihost-keep",
        action="store_true",
        help="Leave the ranks of a world that hangs alive, say how to attach, wait for Ctrl-C",
    )
    group.addoption("--multihost-seed", type=int, metavar="N", help="What chance is drawn from")
    group.addoption(
        "--multihost-replay", metavar="TOKEN", help="Repeat what a failing world has printed"
    )
    group.addoption(
        "--multihost-points",
        action="store_true",
        help="List the points that each rank passes: what at= of a fault can name",
    )
    parser.addini(
        "multihost_require",
        "Fail the run when multihost tests were asked for and none ran",
        type="bool",
        default=False,
    )

    parser.addini(
        "multihost_require_gpu",
        "Fail tests for which there are not enough GPUs instead of skipping them",
        type="bool",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for tests whose marker says nothing.

    Attributes:
        ranks: World sizes; several parametrize. None where nobody named a number.
        backends: Names; several parametrize.
        timeout_s: Seconds from all ranks ready to the end.
        startup_timeout_s: Seconds until all ranks are ready.
        hosts: What hosts are made from; "one" is this machine as it is.
        docker_image: Image of hosts that are containers.
        docker_python: The interpreter in it; "host": that of this process is lent.
        launch: How ranks are started; "auto" takes the first way that is sound.
        early: What a hang does that is proven: it ends the world, is only told, or is not sought.
        is_auto: Whether unmarked tests are multihost too.
        artifacts: Absolute path of the artifacts directory.
        is_required: Whether a run without multihost tests fails.
        is_gpu_required: Whether a test for which there are not enough GPUs fails.
        has_ranks_option: Whether `--ranks` was on the command line.
    """

    ranks: tuple[int, ...] | None
    backends: tuple[str, ...]
    timeout_s: float
    startup_timeout_s: float
    hosts: str
    docker_image: str
    docker_python: str
    launch: str
    early: Early
    is_auto: bool
    artifacts: Path
    is_required: bool
    is_gpu_required: bool
    has_ranks_option: bool


def read_settings(config: pytest.Config) -> Settings:
    """Read the settings.

    Raises:
        pytest.UsageError: Some cannot be used; names each, and where it was set.
    """
    problems: list[str] = []
    read = partial(_read, config, problems)
    artifacts = read("artifacts", str) or DEFAULT_ARTIFACTS
    settings = Settings(
        ranks=read("ranks", parse_ranks),
        backends=read("backend", parse_names) or (DEFAULT_BACKEND,),
        timeout_s=read("timeout", parse_seconds) or DEFAULT_TIMEOUT_S,
        startup_timeout_s=read("startup_timeout", parse_seconds) or DEFAULT_STARTUP_TIMEOUT_S,
        hosts=read("hosts", parse_hosts) or ONE,
        docker_image=read("docker_image", str) or DEFAULT_IMAGE,
        docker_python=read("docker_python", str) or DEFAULT_PYTHON,
        launch=read("launch", _parse_launch) or "auto",
        early=read("early", _parse_early) or "fail",
        is_auto=read("mode", _parse_mode) == "auto",
        artifacts=config.rootpath / artifacts,
        is_required=bool(config.getini("multihost_require")),
        is_gpu_required=bool(config.getini("multihost_require_gpu")),
        has_ranks_option=config.getoption("multihost_ranks") is not None,
    )
    if problems:
        raise pytest.UsageError("\n".join(problems))
    return settings


def _read(
    config: pytest.Config, problems: list[str], stem: str, parse: Callable[[str], T]
) -> T | None:
    """Return the setting from the first place that has it, or None; note what is wrong with it."""
    variable = f"PYTEST_MULTIHOST_{stem.upper()}"
    places = (
        (f"--multihost-{stem.replace('_', '-')}", config.getoption(f"multihost_{stem}")),
        (variable, os.environ.get(variable)),
        (f"multihost_{stem} (ini)", config.getini(f"multihost_{stem}")),
    )
    for place, value in places:
        if value:
            try:
                return parse(value)
            except SettingError as error:
                problems.append(f"{place}: {error}")
                return None
    return None


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read "4" or "1,2,4".

    Raises:
        SettingError: A part is no whole number of at least 1.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        happened = f"ranks must be whole numbers of at least 1, not {text!r}"
        raise SettingError(happened)
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_names(text: str) -> tuple[str, ...]:
    """Read "gloo" or "gloo,jax".

    Raises:
        SettingError: A part is empty.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        happened = f"a name is missing in {text!r}"
        raise SettingError(happened)
    return parts


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds.

    Raises:
        SettingError: It is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        happened = f"must be a positive number of seconds, not {text!r}"
        raise SettingError(happened)
    return seconds


def _parse_launch(text: str) -> str:
    if text not in LAUNCHES:
        happened = f"must be one of {', '.join(LAUNCHES)}, not {text!r}"
        raise SettingError(happened)
    return text


def _parse_early(text: str) -> Early:
    for known in get_args(Early):
        if text == known:
            return known  # type: ignore[no-any-return] # get_args is not typed
    happened = f"must be one of {', '.join(get_args(Early))}, not {text!r}"
    raise SettingError(happened)


def _parse_mode(text: str) -> str:
    if text not in ("marked", "auto"):
        happened = f"must be 'marked' or 'auto', not {text!r}"
        raise SettingError(happened)
    return text
