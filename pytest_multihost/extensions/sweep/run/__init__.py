"""Run sweeps.

`sweeps` sweeps one test after the other, with the lanes that they share, and shows the `live_line`
meanwhile; `one_sweep` decides what to run next and keeps what has been found, `earlier` reads the
result of an earlier sweep.
"""

from pytest_multihost.extensions.sweep.run.sweeps import Sweeps, sweeps_of

__all__ = ["Sweeps", "sweeps_of"]
