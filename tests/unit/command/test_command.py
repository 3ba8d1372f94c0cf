"""What plugins add to the console script `multihost`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import pluggy
import pytest

from pytest_multihost.core.command.explainer import Explainer
from pytest_multihost.core.command.main import main, make_parser
from pytest_multihost.core.command.rejudged import rebuild
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report import Renderer
from pytest_multihost.hookspecs import hookimpl
from pytest_multihost.testing import MultihostError


class Tapes:
    """A plugin that explains folders of tapes, and makes a page of those of a run."""

    @hookimpl
    def pytest_multihost_explainers(self) -> Sequence[Explainer]:
        """Offer what explains folders of tapes."""
        return [
            Explainer(
                source="tapes",
                folder="of tapes",
                explain=lambda options: 9 if options.directory.name == "tapes" else None,
                add_options=lambda parser: parser.add_argument("--reel"),
            )
        ]

    @hookimpl
    def pytest_multihost_renderers(self) -> Sequence[Renderer]:
        """Offer what says that one page was written, and one was not."""
        torn = MultihostError("a tape is torn")
        return [Renderer(name="tapes", rebuild=lambda run: iter([run / "tapes.html", torn]))]


@pytest.fixture
def hook() -> pluggy.HookRelay:
    """The hooks of this package's plugins and of `Tapes`."""
    manager = new_plugin_manager()
    manager.register(Tapes())
    return manager.hook


def asked(hook: pluggy.HookRelay, *args: str) -> argparse.Namespace:
    """Return the options of a command line."""
    return make_parser(hook)[0].parse_args(args)


def test_a_plugin_explains_its_folders_with_its_options(hook: pluggy.HookRelay) -> None:
    """The exit code is its own."""
    options = asked(hook, "explain", "tapes", "--reel", "3")
    assert options.reel == "3"
    assert options.act(options, hook) == 9


def test_a_folder_that_no_plugin_knows_is_that_of_an_attempt(
    hook: pluggy.HookRelay, tmp_path: Path
) -> None:
    """So an error is about what an attempt lacks."""
    options = asked(hook, "explain", str(tmp_path))
    with pytest.raises(MultihostError, match="there is nothing to explain in"):
        options.act(options, hook)


def test_the_help_says_what_can_be_explained(
    hook: pluggy.HookRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is built in, extensions' and plugins'."""
    with pytest.raises(SystemExit):
        asked(hook, "explain", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "of an attempt, below .pytest_multihost, or of logs" in shown
    assert "or of torch's flight-recorder dumps" in shown
    assert "or of tapes" in shown
    assert "--reel" in shown


def test_plugins_write_their_pages_of_a_run_again(hook: pluggy.HookRelay, tmp_path: Path) -> None:
    """Beside the run's own page; one that cannot be written keeps no other from being."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "verdicts.jsonl").touch()
    *found, index = rebuild(run, offered_renderers(hook))
    assert [str(each) for each in found] == [str(run / "tapes.html"), "a tape is torn"]
    assert index == run / "report.html"


def test_the_command_says_its_version(
    hook: pluggy.HookRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug reports ask for it."""
    with pytest.raises(SystemExit, match="0"):
        make_parser(hook)[0].parse_args(["--version"])
    assert re.fullmatch(r"pytest-multihost-hangs \d+\.\S+\n", capsys.readouterr().out)


def test_errors_of_the_command_line_are_printable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An argument that was pasted from a log does not repaint the terminal."""
    monkeypatch.setattr("sys.argv", ["multihost", "explain", "a", "--\x1b[31mno"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "\u241b" in shown
    assert "\x1b" not in shown
