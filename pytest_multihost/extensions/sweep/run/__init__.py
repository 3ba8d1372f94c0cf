"""Runs sweeps.

`sweeps` sweeps one test after the other with shared lanes, and shows the `live_line`. `one_sweep`
decides what to run next and keeps the results, and `earlier` reads the result of an earlier sweep.
"""

from pytest_multihost.extensions.sweep.run.sweeps import Sweeps, sweeps_of

__all__ = ["Sweeps", "sweeps_of"]
