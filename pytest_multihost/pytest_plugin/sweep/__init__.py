"""Sweeps: run a passing test again and again, each time with one disturbance.

`sweeps` sweeps one test after the other, with the lanes that they share; `one_sweep` decides what
to run next and keeps what has been found; `results` reads what an earlier sweep has
left undone, and the weaknesses that the project accepts; `live` is the line on the
terminal.
"""

from pytest_multihost.pytest_plugin.sweep.results import read_acceptances
from pytest_multihost.pytest_plugin.sweep.sweeps import Sweeps

__all__ = ["Sweeps", "read_acceptances"]
