"""The pages for a browser: of each test that hung or broke, of each run, and of each sweep.

`sections` and `timeline` derive the values that an attempt's page shows, the templates lay them
out. `pages` alone reads and writes files, those of a sweep and all others of a failed world, too.
"""

from pytest_multihost.core.report.html.pages import (
    PAGE_NAME,
    SWEEP_PAGE_NAME,
    write_index,
    write_judged,
    write_page,
    write_sweep_page,
)
from pytest_multihost.core.report.html.sections import PageModel

__all__ = [
    "PAGE_NAME",
    "SWEEP_PAGE_NAME",
    "PageModel",
    "write_index",
    "write_judged",
    "write_page",
    "write_sweep_page",
]
