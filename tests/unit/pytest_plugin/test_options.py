"""Options, environment and ini: read in this order, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.core.option import (
    BACKENDS,
    CORE_OPTIONS,
    LAUNCH,
    LOCAL_DEVICES,
    MODE,
    RANKS,
    STARTUP_TIMEOUT,
    TIMEOUT,
    Option,
    Settings,
    parse_count,
    parse_names,
    parse_ranks,
    parse_seconds,
)
from pytest_multihost.core.pytest_plugin.options import artifacts_directory, read_settings
from pytest_multihost.extensions import clock
from pytest_multihost.testing import SettingError, make_spec, token

[CLOCK_OPTION] = clock.pytest_multihost_options()
OPTIONS = (*CORE_OPTIONS, CLOCK_OPTION)


class _Configuration:
    """What `read_settings` asks of pytest's configuration."""

    rootpath = Path("/project")

    def __init__(self, options: dict[str, str], ini: dict[str, Any]) -> None:
        self._options, self._ini = options, ini

    def getoption(self, name: str) -> str | None:
        return self._options.get(name.removeprefix("multihost_"))

    def getini(self, name: str) -> Any:  # noqa: ANN401 - as pytest's
        return self._ini.get(name.removeprefix("multihost_"), "")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what the run of these tests was itself given."""
    import os

    for name in os.environ:
        if name.startswith("PYTEST_MULTIHOST_"):
            monkeypatch.delenv(name)


def read(options: dict[str, str] | None = None, **ini: Any) -> Settings:  # noqa: ANN401
    """Read settings from a command line and an ini file."""
    return read_settings(_Configuration(options or {}, ini), OPTIONS)  # type: ignore[arg-type]


def directory(settings: Settings) -> Path:
    """Return the directory of artifacts."""
    return artifacts_directory(_Configuration({}, {}), settings)  # type: ignore[arg-type]


def test_nothing_set_gives_the_documented_defaults() -> None:
    """No number of ranks is one of them: the marker's own default holds."""
    found = read()
    assert (found.get(RANKS), found.get(BACKENDS), found.get(TIMEOUT)) == (None, ("none",), 120.0)
    assert (found.get(STARTUP_TIMEOUT), found.get(MODE)) == (60.0, "marked")
    assert (found.get(LAUNCH), found.get(CLOCK_OPTION)) == ("auto", "real")
    assert directory(found) == Path("/project/.pytest_multihost")


