"""What one thread is doing: its system call, its label, whose code is on its stack."""

from pytest_multihost.proof.threads.labels import lock_holders, main_labels
from pytest_multihost.proof.threads.owners import (
    has_gloo_timeout,
    is_interpreter,
    is_runtime_thread,
    read_stack,
)
from pytest_multihost.proof.threads.system_calls import SystemCall, call_name

__all__ = [
    "SystemCall",
    "call_name",
    "has_gloo_timeout",
    "is_interpreter",
    "is_runtime_thread",
    "lock_holders",
    "main_labels",
    "read_stack",
]
