"""The console script `multihost`.

* `main` defines the command line and runs a command; plugins add commands with the hook
  `pytest_multihost_commands`.
* `joined_script` lets the processes of a launcher run a script together.
* `world_page` is the page of a world that is not a test's attempt.
* `rejudged` judges attempts again from their artifacts.
* `explainer` is the interface of plugins that explain other folders, or files. `job_files` prints
  and writes their findings.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_multihost.core.command.rejudged import rebuild
    from pytest_multihost.core.command.world_page import page_of

__all__ = ["page_of", "rebuild"]


def __getattr__(name: str) -> object:
    """Import names lazily: most commands need neither."""
    modules = {"page_of": "world_page", "rebuild": "rejudged"}
    if name not in modules:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
