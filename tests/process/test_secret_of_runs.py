"""The secret of attached runs is set in many environments, and no rank of any run has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECRET = "0123456789abcdef0123"  # noqa: S105 - guards nothing

SEES = """
import os, pathlib
own = [os.getpid(), os.getppid()]
texts = [pathlib.Path(f"/proc/{pid}/environ").read_bytes() for pid in own]
assert "PYTEST_MULTIHOST_SECRET" not in os.environ
assert not any(b"0123456789abcdef0123" in text for text in texts)
"""


def test_no_rank_of_a_test_has_the_secret(run_worlds, monkeypatch) -> None:
    """Nor does it see the secret in the memory of the processes that have started it.

    The folder of the artifacts is opened by an option, and its files with it.
    """
    monkeypatch.setenv("PYTEST_MULTIHOST_SECRET", SECRET)
    program = "import pytest\n@pytest.mark.multihost(ranks=2)\ndef test_it(world):\n"
    program += "".join(f"    {line}\n" for line in SEES.strip().splitlines())
    worlds = run_worlds(program, "--multihost-artifacts-access=all", "--multihost-carry=OWN")
    worlds.run.assert_outcomes(passed=1)
    run = (worlds.path / ".pytest_multihost" / "latest").resolve()
    assert run.stat().st_mode & 0o777 == 0o755


def test_no_rank_of_a_script_has_the_secret(tmp_path: Path) -> None:
    """As for tests."""
    (tmp_path / "train.py").write_text(SEES)
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "run", "--ranks", "2"]
    done = subprocess.run(
        [*command, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_MULTIHOST_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
