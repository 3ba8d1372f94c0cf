"""How the ranks of a world form a process group: jax, gloo, nccl, or left to the test (none).

torch and jax are imported inside functions only, in ranks and in the server that forks them: the
process of pytest itself imports no runtime.

`backend` says what a backend is, `registry` finds one by its name; `torch_groups` has gloo and
nccl, `jax` has jax.
"""

from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.registry import BUILT_IN_BACKENDS, find_backend

__all__ = ["BUILT_IN_BACKENDS", "Backend", "find_backend"]
