"""What can go wrong, told in three beats: what happened, what was seen, what to do next."""

from __future__ import annotations


class MultihostError(Exception):
    """Base of every error this package raises on its own account.

    Args:
        happened: One sentence: what happened.
        seen: What was observed that says so.
        remedy: What the reader can do next, as a command where there is one.
    """

    def __init__(self, happened: str, *, seen: str = "", remedy: str = "") -> None:
        super().__init__(happened)
        self.happened = happened
        self.seen = seen
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the three beats, each on its own line, empty ones left out."""
        return "\n".join(beat for beat in (self.happened, self.seen, self.remedy) if beat)


class SettingError(MultihostError):
    """A marker, option, ini or environment value cannot be used. The user's to mend."""


class LaunchError(MultihostError):
    """The ranks could not be started, or the server that starts them is gone."""


class UnsoundForkError(LaunchError):
    """The controller cannot be forked safely: a child would hang, not fail."""


class CollectedDifferentlyError(MultihostError):
    """A rank that collected for itself did not find its test."""


class NoWorldError(MultihostError):
    """Somebody asked for the world outside a rank."""


class WorldBrokenError(MultihostError):
    """A wait of the harness can never end, because of what another rank did.

    Always a symptom: the rank that gets it is not the one to blame.
    """


class GarbledError(Exception):
    """What came through a connection was not written by this package, or not for it."""
