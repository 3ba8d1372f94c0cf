"""Makes pytest's errors of usage, whose texts pytest prints as they are."""

from __future__ import annotations

import pytest

from pytest_multihost.core.model.printable import bounded, printable


def usage_error(text: str) -> pytest.UsageError:
    """Return an error of usage; its text may quote a node or a file.

    All errors of usage are made here, so that none repaints the terminal or is taken for a command.
    """
    return pytest.UsageError(bounded(printable(text, keeps_lines=True)))
