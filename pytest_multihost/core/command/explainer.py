"""The interface of objects that explain a folder for ``multihost explain``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """Explains folders of one kind. Plugins offer theirs with `pytest_multihost_explainers`.

    Attributes:
        source: A word for the source of the verdict, such as "artifacts".
        folder: A text about the folders for the help: "of an attempt, below .pytest_multihost".
        explain: Explains the folder `directory` of the options and returns the exit code of the
            command, or None if the folder is not of its kind.
        add_options: Adds its own options to those of the command.
    """

    source: str
    folder: str
    explain: Callable[[argparse.Namespace], int | None]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
