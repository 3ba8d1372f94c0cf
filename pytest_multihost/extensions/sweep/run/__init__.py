"""Runs sweeps.

`sweeps` sweeps one test after the other with shared lanes. `one_sweep` decides the next run and
keeps the results, `worlds` describes the world of each step, and `runner` runs it in a lane
and shows the `live_line`.
"""

from pytest_multihost.extensions.sweep.run.sweeps import Sweeps, sweeps_of

__all__ = ["Sweeps", "sweeps_of"]
