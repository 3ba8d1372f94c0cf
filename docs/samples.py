"""Make the outputs that pages show from runs: ``make samples``.

A comment above a block says which command prints it:

    <!-- sample: pytest --ranks 3 -->

The command runs in an empty folder with the Python files that the page shows above the comment.
Bars separate further parts of a comment: ``from`` and ``until`` are texts in the first line to show
and in the first one to leave out, ``section`` is the heading whose files are used instead, ``page``
the page whose files are, ``columns`` is the width of the terminal, and ``typed`` are the lines that
are typed at the prompts of the debugger, with semicolons between them. The output has times in it,
so each run changes a page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pexpect

DOCS = Path(__file__).resolve().parent
SAMPLE = re.compile(r"<!-- sample: (?P<parts>[^\n]+) -->\n```\n(?P<text>.*?)```\n", re.DOTALL)
_SUMMARY = "short test summary"
FRAME = re.compile(r"(=|_){5,}|(platform|rootdir|configfile|plugins|cachedir|-- Docs:)|collected ")
RULE = re.compile(r"(?m)^-{5,}( .* )-{5,}$")
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d-]+Z-\d+-\w+"), "..."),
    (re.compile(r"eyJ[\w=.-]+"), "eyJ2Ijox..."),
    (re.compile(r"/tmp/\S+?/shared/"), "/tmp/.../shared/"),  # noqa: S108 - only a text
)


@dataclass(frozen=True, slots=True)
class Sample:
    """An output that a page shows.

    Attributes:
        section: The heading whose files the command needs; empty: all above.
        page: The page whose files the command needs; empty: its own.
        typed: The lines that are typed at the debugger's prompts; then the command runs in a
            terminal.
    """

    command: str
    first: str = ""
    until: str = _SUMMARY
    section: str = ""
    page: str = ""
    columns: int = 104
    typed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Return the sample that a comment describes."""
        command, *parts = text.split(" | ")
        given = dict(part.split(": ", maxsplit=1) for part in parts)
        return cls(
            command,
            first=given.get("from", ""),
            until=given.get("until", _SUMMARY),
            section=given.get("section", ""),
            page=given.get("page", ""),
            columns=int(given.get("columns", 104)),
            typed=tuple(given.get("typed", "").split("; ")) if "typed" in given else (),
        )

    def files(self, page: str, above: str) -> dict[str, str]:
        """Return the files that it needs, of a page and of the page's part above it."""
        if self.page:
            return files_of((DOCS / self.page).read_text(encoding="utf-8"))
        if not self.section:
            return files_of(above)
        return files_of(re.split(rf"(?m)^#+ {self.section}$", page)[1].partition("\n#")[0])


def files_of(text: str) -> dict[str, str]:
    """Return the files that a part of a page shows, by the name that stands above each."""
    found: dict[str, str] = {}
    for above, block in re.findall(r"(?s)(.*?)```python\n(.*?)```", text):
        names = re.findall(r"`(\w+\.py)`", above.rpartition("```")[2])
        name = names[-1] if names else "test_page.py"
        found[name] = f"{found[name]}\n\n{block}" if name in found else block
    return found


def output(sample: Sample, files: dict[str, str]) -> str:
    """Return what a sample's command prints, as the page shows it.

    Raises:
        ValueError: It printed nothing that the page is to show.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"pytest.ini": "[pytest]\n", **files}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        program, *args = shlex.split(sample.command)
        environment = {
            **os.environ,
            "COLUMNS": str(sample.columns),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p timeout -p multihost_hangs",
        }
        arguments = ["-m", program, *args]
        printed = (
            _in_terminal(arguments, folder, environment, sample.typed)
            if sample.typed
            else subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            ).stdout
        )
    lines = [line.rstrip() for line in printed.splitlines()]
    begin = next((n for n, line in enumerate(lines) if sample.first in line), len(lines))
    end = next((n for n, line in enumerate(lines) if n > begin and sample.until in line), None)
    shown = "\n".join(line for line in lines[begin:end] if not FRAME.match(line)).strip("\n")
    shown = RULE.sub(lambda rule: rule[1].center(sample.columns, "-"), shown)
    shown = shown.replace(f"{folder}/", "")
    for pattern, instead in CHANGING:
        shown = pattern.sub(instead, shown)
    if not shown:
        raise ValueError(f"{sample.command} did not print {sample.first!r}:\n{printed}")
    return f"{shown}\n"


def _in_terminal(
    args: Sequence[str], folder: str, environment: Mapping[str, str], typed: Sequence[str]
) -> str:
    """Return what Python prints in a terminal, where lines are typed at the debugger's prompts."""
    run = pexpect.spawn(
        sys.executable,
        list(args),
        cwd=folder,
        env={**environment, "TERM": "dumb", "CI": "1"},  # CI: without the line that shows progress
        encoding="utf-8",
        timeout=120,
        dimensions=(50, int(environment["COLUMNS"])),
    )
    printed = ""
    for line in typed:
        run.expect(r"\(Pdb[^)]*\) ")
        printed += run.before + run.after
        run.sendline(line)
    run.expect(pexpect.EOF)
    return printed + str(run.before)


def made_anew(page: str) -> str:
    """Return a page with the outputs of new runs."""

    def block(found: re.Match[str]) -> str:
        sample = Sample.parse(found["parts"])
        print(f"  {sample.command}", flush=True)
        text = output(sample, sample.files(page, page[: found.start()]))
        return f"<!-- sample: {found['parts']} -->\n```\n{text}```\n"

    return SAMPLE.sub(block, page)


def main() -> None:
    """Make the samples of all pages, or of those that are named."""
    for path in map(Path, sys.argv[1:] or sorted(map(str, DOCS.glob("*.md")))):
        text = path.read_text(encoding="utf-8")
        if SAMPLE.search(text):
            print(path.name, flush=True)
            path.write_text(made_anew(text), encoding="utf-8")


if __name__ == "__main__":
    main()
