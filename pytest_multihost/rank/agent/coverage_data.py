"""Save what coverage.py has measured in a rank.

A rank leaves by `os._exit`, so nobody else would; and a forked rank's data has the name of the
file that the controller will write, so it gets one of its own. pytest-cov combines all of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def save_coverage() -> None:
    """Write the data of the running measurement, if there is one."""
    module: Any = sys.modules.get("coverage")
    measurement: Any = module.Coverage.current() if module is not None else None
    if measurement is None:
        return
    measurement.stop()
    data: Any = measurement._data  # noqa: SLF001 - get_data() would write to the old name
    if data is not None:
        data._suffix = f"rank-{os.getpid()}"  # noqa: SLF001
        data._choose_filename()  # noqa: SLF001
    measurement.save()
