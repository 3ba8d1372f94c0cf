"""Make the picture of a hang that README and guide show: ``python docs/pictures.py``.

Runs the example first_hang on a pseudo terminal and draws what pytest has written. Needs torch and
rich. A run changes the times in it, so it is made anew only when the page has changed.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

DOCS = Path(__file__).resolve().parent
EXAMPLE = DOCS.parent / "conftest_examples" / "first_hang"
PICTURE = DOCS / "images" / "hang.svg"
COLUMNS = 100
COMMAND = ("-m", "pytest", "-p", "timeout", "-p", "multihost_hangs", "--ranks", "4")


def main() -> None:
    """Run the example and draw it."""
    text = on_a_terminal([sys.executable, *COMMAND])
    begin = text.rindex("\n", 0, text.index("HUNG"))  # with the line's colour
    shown = text[begin + 1 :].partition("short test summary")[0]
    lines = [line for line in shown.replace("\r", "").splitlines() if "====" not in line]
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi("$ pytest --ranks 4"))
    console.print(Text.from_ansi("\n".join(map(shortened, lines))))
    svg = console.export_svg(title="pytest --ranks 4", theme=DIMMED_MONOKAI)
    # a font of one's own instead of one from the network
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE.relative_to(DOCS.parent)}: {len(lines)} lines")


def on_a_terminal(command: list[str]) -> str:
    """Return what a command writes to a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CI": "true",  # no live line
    }
    run = subprocess.Popen(command, cwd=EXAMPLE, env=environment, stdout=theirs, stderr=theirs)
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


def shortened(line: str) -> str:
    """Return a line without the time and the process id that make a folder's name."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d-]+Z-\d+", "…", line)


if __name__ == "__main__":
    main()
