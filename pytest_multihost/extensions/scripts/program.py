"""The Python program behind a command, as ``torchrun --no-python`` would run it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.errors import SettingError

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?)?")
_SHEBANG = re.compile(rb"#!\s*(\S*/)?(env\s+(-S\s+)?)?(?P<python>\S*python[\d.]*)\s")
_HEAD_BYTES = 512
_GIVE_PYTHON = "Give the Python program itself: multihost run --ranks N train.py"


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program.

    Attributes:
        script: Its file, or the name of a module.
        is_module: Whether `script` is a module, as for ``python -m``.
    """

    script: str
    args: Sequence[str]
    is_module: bool = False


def python_program(command: Sequence[str]) -> Program:
    """Return the program that a command runs: of the interpreter, or a file that begins with it.

    Raises:
        SettingError: There is no such command, or this interpreter cannot run it.
    """
    name, *args = command
    path = shutil.which(name)
    if path is None:
        raise SettingError(f"--no-python: there is no command {name}")
    if _INTERPRETER.fullmatch(Path(path).name):
        _require_this(path)
        return _of_interpreter(args)
    with Path(path).open("rb") as file:
        shebang = _SHEBANG.match(file.read(_HEAD_BYTES))
    if shebang is None:
        raise SettingError(
            f"--no-python: {name} is not a Python program, and multihost run watches only those",
            remedy=_GIVE_PYTHON,
        )
    python = os.fsdecode(shebang["python"])
    _require_this(shutil.which(python) or python)
    return Program(path, args)


def _of_interpreter(args: Sequence[str]) -> Program:
    """Return the program that the interpreter runs with these arguments.

    Raises:
        SettingError: It has options of its own, or would read its program from elsewhere.
    """
    args = list(args)
    while args[:1] == ["-u"]:  # ranks never buffer their output
        del args[0]
    if args[:1] == ["-m"] and len(args) > 1:
        return Program(args[1], args[2:], is_module=True)
    if not args or args[0].startswith("-"):
        raise SettingError(
            f"--no-python: python {' '.join(args[:1])} names no script".replace("  ", " "),
            remedy=f"{_GIVE_PYTHON}, and set variables such as PYTHONWARNINGS for Python's options",
        )
    return Program(args[0], args[1:])


def _require_this(python: str) -> None:
    """Check that an interpreter is this one: another has other packages.

    Raises:
        SettingError: It is another one.
    """
    theirs, ours = Path(python).parent.resolve(), Path(sys.executable).parent.resolve()
    if theirs != ours:
        raise SettingError(
            f"--no-python: {python} is another Python than that of multihost, {sys.executable}",
            remedy=f"Install the plugin there: {python} -m pip install pytest-multihost-hangs",
        )
