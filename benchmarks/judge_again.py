"""Judge recorded worlds again with two revisions, and compare what a user sees, byte for byte.

    python benchmarks/judge_again.py REVISION [--archive FILE] [--only PART]

benchmarks/facts.tar.xz has the facts of every program of the corpus and of the simulated shapes
(benchmarks/record_facts.py --all). Each revision, REVISION and this tree with all that is not
committed, prints the page of each world (`multihost explain`, which also names each field of the
recorded verdict.json that comes out otherwise) and writes its report.html (`multihost report`).
Prints a diff of each text that is not the same, and exits with 1 if there is one. A world that one
revision cannot read is a difference.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import trees
from figures import FailedError
from record_facts import ALL_INTO
from trees import Tree

RUN = "20260101-000000-1"
MOST_LINES = 20
PAGES = """
import contextlib, io, pathlib, sys
from {module} import {function} as multihost

for folder in sorted(pathlib.Path(sys.argv[1]).glob("*/")):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        sys.argv[1:] = ["explain", str(folder)]
        try:
            code = multihost()
        except SystemExit as exit:
            code = exit.code
        except Exception as error:
            code = repr(error)
    (folder / "page.txt").write_text(f"{{out.getvalue()}}\\nexit code {{code}}\\n")
sys.argv[1:] = ["report", str(folder.parent)]
multihost()
"""


def main() -> int:
    """Judge all worlds twice, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--archive", type=Path, default=ALL_INTO)
    parser.add_argument("--only", default="", help="part of the names of worlds")
    options = parser.parse_args()
    try:
        with trees.beside(options.revision) as pair, tempfile.TemporaryDirectory() as scratch:
            # Both lie in turn at the same place, because pages show it.
            then = judged_by(pair.then, options.archive, options.only, Path(scratch, "run"))
            now = judged_by(pair.now, options.archive, options.only, Path(scratch, "run"))
    except (trees.UnknownRevisionError, FailedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    differing = 0
    for name in sorted(then.keys() | now.keys()):
        lines = list(differences(name, then.get(name, ""), now.get(name, "")))
        differing += bool(lines)
        for line in lines[:MOST_LINES]:
            print(line)
    print(f"{len(then)} texts then, {len(now)} now, {differing} are not the same")
    return 1 if differing or not then else 0


def judged_by(tree: Tree, archive: Path, only: str, place: Path) -> Mapping[str, str]:
    """Return what a revision makes of each world: texts by the world's name and the file's."""
    run = place / RUN
    run.mkdir(parents=True)
    with tarfile.open(archive) as records:
        for member in records:
            if only in member.name and (content := records.extractfile(member)):
                folder = run / member.name.removesuffix(".json")
                folder.mkdir()
                for name, value in json.loads(content.read()).items():
                    (folder / f"{name}.json").write_text(json.dumps(value))
    module, _, function = tree.command.partition(":")
    tree.output_of([sys.executable, "-c", PAGES.format(module=module, function=function), str(run)])
    found = {
        f"{path.parent.name}/{path.name}": path.read_text(encoding="utf-8")
        for pattern in ("*/page.txt", "*/report.html")
        for path in run.glob(pattern)
    }
    shutil.rmtree(place)
    return found


def differences(name: str, then: str, now: str) -> Iterator[str]:
    """Yield the lines of a diff."""
    return difflib.unified_diff(
        then.splitlines(), now.splitlines(), f"{name} then", f"{name} now", lineterm="", n=1
    )


if __name__ == "__main__":
    sys.exit(main())
