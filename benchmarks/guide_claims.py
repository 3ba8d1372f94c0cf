"""Draw sentences of the guide at random, to be checked by hand against the code.

    python benchmarks/guide_claims.py [--seed 64] [--count 40]

A claim is a sentence, an item of a list or a row of a table with a number or a name in code; parts
that are made from the code are left out, because a test compares them. The same seed draws the same
claims from the same pages.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_PROSE = re.compile(
    r"(?ms)^ *```.*?^ *```|<!-- made: .*?<!-- /made -->|<!--.*?-->|^#.*?$|^:::.*?$"
)
ENDS = re.compile(r"(?<=[.?!])\s+(?=[A-Z`*\[])|\n\s*[*-] |\n\n|\n(?=\|)")


def claims() -> Iterator[tuple[str, str]]:
    """Yield each claim with the name of its page."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name == "changelog.md":
            continue
        for part in ENDS.split(NO_PROSE.sub("\n\n", path.read_text(encoding="utf-8"))):
            text = " ".join(part.split()).strip("| ")
            if len(text.split()) >= 6 and re.search(r"\d|`", text):
                yield path.name, text


def main() -> None:
    """Print the claims."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=64)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    found = list(claims())
    drawn = random.Random(options.seed).sample(found, options.count)
    for number, (page, text) in enumerate(drawn, 1):
        sys.stdout.write(f"{number:2} {page}: {text}\n")
    sys.stdout.write(f"{options.count} of {len(found)}, seed {options.seed}\n")


if __name__ == "__main__":
    main()
