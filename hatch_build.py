"""Compile what is in C into the package, where there is a C compiler; without one, leave it out.

It is compiled on first use then, or never: everything else works without it. The variable
``PYTEST_MULTIHOST_PURE=1`` leaves it out in any case, for a wheel that fits every system.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIM = Path("pytest_multihost", "nemesis", "io_shim")
FAST = Path("pytest_multihost", "rank", "recorder", "fast")


class NativeBuildHook(BuildHookInterface[Any]):
    """Adds the libraries to a wheel, and puts them beside their sources for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile. The wheel is then for this system, and with the recorder's for this Python.

        Args:
            version: Kind of wheel, "standard" or "editable"; the same is done for both.
            build_data: What hatchling is told about the wheel.
        """
        if os.environ.get("PYTEST_MULTIHOST_PURE") == "1":
            return
        sys.path.insert(0, self.root)  # what compiles is ours, and nothing of ours is installed
        has_shim = self._compile(SHIM, "_shim-*.so", "the I/O shim", build_data)
        abi = sysconfig.get_config_var("SOABI")
        has_fast = self._compile(FAST, f"_fast-*.{abi}.so", "the recorder in C", build_data)
        if not has_shim and not has_fast:
            return
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-{system}" if has_fast else f"py3-none-{system}"

    def _compile(self, room: Path, pattern: str, what: str, build_data: dict[str, Any]) -> bool:
        """Compile a room's library, and return whether it is there; older ones go."""
        tools = runpy.run_path(str(Path(self.root, room, "build.py")))
        library = room / tools["file_name"]()
        for stale in Path(self.root, room).glob(pattern):
            stale.unlink()
        if problem := tools["build"](Path(self.root, library)):
            self.app.display_warning(f"Without {what}: {problem}")
            return False
        build_data["artifacts"].append(library.as_posix())
        return True
