"""Options: their sources, the marker's keys, and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Check = Callable[[object], str | None]
"""Returns the problem of the value of a marker's key; None if it is valid."""


@dataclass(frozen=True, slots=True)
class MarkerKey(Generic[T_co]):
    """The key of the marker `multihost` with which a test sets an option for itself.

    Attributes:
        check: Returns the problem of a value.
        read: Returns the setting of a value that `check` accepts.
    """

    check: Check
    read: Callable[[Any], T_co]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForScripts(Generic[T_co]):
    """How ``multihost run`` takes an option, as ``--name``.

    Attributes:
        help: The text in ``multihost run --help``.
        default: The value if the command line has none.
        metavar: Stands for the value there; empty: the option's own.
    """

    help: str
    default: T_co
    metavar: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Generic[T_co]):
    """A setting with up to four sources, the first of which counts.

    They are the key `name` of the marker, `--multihost-name` on the command line, the environment
    variable `PYTEST_MULTIHOST_NAME`, and `multihost_name` in pytest's ini file. `Settings.get`
    returns the value.

    Attributes:
        name: Common to all sources; words are joined by underscores.
        metavar: Stands for the value in ``pytest --help``.
        help: The text in ``pytest --help``.
        parse: Returns the value of a text; raises SettingError if it is invalid.
        default: The value if no source sets one.
        bare: The text that ``--multihost-name`` without a value stands for; None: it needs a value.
        flags: Further names on the command line.
        key: None: a test cannot set the option for itself.
        is_replayed: Whether a replay token carries it, because it shapes a test's world.
        for_scripts: How scripts take it; None: they do not, unless a plugin offers it for them.
        is_for_tests: Whether tests take it.
        needs_worlds: Whether it does nothing in a run without a test that runs as a world.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], T_co]
    default: T_co
    bare: str | None = None
    flags: tuple[str, ...] = ()
    key: MarkerKey[T_co] | None = None
    is_replayed: bool = False
    for_scripts: ForScripts[T_co] | None = None
    is_for_tests: bool = True
    needs_worlds: bool = True

    @property
    def of_script(self) -> ForScripts[T_co]:
        """How scripts take it if they do."""
        said = self.help[:1].lower() + self.help[1:]
        return self.for_scripts or ForScripts(help=said, default=self.default)

    @property
    def dest(self) -> str:
        """Its name in the ini file, and of the attribute of pytest's parsed command line."""
        return f"multihost_{self.name}"

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.dest.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"PYTEST_{self.dest.upper()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of options, for a run or, with its markers applied, for one test.

    Attributes:
        values: The values that a source has set, by the option's name.
        replayed: The texts of the replayed options that the command line, the environment or a
            replay token has set, by the option's name.
        sources: The place where an option is set, as in "--multihost-timeout", by the option's
            name.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    options: tuple[Option[Any], ...] = ()
    replayed: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def get(self, option: Option[T]) -> T:
        """Return the value of an option."""
        return cast("T", self.values.get(option.name, option.default))

    @classmethod
    def of_script(cls, options: Sequence[Option[Any]], texts: Mapping[str, str | None]) -> Settings:
        """Return the settings of a script.

        Args:
            texts: The texts on its command line, by the option's name; None: absent.

        Raises:
            SettingError: A text is invalid.
        """
        given = {each.name: text for each in options if (text := texts[each.name]) is not None}
        values = {
            each.name: each.parse(given[each.name])
            if each.name in given
            else each.of_script.default
            for each in options
        }
        return cls(values, tuple(options), given)

    def having(self, option: Option[T], value: T) -> Settings:
        """Return these settings with another value of one option."""
        return replace(self, values={**self.values, option.name: value})
