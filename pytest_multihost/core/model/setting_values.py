"""Values of settings, for the options that ask for them and for the spec that carries them.

Every run of pytest imports this module, so it imports nothing that takes long.
"""

from __future__ import annotations

from typing import Final, Literal

Early = Literal["fail", "warn", "off"]
"""The reaction to a proven hang: end the world, only note it, or do not look for one."""

ONE: Final = "one"
"""The hosts of a world whose ranks are all on this machine."""

DEFAULT_BACKEND: Final = "none"

MAX_SEED = (1 << 63) - 1

MAX_RANKS = 10_000
"""The most ranks that a world may have; no machine holds more."""

MAX_SECONDS = 1e9
"""The longest time that a setting may give: 30 years. C libraries cannot count much further."""

NO_TIMEOUT_S = 365 * 86_400.0
"""The timeout of a world that has none: a year, which every runtime can add to a time."""
