"""Make the pictures of hangs that README and guide show: ``make pictures``.

The first one is of the example first_hang, which needs torch and rich. The others are of the
programs on the page of common hangs. A run changes the times in a picture, so each picture has the
digest of its program, and is made anew only when that has changed; ``--all`` makes all of them.
"""

from __future__ import annotations

import hashlib
import html
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
EXAMPLE = DOCS.parent / "conftest_examples" / "first_hang"
IMAGES = DOCS / "images"
GALLERY = DOCS / "common-hangs.md"
COLUMNS = 100
TESTS = ("-m", "pytest", "-p", "timeout", "-p", "multihost_hangs")
BEGIN = re.compile(
    r"(?m)^(?:\x1b\[\d+m)*(?:HUNG|CRASHED|EXITED|RAISED|FAILED|.*world of \d+ ranks,)"
)
PROGRAM = re.compile(
    r"(?s)^`(?P<file>\w+\.(?P<kind>py|out))`:\n\n```\w+\n(?P<text>.*?)```", re.MULTILINE
)

HEAD = """import fcntl, multiprocessing, os, signal

import pytest
{imports}

"""
IMPORTS = {
    "jax": "import jax, jax.numpy as jnp, numpy\nfrom jax.experimental import multihost_utils\n",
    "torch": "import torch, torch.distributed as dist\n",
}


@dataclass(frozen=True)
class Program:
    """A program whose output is a picture.

    Attributes:
        name: Of the picture's file, without its suffix.
        text: What the page shows.
        is_log: Whether it is a log that is explained, and not a test that is run.
    """

    name: str
    text: str
    is_log: bool

    @property
    def digest(self) -> str:
        """Changes with the program."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def picture(self) -> Path:
        """The file."""
        return IMAGES / "hangs" / f"{self.name}.svg"

    @property
    def is_made(self) -> bool:
        """Whether its picture is that of this program."""
        path = self.picture
        return path.exists() and f"<!-- {self.digest} -->" in path.read_text(encoding="utf-8")

    @property
    def source(self) -> str:
        """The whole test: the page leaves out the imports."""
        kind = "jax" if "jax" in self.text else "torch"
        return HEAD.format(imports=IMPORTS[kind]) + self.text


def programs(page: str) -> Iterator[Program]:
    """Yield the programs of a page, in order."""
    for each in PROGRAM.finditer(page):
        yield Program(Path(each["file"]).stem, each["text"], each["kind"] == "out")


def main() -> None:
    """Make the pictures whose programs have changed."""
    first = Program("hang", (EXAMPLE / "restore.py").read_text(encoding="utf-8"), is_log=False)
    if "--all" in sys.argv:
        shown = on_a_terminal([sys.executable, *TESTS, "--ranks", "4"], EXAMPLE)
        draw("$ pytest --ranks 4", page_of(shown), IMAGES / "hang.svg", first.digest)
    for each in programs(GALLERY.read_text(encoding="utf-8")):
        if "--all" in sys.argv or not each.is_made:
            with tempfile.TemporaryDirectory() as folder:
                command = make(each, Path(folder))
                lines = page_of(on_a_terminal([sys.executable, *command], Path(folder)))
            title = "$ multihost explain slurm.out" if each.is_log else f"$ pytest {each.name}.py"
            draw(
                title, [line.replace(f"{folder}/", "") for line in lines], each.picture, each.digest
            )


def make(program: Program, folder: Path) -> tuple[str, ...]:
    """Write a program into a folder, and return the command that shows its hang."""
    if program.is_log:
        (folder / "slurm.out").write_text(program.text, encoding="utf-8")
        return ("-m", "pytest_multihost.core.command.main", "explain", "slurm.out")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / f"{program.name}.py").write_text(program.source, encoding="utf-8")
    return (*TESTS, f"{program.name}.py")


def page_of(text: str) -> list[str]:
    """Return the lines of the page of a hang, without those of pytest.

    Raises:
        ValueError: There is no such page.
    """
    found = BEGIN.search(text)
    if found is None:
        raise ValueError(f"no page of a hang:\n{text}")
    shown = text[found.start() :].partition("short test summary")[0].replace("\r", "")
    lines = [line for line in shown.splitlines() if "====" not in line]
    end = next((n for n, line in enumerate(lines) if "-- Captured" in line), None)
    return lines[:end]


def draw(title: str, lines: list[str], path: Path, digest: str) -> None:
    """Draw lines with the colours of a terminal."""
    from rich.console import Console
    from rich.terminal_theme import DIMMED_MONOKAI
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi(title))
    console.print(Text.from_ansi("\n".join(map(shortened, lines)).rstrip()))
    svg = console.export_svg(title=title.removeprefix("$ "), theme=DIMMED_MONOKAI)
    # a font of one's own instead of one from the network
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    path.parent.mkdir(exist_ok=True)
    path.write_text(svg.replace("</svg>", f"<!-- {digest} --></svg>"), encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(DOCS.parent)}: {len(lines)} lines\n")


def on_a_terminal(command: list[str], folder: Path) -> str:
    """Return what a command writes to a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CI": "true",  # no live line
    }
    run = subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 4096):
            chunks.append(chunk)
    except OSError:  # Linux says EIO when the last writer has closed a pty
        pass
    finally:
        os.close(ours)
    run.wait()
    return b"".join(chunks).decode()


def words_of(picture: Path) -> str:
    """Return the text of a picture, without spaces, for a comparison."""
    text = html.unescape(re.sub(r"<[^>]+>", "", picture.read_text(encoding="utf-8")))
    return re.sub(r"\s", "", text)


def shortened(line: str) -> str:
    """Return a line without the time and the process id that make a folder's name."""
    line = re.sub(r"-{5,}( .*? )-{5,}", lambda each: each[1].center(COLUMNS, "-"), line)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d-]+Z-\d+", "…", line)


if __name__ == "__main__":
    main()
