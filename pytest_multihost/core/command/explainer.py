"""The interface of objects that explain files or folders for ``multihost explain``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """Explains folders or files of one kind. Plugins offer theirs by `pytest_multihost_explainers`.

    Attributes:
        source: A word for the source of the verdict, such as "artifacts".
        folder: A text about the folders for the help: "of an attempt, below .pytest_multihost".
        explain: Explains the folder `directory` of the options and returns the exit code of the
            command, or None if the folder is not of its kind.
        takes_files: Whether it is also asked about several `paths` of the options; the path ``-``
            is standard input.
        add_options: Adds its own options to those of the command.
    """

    source: str
    folder: str
    explain: Callable[[argparse.Namespace], int | None]
    takes_files: bool = False
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
