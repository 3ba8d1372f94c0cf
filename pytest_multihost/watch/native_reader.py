"""A program: write the native frames of processes to stdout, one JSON object per line.

It runs by itself because it can crash, and hang for good on a process in uninterruptible sleep. The
process that it reads is stopped meanwhile.
"""

from __future__ import annotations

import json
import sys

from pystack.engine import NativeReportingMode, get_process_threads


def _threads(pid: int) -> list[tuple[int, list[str]]]:
    """Return each thread's id and symbols, outermost first, as pystack has them."""
    threads = get_process_threads(pid, native_mode=NativeReportingMode.ALL)
    return [(each.tid, [frame.symbol for frame in each.native_frames]) for each in threads]


def _answer(pid: int) -> dict[str, object]:
    try:
        return {"pid": pid, "threads": _threads(pid)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the other processes can be read
        return {"pid": pid, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(json.dumps(_answer(int(argument))) + "\n")
        sys.stdout.flush()
