"""Record which operations a rank is in: torch's, jax's, the harness's own.

An operation is what other ranks must take part in. Its record in the slot page says since when and
from which line of the user's, and stays readable when the rank is stopped or dead.

`process_recorder` prepares and opens the `recorder` of a process. `torch`, `torch_groups`,
`torch_process_groups`, `torch_files`, `torch_rpc`, `torch_elastic` and `torch_flight_recorder` wrap
torch by `calls`, `jax` wraps jax, each `after_import`. `file_locks` wraps fcntl, `native_files`
safetensors and tensorstore. `handlers` says which exceptions certainly fail the test.
"""

from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.process_recorder import (
    current_recorder,
    operation,
    prepare_recording,
    start_recording,
)
from pytest_multihost.rank.recorder.recorder import Recorder, SourceRef

__all__ = [
    "Recorder",
    "SourceRef",
    "after_import",
    "current_recorder",
    "operation",
    "prepare_recording",
    "start_recording",
]
