"""What a run leaves on disk: a folder for each run, in it one for each attempt with its verdict.

`folders` makes the folders of runs and attempts, `record` the files in them.
"""

from pytest_multihost.report.artifacts.folders import (
    RunFolder,
    new_run_id,
    write_attempt,
)
from pytest_multihost.report.artifacts.record import (
    Attempt,
    Rejudged,
    build_verdict,
    rejudge,
    write_facts,
)

__all__ = [
    "Attempt",
    "Rejudged",
    "RunFolder",
    "build_verdict",
    "new_run_id",
    "rejudge",
    "write_attempt",
    "write_facts",
]
