"""The pages for a browser: of each test that hung or broke, and of each run.

`sections` and `timeline` derive the values that an attempt's page shows, the templates lay them
out, `render` fills them. `pages` alone reads and writes files, all others of a failed world, too.
"""

from pytest_multihost.core.report.html.pages import (
    PAGE_NAME,
    write_index,
    write_judged,
    write_page,
)
from pytest_multihost.core.report.html.render import render, render_part
from pytest_multihost.core.report.html.sections import PageModel

__all__ = [
    "PAGE_NAME",
    "PageModel",
    "render",
    "render_part",
    "write_index",
    "write_judged",
    "write_page",
]
