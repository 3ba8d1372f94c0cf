"""What a call that a fault makes fail raises."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pytest_multihost.extensions.faults.call_results import error_class

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("operation", "error", "name"),
    [
        ("all_reduce", "", "RuntimeError"),
        ("all_reduce", "mesh_errors:GroupError", "GroupError"),
        ("all_reduce", "mesh_errors:Missing", "RuntimeError"),
        ("world.barrier", "mesh_errors:GroupError", "RuntimeError"),
        ("sync_global_devices", "mesh_errors:GroupError", "RuntimeError"),  # jax is not imported
    ],
)
def test_an_operation_fails_with_the_error_of_its_backend(
    operation: str, error: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that is a class of exceptions; the harness's own operations are no backend's."""
    module = ModuleType("mesh_errors")
    monkeypatch.setattr(module, "GroupError", type("GroupError", (OSError,), {}), raising=False)
    monkeypatch.setitem(sys.modules, "mesh_errors", module)
    monkeypatch.delitem(sys.modules, "jax.errors", raising=False)
    assert error_class(operation, error).__name__ == name
