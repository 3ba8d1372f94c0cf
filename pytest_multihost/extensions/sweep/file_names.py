"""Names the files of a sweep in the folder of the undisturbed attempt."""

from __future__ import annotations

SWEEP_NAME = "sweep.json"
SWEEP_PAGE_NAME = "sweep.html"
