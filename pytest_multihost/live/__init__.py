"""Running jobs that never heard of this plugin, looked at from outside; nothing is disturbed.

`machine` finds the worlds of this machine by the environment of their processes, `membership` reads
that, `processes` says which process is which rank, `choice` which job is meant, and `rights` what
is missing to read one. `look` looks twice at a job: `reader` reads its ranks here, `joined` those
on several machines, `waits` says which operation the frames of a thread show, `motion` why a rank
may still go on. `seen_world` judges what was seen, and `follow` looks until a job stops moving.
"""

from pytest_multihost.live.choice import choose
from pytest_multihost.live.follow import PATIENCE_S, follow
from pytest_multihost.live.machine import Worlds
from pytest_multihost.live.processes import Job
from pytest_multihost.live.reader import JobReader, LocalReader
from pytest_multihost.live.seen_world import judge_job

__all__ = [
    "PATIENCE_S",
    "Job",
    "JobReader",
    "LocalReader",
    "Worlds",
    "choose",
    "follow",
    "judge_job",
]
