"""The pages for a browser: of each test that hung or broke, of each run, and of each sweep.

`page_model` holds the data of an attempt's page, `sections` and `timeline` derive the values that
it shows, the templates lay them out, and `pages` alone reads and writes files.

`sweep_page` does all that for a sweep. `render` sets up the templates.
"""

from pytest_multihost.report.html.page_model import PageModel
from pytest_multihost.report.html.pages import PAGE_NAME, write_index, write_page
from pytest_multihost.report.html.sweep_page import SWEEP_PAGE_NAME, write_sweep_page

__all__ = [
    "PAGE_NAME",
    "SWEEP_PAGE_NAME",
    "PageModel",
    "write_index",
    "write_page",
    "write_sweep_page",
]
