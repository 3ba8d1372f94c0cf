"""How the ranks of a world form a process group: jax, gloo, nccl, or left to the test (none).

torch and jax are imported inside functions only, in ranks and in the server that forks them: the
process of pytest itself imports no runtime.
"""

from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.registry import BUILT_IN_BACKENDS, find_backend

__all__ = ["BUILT_IN_BACKENDS", "Backend", "find_backend"]
