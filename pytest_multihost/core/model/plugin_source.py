"""Where a program without pytest looks for plugins of others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource:
    """What pytest would be given to find plugins.

    Attributes:
        folders: The folders whose conftest.py files count.
        named: What follows ``-p``: modules, names of installed plugins, and ``no:NAME``.
    """

    folders: tuple[str, ...]
    named: tuple[str, ...] = ()
