"""The controller keeps room for its own files, whatever tests and plugins have opened."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, resource
from pytest_multihost.core.launch.descriptor_limit import keep_descriptors_free
from pytest_multihost.testing import LaunchError
resource.setrlimit(resource.RLIMIT_NOFILE, (200, HARD))
kept = []
try:
    while len(kept) < FILES:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    keep_descriptors_free()
except LaunchError as error:
    os.close(kept.pop())
    print("refused")
else:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("files", "hard", "printed"),
    [
        (10, 400, "200"),
        (150, 400, "400"),
        (999, 400, "400"),
        (150, 200, "200"),
        (999, 200, "refused"),
    ],
    ids=[
        "enough are free",
        "few are free",
        "none is free",
        "few, and no more",
        "none, and no more",
    ],
)
def test_the_soft_limit_is_raised_before_no_file_can_be_opened(
    files: int, hard: int, printed: str
) -> None:
    """If that is impossible, it is an error of the harness, and no verdict on the ranks."""
    program = PROGRAM.replace("HARD", str(hard)).replace("FILES", str(files))
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == printed
