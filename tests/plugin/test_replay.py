"""The command that a failed test prints repeats its world, typed as printed and nothing added."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
from builders import make_spec

from pytest_multihost import at, faults
from pytest_multihost.testing import token

FAULT = ("--multihost-fault", "raise_at(rank=1, at=at.sync_point('x'))")
SOURCE = """
import pytest

@pytest.mark.multihost{marker}
@pytest.mark.parametrize("name", ["it's $HOME", "b"])
def test_it(world, name):
    world.sync_point("x")
"""


def words_of(command: str) -> list[str]:
    """Return the words of a printed command, with `pytest` as this interpreter runs it."""
    program, *args = shlex.split(command)
    assert program == "pytest"
    return [sys.executable, "-m", "pytest", "-p", "multihost_hangs", *args]


def printed(text: str) -> list[str]:
    """Return the commands in the lines of a terminal that begin with `replay`."""
    return re.findall(r"^ *replay +(pytest .*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("marker", "given"),
    [
        ("", ["--ranks", "3"]),
        ("", ["--ranks", "2,3"]),
        ("", ["-o", "multihost_ranks=3"]),
        ("(ranks=[2, 3])", []),
        ("(ranks=2)", ["--multihost-backend", "none,gloo"]),
        ("(ranks=2)", ["--multihost-launch", "spawn"]),
    ],
)
def test_each_printed_command_repeats_its_world(run_worlds, pytester, marker, given) -> None:
    """The sizes, backends and launch of the run need not be given again."""
    first = run_worlds(SOURCE.format(marker=marker), *given, *FAULT)
    commands = printed(first.stdout)
    assert len(commands) == len(first.all_verdicts) > 0
    for verdict, command in zip(first.all_verdicts, commands, strict=True):
        again = pytester.run(*words_of(command), timeout=100)
        again.assert_outcomes(failed=1)
        repeated = json.loads((pytester.path / ".pytest_multihost/verdicts.jsonl").read_text())
        for key in ("nodeid", "world_size", "backend", "launch", "replay"):
            assert repeated[key] == verdict[key]


def test_a_command_holds_in_the_directory_where_pytest_was_started(
    run_worlds, pytester, monkeypatch
) -> None:
    """Pytest's ids are relative to its rootdir, and a user's paths to the working directory."""
    below = pytester.mkdir("below")
    pytester.makeini("[pytest]")
    monkeypatch.chdir(below)
    first = run_worlds(SOURCE.format(marker="(ranks=2)"), "..", *FAULT)
    command = printed(first.stdout)[0]
    assert "../test_worlds.py" in command
    pytester.run(*words_of(command), timeout=100).assert_outcomes(failed=1)


def test_the_sizes_of_the_environment_and_the_mode_are_repeated(
    run_worlds, pytester, monkeypatch
) -> None:
    """Neither the variable nor the option is set when the command is typed later."""
    monkeypatch.setenv("PYTEST_MULTIHOST_RANKS", "3")
    source = "def test_it(world): world.sync_point('x')"
    first = run_worlds(source, "--multihost-mode", "auto", *FAULT)
    monkeypatch.delenv("PYTEST_MULTIHOST_RANKS")
    [command] = printed(first.stdout)
    again = pytester.run(*words_of(command), timeout=100)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*world of 3 ranks*"])


def test_the_page_and_the_summary_on_github_show_the_same_command(
    run_worlds, pytester, monkeypatch
) -> None:
    """A command that is copied from there runs as well."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    first = run_worlds("import pytest\n" + SOURCE.format(marker=""), "--ranks", "3", *FAULT)
    commands = printed(first.stdout)
    page = (first.path / ".pytest_multihost/latest").glob("*/report.html")
    shown = [re.search(r'<code id="command">(.*?)</code>', each.read_text()) for each in page]
    assert sorted(html.unescape(each[1]) for each in shown if each) == sorted(commands)
    summary = (pytester.path / "summary.md").read_text()
    told = [html.unescape(each) for each in re.findall(r"^\* replay: (.*)$", summary, re.MULTILINE)]
    assert sorted(each.replace("\\", "") for each in told) == sorted(commands)


def test_a_size_that_contradicts_the_token_is_refused(run_worlds) -> None:
    """The error says how many ranks the token repeats."""
    source = "import pytest\n@pytest.mark.multihost\ndef test_it(world): world.sync_point('x')"
    first = run_worlds(source, "--ranks", "3", *FAULT)
    token = first.verdicts["test_it"]["replay"]
    second = run_worlds(source, "--ranks", "2", "--multihost-replay", token)
    assert second.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "has 2 ranks now, and the token repeats a world of 3" in second.run.stderr.str()


def test_a_token_imports_no_module(run_worlds, pytester) -> None:
    """What somebody else names runs only if the test itself imports it."""
    pytester.makepyfile(
        deploy="import pathlib; pathlib.Path('deployed').touch()", later="def work(): pass"
    )
    spec = replace(
        make_spec(2),
        nodeid="test_worlds.py::test_it",
        faults=(
            faults.delay(rank=0, seconds=0.1, at=at.call("deploy:main"), must_fire=False),
            faults.delay(rank=0, seconds=0.1, at=at.batch("deploy:data"), must_fire=False),
            faults.raise_at(rank=1, at=at.call("later:work"), error="deploy:Broken"),
        ),
    )
    source = """
        import sys, pytest
        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            sys.path.insert(0, ".")
            import later
            later.work()
    """
    worlds = run_worlds(source, "--multihost-replay", token(spec))
    assert "the test has not imported 'deploy'" in worlds.stdout
    assert not (worlds.path / "deployed").exists()
