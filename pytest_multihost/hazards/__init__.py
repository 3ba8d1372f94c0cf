"""Looks in the record of one passing run for what hangs elsewhere, above all on GPUs; pure.

gloo on CPU forgives what NCCL punishes. Matching of collectives has no wildcards, so that one run
shows what others would do.

* `rules` is about collectives and works, `transfers` about the order of sends and receives: each
  rule is a function from the record to what it has found. `programs` is about those of jax.
  `unguarded` is about calls that can fail on some ranks only, with `guards`, which reads what the
  code around a call does about that.
* `find` applies rules and words what they have found; `accepted` marks what a project accepts;
  `confirm` says what a sweep can do so that it hangs.
"""

from pytest_multihost.hazards.accepted import accept_hazards
from pytest_multihost.hazards.confirm import disturbances_of
from pytest_multihost.hazards.find import find_hazards

__all__ = ["accept_hazards", "disturbances_of", "find_hazards"]
