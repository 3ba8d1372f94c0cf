"""Compile the I/O shim into the package, where there is a C compiler; without one, leave it out.

It is compiled on first use then, or never: everything else works without it. The variable
``PYTEST_MULTIHOST_PURE=1`` leaves it out in any case, for a wheel that fits every system.
"""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOM = Path("pytest_multihost", "nemesis", "io_shim")


class IoShimBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, and puts it beside its source for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile. The wheel is then for this system, yet for every Python: the library uses none.

        Args:
            version: Kind of wheel, "standard" or "editable"; the same is done for both.
            build_data: What hatchling is told about the wheel.
        """
        if os.environ.get("PYTEST_MULTIHOST_PURE") == "1":
            return
        room = Path(self.root, ROOM)
        tools = runpy.run_path(str(room / "build.py"))
        name = tools["file_name"]()
        for stale in room.glob("_shim-*.so"):
            stale.unlink()
        if problem := tools["build"](room / name):
            self.app.display_warning(f"Without the I/O shim: {problem}")
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["artifacts"].append((ROOM / name).as_posix())
