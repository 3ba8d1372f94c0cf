"""Looks in the record of one passing run for what hangs elsewhere, above all on GPUs; pure.

gloo on CPU forgives what NCCL punishes. Matching of collectives has no wildcards, so that one run
shows what others would do.

* `rules` is about collectives, `transfers` about sends and receives, `unguarded` about calls that
  may fail on some ranks only: each rule is a function from the record to what it has found.
* `find` applies rules and words what they have found; `accepted` marks what a project accepts.
"""

from pytest_multihost.hazards.accepted import accept_hazards
from pytest_multihost.hazards.find import find_hazards

__all__ = ["accept_hazards", "find_hazards"]
