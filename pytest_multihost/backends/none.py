"""Backend ``none``: N processes and a rendezvous port, for code that initialises itself.

The rank's environment holds torchrun's variables, so `init_process_group("gloo")` and
`jax.distributed.initialize(f"{MASTER_ADDR}:{MASTER_PORT}", ...)` work as under torchrun. Failures
of either runtime are recognised as symptoms here too.
"""

from __future__ import annotations

from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.gloo import GLOO
from pytest_multihost.backends.jax import JAX
from pytest_multihost.model.spec import RankSpec


def _start(_: RankSpec) -> None:
    """Do nothing: the test initialises its runtime itself."""


NONE = Backend(
    name="none",
    start=_start,
    symptoms=GLOO.symptoms + JAX.symptoms,
    fatal_symptoms=GLOO.fatal_symptoms + JAX.fatal_symptoms,
)
