"""What explains a folder for ``multihost explain``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """Explains folders of one kind. Plugins offer theirs: `pytest_multihost_explainers`.

    Attributes:
        source: What it derives a verdict from, in a word: "artifacts".
        folder: Which folders it explains, for the help: "of an attempt, below .pytest_multihost".
        explain: Explains the folder `directory` of the options and returns the exit code of the
            command; None if the folder is not of its kind.
        add_options: Adds its own options to those of the command.
    """

    source: str
    folder: str
    explain: Callable[[argparse.Namespace], int | None]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
