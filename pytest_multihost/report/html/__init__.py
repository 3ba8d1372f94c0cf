"""The pages for a browser: one for each test that hung or broke, one for each run.

`page_model` holds the data of an attempt's page, `sections` and `timeline` derive the values that
it shows, the templates lay them out, and `pages` alone reads and writes files.

`render` sets up the templates.
"""

from pytest_multihost.report.html.page_model import PageModel
from pytest_multihost.report.html.pages import PAGE_NAME, write_index, write_page

__all__ = ["PAGE_NAME", "PageModel", "write_index", "write_page"]
