"""``multihost reproduce``: writes a script that shows a weakness without this plugin."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from pytest_multihost.core.model.printable import printable

if TYPE_CHECKING:
    from pytest_multihost.hookspecs import Commands


def add_reproduce(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce", help="write a script and an issue that show a weakness without this plugin"
    )
    parser.set_defaults(act=_reproduce)
    parser.add_argument("token", help="the token in the line that begins with 'replay'")
    parser.add_argument(
        "--artifacts", type=Path, help="the artifacts directory (default: .pytest_multihost)"
    )
    parser.add_argument(
        "--yes", action="store_true", help="run the script without asking, if you trust the test"
    )
    parser.add_argument(
        "--into", type=Path, default=Path(), help="the folder for the files (default: this one)"
    )


def _reproduce(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Write the script and the issue, if a run of the script shows the weakness.

    Nothing is run before the user has seen which file is imported, and has agreed.

    Returns:
        1 if the user refused, or the script did not show the weakness; then nothing is written.

    Raises:
        MultihostError: There is no such weakness, or a script cannot show it.
    """
    del hook
    from pytest_multihost.core import files
    from pytest_multihost.extensions.sweep.reproduce.evidence import why_not_shown
    from pytest_multihost.extensions.sweep.reproduce.find import find_weakness
    from pytest_multihost.extensions.sweep.reproduce.issue import issue_text
    from pytest_multihost.extensions.sweep.reproduce.own_file import check_own_module, file_of_test
    from pytest_multihost.extensions.sweep.reproduce.permalinks import permalink
    from pytest_multihost.extensions.sweep.reproduce.script import (
        make_script,
        read_test,
        script_name,
    )
    from pytest_multihost.extensions.sweep.reproduce.shims import shim_of
    from pytest_multihost.extensions.sweep.reproduce.trial import command_of, try_script

    artifacts: Path = options.artifacts or files.artifacts_folder()
    found = find_weakness(options.token, artifacts)
    sweep = found.sweep
    path = file_of_test(sweep.nodeid, Path.cwd(), artifacts)
    test, name = read_test(sweep.nodeid, path), script_name(sweep.nodeid)
    script = make_script(found, test, name)
    target: Path = options.into / name
    imported = str(path)
    if own := shim_of(found.weakness.witness.disturbance.fault, sweep.backend).own:
        check_own_module(own, (Path(test.folder).resolve(), options.into.resolve()), artifacts)
        imported = f"{own} and {path}"
    asked = f"{found.path} asks {sweep.world_size} ranks to import {imported}: {test.call}()."
    if not (options.yes or _agrees(asked)):
        sys.stderr.write("Nothing was run. Agree with y, or call this with --yes.\n")
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    trial_script = target.with_name(f".{name}")
    files.write(trial_script, script)
    try:
        trial = try_script(command_of(sweep.backend, sweep.world_size, trial_script))
    finally:
        trial_script.unlink()
    shown = trial.output.replace(f"{Path.cwd()}/", "").replace(trial_script.name, name)
    trial = replace(trial, output=re.sub(r"/\S*/site-packages/", "", shown))
    if why := why_not_shown(trial, found.weakness.witness):
        sys.stderr.write(f"A script was written and run, and did not show the weakness: {why}.\n")
        sys.stderr.write("Nothing was written. The script was:\n\n" + script)
        sys.stderr.write("\nIt printed:\n\n" + trial.output[-4000:])
        return 1
    issue = target.with_name("issue.md")
    files.write(target, script)
    quoted = {name: script, str(path): path.read_text(encoding="utf-8")}
    files.write(issue, issue_text(found, quoted, trial, permalink))
    sys.stdout.write(f"{target}\n{issue}\n")
    return 0


def _agrees(asked: str) -> bool:
    """Return whether the user agrees to the planned run; without an answer it is refused."""
    sys.stderr.write(f"{printable(asked)}\nRun it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
