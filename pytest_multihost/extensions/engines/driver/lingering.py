"""A service by which a rank survives SIGTERM for some seconds.

Slurm sends SIGTERM to every process of a job that it ends, the ranks among them. The peers report
the signal, and the driver then has the ranks write their stacks, for which they must still be
there. A handler that the test installs takes the place of this one.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from types import FrameType

from pytest_multihost.core.model.spec import RankSpec, ServicePart
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.core.services import ServiceKind

_LINGER_S = 5.0

PART = ServicePart(rank=f"{__name__}:join")
"""The service's entry in a world's spec."""

LINGERING = ServiceKind(name="lingering", open=lambda _: None, part=PART)


def join(_: RankSpec) -> RankPart:
    """Return the part of a rank, which installs the handler when the test begins."""
    return RankPart(begin=_begin)


def _begin() -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, partial(_linger, os.getpid()))


def _linger(rank: int, number: int, _: FrameType | None) -> None:
    """Wait, and end as without a handler; a forked child of the rank ends at once."""
    if os.getpid() == rank:
        time.sleep(_LINGER_S)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
