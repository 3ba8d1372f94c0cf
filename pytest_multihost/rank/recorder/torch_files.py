"""Report the files that `torch.save` writes in C++, so that they are points like all others."""

from __future__ import annotations

from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.nemesis.interpose import reported


def report_files(serialization: ModuleType) -> None:
    """Report that such a file is about to be opened, and about to be written to its end.

    Args:
        serialization: The module `torch.serialization`.
    """
    writer: Any = serialization._open_zipfile_writer_file  # noqa: SLF001 - there is no public one
    opening, closing = writer.__init__, writer.__exit__

    def __init__(self: object, name: str, *args: object) -> None:  # noqa: N807 - as the original
        reported("open", name)
        opening(self, name, *args)

    def __exit__(self: Any, *error: object) -> None:  # noqa: ANN401, N807 - as the original
        if not any(error):
            reported("write", self.name)
        closing(self, *error)

    writer.__init__ = update_wrapper(__init__, opening)
    writer.__exit__ = update_wrapper(__exit__, closing)
