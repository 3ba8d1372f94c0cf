"""Exceptions whose text has three parts: the event, the observation, the next step."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_multihost.core.model.printable import bounded, printable

_MAX_SHOWN = 200


def shown(value: object) -> str:
    """Return the repr of a user's value for a message, cut in the middle if it is long."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - it is the user's; a huge number has none either
        text = f"<{type(value).__name__} without a repr: {error}>"
    half = _MAX_SHOWN // 2
    return text if len(text) <= _MAX_SHOWN else f"{text[:half]} ... {text[-half:]}"


def known_names(names: Iterable[str], wrong: str) -> str:
    """Return the known names as a sentence's end, with the one nearest to a wrong name."""
    import difflib  # here, because every run of pytest imports this module

    names = list(names)
    in_any_case = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(wrong[:_MAX_SHOWN].casefold(), in_any_case, n=1)
    hint = f" Did you mean {in_any_case[near[0]]}?" if near else ""
    return f"{', '.join(names)}.{hint}"


class MultihostError(Exception):
    """Base of all errors that this package raises itself.

    Its text may quote a node, a process or a file. So it is made printable here, once for
    all places that print it: without control characters and commands of CI systems, and bounded.

    Args:
        happened: One sentence: the event.
        seen: The observation that shows it.
        remedy: The reader's next step, as a command where there is one.
    """

    def __init__(self, happened: str, *, seen: str = "", remedy: str = "") -> None:
        self.happened, self.seen, self.remedy = (
            bounded(printable(each, keeps_lines=True)) for each in (happened, seen, remedy)
        )
        super().__init__(self.happened)

    @property
    def parts(self) -> tuple[str, ...]:
        """The three parts without the empty ones."""
        return tuple(filter(None, (self.happened, self.seen, self.remedy)))

    def __str__(self) -> str:
        """Return the parts, each on its own line."""
        return "\n".join(self.parts)


class SettingError(MultihostError):
    """A marker, option, ini or environment value is invalid; the user must correct it."""


class LaunchError(MultihostError):
    """The ranks could not be started, or the server that starts them is gone."""


class UnsoundForkError(LaunchError):
    """The controller cannot be forked safely: a child would hang, not fail."""


class CollectedDifferentlyError(MultihostError):
    """A rank that ran pytest's collection itself did not find its test."""


class NoWorldError(MultihostError):
    """The world was requested in a process that is not a rank."""


class WorldBrokenError(MultihostError):
    """A wait of the harness can never end, because another rank failed or left.

    Always a symptom: the rank that gets it is not the culprit.
    """


class GarbledError(Exception):
    """Data received on a connection was not written by this package, or not for this process."""


class MultihostHazardWarning(UserWarning):
    """A passing run shows a hang that may occur elsewhere; docs/hazards.md describes each kind."""
