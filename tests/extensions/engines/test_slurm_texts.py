"""Texts of Slurm's commands, which a site may print in its own encoding."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_multihost.extensions.engines.cluster.slurm import SlurmFleet
from pytest_multihost.extensions.engines.engine import StartRequest


def test_a_reason_in_latin_1_is_shown_with_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may have reasons in German: the wait goes on, and the page can be printed."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf 'f\\374r Wartung'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fleet = SlurmFleet(
        request=StartRequest(python=None, code="", count=None, folder=tmp_path), job="7"
    )
    assert fleet.waiting() == r"job 7 waits: f\xfcr Wartung"
