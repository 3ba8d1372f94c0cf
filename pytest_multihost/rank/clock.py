"""When things happened, also in a test that stops the time."""

from functools import partial
from time import CLOCK_MONOTONIC, clock_gettime

#: Seconds on the machine's monotonic clock. freezegun and its like look for `time.monotonic` in
#: every module and put their own in its place; a bound call of another function they leave alone.
now = partial(clock_gettime, CLOCK_MONOTONIC)
