"""When things happened, also in a test that stops the time.

freezegun and its like look for `time.monotonic` in every module and put their own in its place; a
bound call of another function they leave alone.
"""

from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime, clock_gettime_ns

#: Seconds on the machine's monotonic clock.
now = partial(clock_gettime, CLOCK_MONOTONIC)

#: The same in nanoseconds.
now_ns = partial(clock_gettime_ns, CLOCK_MONOTONIC)
