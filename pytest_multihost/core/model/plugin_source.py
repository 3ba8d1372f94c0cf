"""Where a program without pytest looks for third-party plugins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource:
    """The arguments with which pytest would find plugins.

    Attributes:
        folders: The folders whose conftest.py files count.
        named: Values of ``-p``: modules, names of installed plugins, and ``no:NAME``.
    """

    folders: tuple[str, ...]
    named: tuple[str, ...] = ()
