"""Where py-spy is, which reads the memory of another process without stopping it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def py_spy() -> str | None:
    """Return the program's path: beside this Python, else on the PATH; None where it is neither."""
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside or shutil.which("py-spy")
