"""Sweeps: run a passing test again and again, each time with one disturbance.

`sweeps` sweeps one test after the other, with the lanes that they share, and shows a line
meanwhile; `one_sweep` decides what to run next and keeps what has been found, and reads what an
earlier sweep has left undone and the weaknesses that the project accepts.
"""

from pytest_multihost.extensions.sweep.run.one_sweep import read_acceptances
from pytest_multihost.extensions.sweep.run.sweeps import Sweeps

__all__ = ["Sweeps", "read_acceptances"]