def test_the_command_line_beats_the_environment_beats_the_ini(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each place only speaks where the one before it is silent."""
    assert read(timeout="3").get(TIMEOUT) == 3
    monkeypatch.setenv("PYTEST_MULTIHOST_TIMEOUT", "2")
    assert read(timeout="3").get(TIMEOUT) == 2
    assert read({"timeout": "1"}, timeout="3").get(TIMEOUT) == 1


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI systems set what is not set to the empty string."""
    monkeypatch.setenv("PYTEST_MULTIHOST_RANKS", "")
    assert read(ranks="4").get(RANKS) == (4,)


def test_every_setting_is_read() -> None:
    """Under its own name, and no other's."""
    found = read(
        {"ranks": "1,2", "backend": "gloo,jax", "timeout": "1", "mode": "auto"},
        local_devices="4",
        launch="spawn",
        startup_timeout="2.5",
        artifacts="../out",
        clock="jump",
    )
    assert (found.get(RANKS), found.get(BACKENDS)) == ((1, 2), ("gloo", "jax"))
    assert (found.get(TIMEOUT), found.get(STARTUP_TIMEOUT), found.get(MODE)) == (1.0, 2.5, "auto")
    assert (found.get(LAUNCH), directory(found)) == ("spawn", Path("/project/../out"))
    assert (found.get(LOCAL_DEVICES), found.get(CLOCK_OPTION)) == (4, "jump")


@pytest.mark.parametrize(
    ("stem", "value", "words"),
    [
        ("ranks", "two", "--ranks: sizes must be whole numbers"),
        ("backend", "gloo,", "--multihost-backend: a name is missing in 'gloo,'"),
        (
            "timeout",
            "1m",
            "--multihost-timeout: must be a positive number of seconds, at most 1e9, not '1m'",
        ),
        ("startup_timeout", "0", "--multihost-startup-timeout: must be a positive number"),
        ("local_devices", "0", "--multihost-local-devices: must be a whole number of at least 1"),
        ("launch", "exec", "--multihost-launch: must be one of auto, fork, server, spawn, not"),
        ("clock", "fast", "--multihost-clock: must be one of real, jump, not 'fast'"),
        ("mode", "always", "--multihost-mode: must be one of marked, auto, not 'always'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(stem: str, value: str, words: str) -> None:
    """With the place it stands at, as the user wrote it."""
    with pytest.raises(pytest.UsageError) as refused:
        read({stem: value})
    assert str(refused.value).startswith(words)


def test_the_place_is_that_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable somewhere in a CI system is found by its name."""
    with pytest.raises(pytest.UsageError, match=r"^multihost_timeout \(ini\): must be"):
        read(timeout="x")
    monkeypatch.setenv("PYTEST_MULTIHOST_TIMEOUT", "y")
    with pytest.raises(pytest.UsageError, match=r"^PYTEST_MULTIHOST_TIMEOUT: must"):
        read(timeout="x")


def test_all_values_that_cannot_be_used_are_refused_at_once() -> None:
    """As with markers: one run tells everything."""
    with pytest.raises(pytest.UsageError) as refused:
        read({"ranks": "two", "timeout": "1m"})
    assert "--ranks" in str(refused.value)
    assert "--multihost-timeout" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "ranks"), [("4", (4,)), ("1,2,4", (1, 2, 4)), (" 4 , 2", (4, 2)), ("64", (64,))]
)
def test_ranks_are_read(text: str, ranks: tuple[int, ...]) -> None:
    """In order."""
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1,,2", "1,0", "two", "4,"])
def test_what_are_no_ranks_is_refused(text: str) -> None:
    """A world of none is no world."""
    with pytest.raises(SettingError, match="whole numbers"):
        parse_ranks(text)


def test_names_are_read() -> None:
    """In order."""
    assert parse_names(" jax, gloo") == ("jax", "gloo")


@pytest.mark.parametrize("read_values", [parse_names, parse_ranks])
def test_a_value_that_stands_twice_is_refused(read_values: Callable[[str], object]) -> None:
    """It is a slip, and would run no test twice."""
    with pytest.raises(SettingError, match="has a value twice"):
        read_values("2,4,2")


@pytest.mark.parametrize(("text", "seconds"), [("60", 60.0), ("0.5", 0.5), ("1e3", 1000.0)])
def test_seconds_are_read(text: str, seconds: float) -> None:
    """Whole or not."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1 minute"])
def test_what_are_no_seconds_is_refused(text: str) -> None:
    """A world without a deadline could hang for ever."""
    with pytest.raises(SettingError, match="positive number of seconds"):
        parse_seconds(text)


SUMS: Option[int] = Option(name="sums", metavar="N", help="", parse=parse_count, default=7)


def test_an_option_of_an_extension_is_read_as_the_core_s_are() -> None:
    """It has all sources; where none is set, its default holds."""
    found = read_settings(_Configuration({"sums": "3"}, {}), [SUMS])  # type: ignore[arg-type]
    assert found.get(SUMS) == 3
    assert Settings().get(SUMS) == 7
    assert Settings().having(SUMS, 4).get(SUMS) == 4


FOREIGN = (
    "on",
    "python",
    "ray",
    "artifacts",
    "sweep_accept",
    "sweep",
    "early",
    "nodes",
    "fault",
    "x",
)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_token_sets_no_option_that_a_replay_does_not_need(name: str) -> None:
    """A pasted token neither starts a command on "nodes" nor names a file."""
    pasted = token(replace(make_spec(2), options={"ranks": "2", name: "exec:touch /tmp/x {i}"}))
    with pytest.raises(pytest.UsageError, match=f"the token sets the option '{name}'"):
        read_settings(_Configuration({"replay": pasted}, {}), OPTIONS)  # type: ignore[arg-type]


def test_a_token_sets_what_decides_the_world() -> None:
    """Sizes, backend, timeouts, hosts, launch, mode and clock are those of the run."""
    given = {"ranks": "3", "backend": "gloo", "timeout": "7", "launch": "spawn", "clock": "jump"}
    pasted = token(replace(make_spec(3), options=given))
    found = read_settings(_Configuration({"replay": pasted}, {}), OPTIONS)  # type: ignore[arg-type]
    assert found.replayed == given
    assert found.get(RANKS) == (3,)
    assert found.get(TIMEOUT) == 7.0
