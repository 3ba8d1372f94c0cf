"""Look at a job that runs and never heard of this package: by /proc and py-spy, which only read.

`processes` says which rank a process is, `waits` which operation a rank's Python frames show, and
`seen_world` makes the world that is judged.
"""

from pytest_multihost.live.processes import Job, find_job
from pytest_multihost.live.seen_world import judge_job

__all__ = ["Job", "find_job", "judge_job"]
