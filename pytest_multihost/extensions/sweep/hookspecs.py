"""Declares the hook with which other extensions suggest faults to a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from pytest_multihost.core.model.fault import Fault
    from pytest_multihost.core.model.verdict import Place
    from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt


@hookspec
def pytest_multihost_suspects(  # type: ignore[empty-body]
    config: pytest.Config, attempt: CompletedAttempt
) -> Mapping[Fault, Place | None]:
    """Return faults that are likely to show a weakness of a test, each with the line concerned.

    A sweep tries them first. Implement it with ``hookimpl(optionalhook=True)``, because sweeps may
    be switched off.

    Args:
        attempt: The undisturbed attempt.
    """
