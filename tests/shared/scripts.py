"""Runs of scripts with `multihost run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_script(path: Path, source: str, *args: str, **variables: str) -> subprocess.Popen[str]:
    """Start `multihost run` on two ranks of a script; `args` may name options and the script."""
    (path / "train.py").write_text(source)
    left_out = ("CI", "COLUMNS", "PYTEST_MULTIHOST_ARTIFACTS")
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "-n2", *args],
        cwd=path,
        env={
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "TMPDIR": str(path),  # what is left by one that is killed goes with it
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_script(path: Path, source: str, *args: str, **variables: str) -> tuple[int, str]:
    """Run a script on two ranks; return the exit code and all that was printed."""
    process = start_script(path, source, *(args or ["train.py"]), **variables)
    printed, _ = process.communicate(timeout=100)
    return process.returncode, printed
