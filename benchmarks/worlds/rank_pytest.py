"""A rank that runs pytest on one small test: the least that has fixtures and reports."""

import os
import sys

import pytest

sys.exit(pytest.main(["-q", "-c", "/dev/null", "one.py", f"--basetemp=rank-{os.getpid()}"]))
