"""Render the sweep of a test; its page for a browser is in `report.html`.

`text` is what the terminal shows.
"""

from pytest_multihost.report.sweep.text import sweep_progress, sweep_section

__all__ = ["sweep_progress", "sweep_section"]
