"""Defines the core's own options, and declares and reads the options of all plugins.

Precedence: marker, command line, environment, ini, default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_multihost.core.host_kind import HostKind
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import (
    ARTIFACTS,
    CORE_OPTIONS,
    HOSTS,
    Option,
    Settings,
    hosts_option,
    parse_seed,
)
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.registry import unregister_all

T = TypeVar("T")

_ENTRY = "pytest_multihost.core.pytest_plugin.entry"

OFFERED = "multihost_offered_options"
"""Name of the plugin that holds all offered options."""


def artifacts_directory(config: pytest.Config, settings: Settings) -> Path:
    """Return the absolute path of the artifacts directory."""
    return config.rootpath / settings.get(ARTIFACTS)


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class OfferedOptions:
    """The options of all plugins; declares each one to pytest as soon as it is offered."""

    parser: pytest.Parser
    options: list[Option[Any]] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)  # first in the help
    def pytest_multihost_options(self) -> Sequence[Option[Any]]:
        """Offer the core's options."""
        return CORE_OPTIONS

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Leave with the plugin, if `-p no:multihost_hangs` comes after an option that loads it."""
        manager = early_config.pluginmanager
        if not manager.is_registered(sys.modules[_ENTRY]):
            unregister_all(manager)

    def add(self, offered: Sequence[Option[Any]]) -> None:
        """Declare the options of one plugin."""
        group = self.parser.getgroup("multihost", "tests on several ranks")
        for each in offered:
            bare = {"nargs": "?", "const": each.bare} if each.bare is not None else {}
            group.addoption(
                *each.flags,
                each.flag,
                dest=each.dest,
                default=None,
                metavar=each.metavar,
                help=each.help,
                **bare,
            )
            self.parser.addini(each.dest, each.help, type="string", default="")
            self.options.append(each)


def add_options(parser: pytest.Parser) -> None:
    """Declare the options that an `Option` cannot express, such as flags and repeated options."""
    group = parser.getgroup("multihost", "tests on several ranks")
    text = "Add a fault to every multihost test, such as 'slow_io(rank=0, seconds=2)'"
    group.addoption("--multihost-fault", action="append", metavar="FAULT", help=text)
    text = "Keep the ranks of a test that hangs alive until Ctrl-C; print how to attach to them"
    group.addoption("--multihost-keep", action="store_true", help=text)
    text = "Seed of the random choices in a test"
    group.addoption("--multihost-seed", type=parse_seed, metavar="N", help=text)
    text = "Repeat a failed run of a test exactly: the token is in its line 'replay'"
    group.addoption("--multihost-replay", metavar="TOKEN", help=text)
    for name, text in _TRUTHS.items():
        parser.addini(name, text, type="bool", default=False)
    text = "Session fixtures that are set up once, before ranks are forked, and shared by all ranks"
    parser.addini("multihost_shared_fixtures", text, type="args", default=[])


_TRUTHS = {
    "multihost_require": "Fail the run if multihost tests were requested and none ran",
    "multihost_require_gpu": "Fail tests that lack GPUs, instead of skipping them",
}
"""Settings of the configuration file that are true or false."""


def bare_options_given(args: Sequence[str], options: Iterable[Option[Any]]) -> list[str]:
    """Return the command line with a value for each option that stands without one.

    Otherwise argparse would take the next argument for the value, even if that is a test file:
    "--multihost-sweep test_a.py" becomes "--multihost-sweep=late,fails,differs test_a.py".
    """
    bare = {flag: each for each in options if each.bare is not None for flag in _flags(each)}
    given = list(args)
    for index, arg in enumerate(args):
        following = args[index + 1] if index + 1 < len(args) else ""
        if (option := bare.get(arg)) is not None and _is_tests(following, option):
            given[index] = f"{arg}={option.bare}"
    return given


def _flags(option: Option[Any]) -> tuple[str, ...]:
    return (*option.flags, option.flag)


def _is_tests(text: str, option: Option[Any]) -> bool:
    """Return whether the argument after an option selects tests, and is not the option's value.

    A path that does not exist counts, too: pytest's own message about it is the right one.
    """
    try:
        option.parse(text)
    except SettingError:
        path = text.split("::", maxsplit=1)[0]
        return path.endswith(".py") or Path(path).exists()
    return False


def offered_options(config: pytest.Config) -> Sequence[Option[Any]]:
    """Return all options that plugins have offered."""
    offered: OfferedOptions | None = config.pluginmanager.get_plugin(OFFERED)
    return offered.options if offered is not None else ()


def with_host_kinds(
    options: Iterable[Option[Any]], kinds: Collection[HostKind]
) -> Sequence[Option[Any]]:
    """Return the options with `HOSTS` replaced by an option that knows the kinds of hosts."""
    return [hosts_option(kinds) if each is HOSTS else each for each in options]


def read_settings(config: pytest.Config, options: Iterable[Option[Any]]) -> Settings:
    """Return the settings of a run.

    Raises:
        pytest.UsageError: Values cannot be used; the error names each one, and where it was set.
    """
    known = tuple(options)
    token = _replayed_options(config, known)
    values: dict[str, object] = {}
    replayed: dict[str, str] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    overridden = {each.partition("=")[0] for each in config.getoption("override_ini") or ()}  # -o
    for option in known:
        source, text = _source(config, option, token)
        try:
            if text:
                values[option.name] = option.parse(text)
                sources[option.name] = source
        except SettingError as error:
            problems.append(f"{source}: {error}")
        is_in_file = source.endswith(_INI) and option.dest not in overridden
        if text and option.is_replayed and not is_in_file:
            replayed[option.name] = text
    for name in _TRUTHS:
        try:
            config.getini(name)
        except (ValueError, pytest.UsageError) as error:  # as the version of pytest has it
            problems.append(f"{name}: {error}. Write true or false")
    if problems:
        raise usage_error("\n".join(problems))
    return Settings(values, known, replayed, sources)


_INI = " (ini)"


def _replayed_options(config: pytest.Config, known: Iterable[Option[Any]]) -> Mapping[str, str]:
    """Return the texts of the options in the token of --multihost-replay.

    A token is pasted from a log that another user may have written. So it sets only options that
    shape a test's world, and none that starts commands, loads code or names files.

    Raises:
        pytest.UsageError: The token cannot be read, or sets another option.
    """
    text = config.getoption("multihost_replay")
    if text is None:
        return {}
    _check_given("--multihost-replay", text)
    from pytest_multihost.core.model.replay import read_token

    try:
        found = read_token(text).options
    except SettingError as error:
        raise usage_error(f"--multihost-replay: {error}") from None
    allowed = {each.name for each in known if each.is_replayed}
    if others := sorted(found.keys() - allowed):
        raise usage_error(
            f"--multihost-replay: the token sets the option {shown(others[0])}\n"
            "A token may only set the options that decide what world a test has, such as --ranks.\n"
            "Give the option on the command line if you want it, and find out who made the token."
        )
    return found


def _check_given(flag: str, text: object) -> None:
    """Raise a UsageError for an empty option of the command line, which would change nothing."""
    if text == "":
        raise usage_error(
            f"{flag}: its value is empty\n"
            f"Seen: {flag} '', as from a shell variable that is not set.\n"
            f"Give it a value, or leave {flag} out."
        )


def _source(
    config: pytest.Config, option: Option[Any], token: Mapping[str, str]
) -> tuple[str, str]:
    """Return the first source that sets an option, by its name for users, and the text there.

    An empty variable or setting sets nothing.

    Raises:
        pytest.UsageError: The option on the command line is empty.
    """
    _check_given(_flags(option)[0], config.getoption(option.dest))
    sources = {
        _flags(option)[0]: config.getoption(option.dest),
        "the replay token": token.get(option.name),
        option.variable: os.environ.get(option.variable),
        f"{option.dest}{_INI}": _text_in_file(config, option),
    }
    return next(((name, text) for name, text in sources.items() if text), ("", ""))


def _text_in_file(config: pytest.Config, option: Option[Any]) -> str:
    """Return the text in the configuration file; empty if none.

    Raises:
        pytest.UsageError: It is a list of pyproject.toml, which pytest before 10 lets pass.
    """
    found = config.getini(option.dest)
    if isinstance(found, list):
        text = ",".join(map(str, found))
        raise usage_error(
            f'{option.dest}{_INI}: must be text, not the list {found}: write "{text}"'
        )
    return str(found)


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
"""Options of pytest and other plugins that must act in only one process, with the values that
switch them off in the others."""


def switch_off(config: pytest.Config, options: Mapping[str, object]) -> None:
    """Set each of `options` that this pytest knows to the value that switches it off."""
    for name, value in options.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
