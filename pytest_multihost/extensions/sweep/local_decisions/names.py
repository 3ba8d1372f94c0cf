"""Words in the names of functions that describe their results."""

from __future__ import annotations

import re

DATA = re.compile(
    r"(^|_)(data|dataset|dataloader|loader|(mini)?batch(es)?|examples?|samples?|tokens|rows|records"
    r"|requests|prompts|sequences|images|documents)($|_)"
)
"""Words in the name of a function that returns or yields a rank's data."""

ITERATOR = re.compile(
    r"(^|_)(sampler|iterator|iter|stream|reader|feed|feeder|source|loader|batcher)($|_)"
)
"""Further words in the name of a class whose objects yield a rank's data one by one."""

COUNTED = re.compile(
    r"(^|_)(batches|examples|samples|tokens|rows|records|requests|prompts|sequences|images"
    r"|documents)($|_)"
)
"""Words in the name of a function that returns how many of these its rank has."""

NOT_A_COUNT = re.compile(r"(^|_)(size|per|max|min|total|index|indices|id|ids|each|all)($|_)")
"""Words in the name of a function that returns another number about these."""

CACHE = re.compile(r"(^|_)(cache|caches|cached|lookup|look_up|memo|memoized)($|_)")
"""Words in the name of a function or class that looks for an entry of a cache."""

SIGNAL = re.compile(r"(^|_)(preempted|preemption|interrupted|signalled|signaled|sigterm)($|_)")
"""Words of functions that ask whether this process has been asked to end."""
