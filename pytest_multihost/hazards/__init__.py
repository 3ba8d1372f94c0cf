"""Looks in the record of one passing run for what hangs elsewhere, above all on GPUs; pure.

gloo on CPU forgives what NCCL punishes. Matching of collectives has no wildcards, so that one run
shows what others would do.

* `rules` has the rules about collectives, works and transfers, each a function from the record to
  what it has found.
* `find` applies rules, words what they have found, marks what a project accepts, and says what a
  sweep can do so that it hangs.
"""

from pytest_multihost.hazards.find import accept_hazards, disturbances_of, find_hazards

__all__ = ["accept_hazards", "disturbances_of", "find_hazards"]
