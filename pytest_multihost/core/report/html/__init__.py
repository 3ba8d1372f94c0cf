"""Pages for a browser: one for each attempt that hung or failed, and one for each run.

`sections` and `timeline` derive the values that an attempt's page shows. The templates lay them
out, and `render` fills the templates. Only `pages` reads and writes files, including the records of
a failed world.
"""

from pytest_multihost.core.report.html.pages import (
    PAGE_NAME,
    write_index,
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
    "write_page",
]
