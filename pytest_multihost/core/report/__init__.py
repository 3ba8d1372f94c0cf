"""Render results: pages for a browser, text for the terminal, artifacts.

`html` is a sub-package with exports of its own. `artifacts` is what a run leaves on disk: folders
of runs and attempts, and the records in them.

`text` is what the terminal shows of a world; `layout` is what text for the terminal is made of,
with words that several of them share. `markdown` is what summaries are made of.

`renderer` is what extensions write and show, `annotation` a text at a line of the code.
`known_operations` are all operations of a rank.

`logs` reads logs: their beginnings and ends, and what is added to them.
"""

from pytest_multihost.core.report.logs import LiveOutput, read_log

__all__ = ["LiveOutput", "read_log"]
