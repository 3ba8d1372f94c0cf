"""Run the program of a role in place of the test's function."""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.placeholders import filled
from pytest_multihost.core.model.spec import RankSpec


def program_of(spec: RankSpec) -> Sequence[str]:
    """Return the words of the program that a rank's role runs; empty if it runs the test."""
    role = spec.role
    return () if role is None or not role.run else shlex.split(filled_in(role.run, spec))


def filled_in(text: str, spec: RankSpec) -> str:
    """Return a text of a rank's role with the rank's port and numbers in place of their names."""
    role = spec.role
    if role is None:
        return text
    number = spec.rank - role.ranks.start
    ports = {each.name: spec.ports_of(each)[2] for each in spec.world.roles}
    values = {"port": spec.ports_of(role)[2 + number], "rank": number, "size": len(role.ranks)}
    return filled(text, values, ports)


def run_program(words: Sequence[str]) -> None:
    """Run a module, a file, or a Python program on PATH, as the interpreter would.

    Args:
        words: The command line: "-m", a module and its arguments, or a file and its arguments.

    Raises:
        SettingError: There is no such program.
        BaseException: Any exception of the program, except an exit without an error.
    """
    name = words[1] if words[0] == "-m" else words[0]
    arguments = list(words[2 if words[0] == "-m" else 1 :])
    sys.argv[:] = [name, *arguments]
    try:
        if words[0] == "-m":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the interpreter does
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            return
        path = name if os.path.isfile(name) else shutil.which(name)  # noqa: PTH113
        if path is None:
            raise SettingError(f"there is no program {shown(name)}")
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - likewise
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        if exit_code(error):
            raise


def exit_code(error: SystemExit) -> int:
    """Return the exit code of the interpreter: 1 if the code is not a whole number."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
