"""Make the parts of the guide that the code knows: ``make made``.

A comment names the part, and another one ends it:

    <!-- made: options -->
    ...
    <!-- /made -->

A test compares each part with what this makes, so that no page is behind the code.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemas

from pytest_multihost import World, hookspecs
from pytest_multihost.core.command.main import make_parser
from pytest_multihost.core.option import CORE_OPTIONS
from pytest_multihost.core.pytest_plugin.options import add_options
from pytest_multihost.core.registry import extension_plugins, new_plugin_manager

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PART = re.compile(r"(?ms)^(<!-- made: (?P<name>[^\n]+?) -->\n)(?P<text>.*?)^<!-- /made -->$")

SEE = {
    "accept": "sweep.md#weaknesses-that-you-accept",
    "adopt": "adopt.md",
    "join": "attach.md",
    "backend": "settings.md#backends",
    "carry": "cluster.md",
    "clock": "clock.md",
    "early": "hangs.md#what-a-proof-does",
    "fault": "faults.md",
    "hazard": "hazards.md",
    "hosts": "roles.md#hosts",
    "launch": "hangs.md#how-a-test-runs",
    "nodes": "cluster.md",
    "on": "cluster.md",
    "pdb": "debugger.md",
    "points": "api.md#points",
    "python": "cluster.md",
    "queue": "cluster.md",
    "ray": "cluster.md",
    "replay": "faults.md#repeat-a-run",
    "seed": "faults.md#repeat-a-run",
    "semantics": "many-ranks.md#nccls-rules",
    "sweep": "sweep.md",
    "watch": "watch.md",
}
"""The page about an option, by the beginning of its name."""

EXAMPLES = {
    "rank": "`if world.rank == 1: ...`",
    "size": "`assert x[0] == world.size`",
    "is_primary": "`if world.is_primary: write(path)`",
    "backend": '`device = "cuda" if world.backend == "nccl" else "cpu"`',
    "role": '`if world.role == "trainer": ...`',
    "role_rank": '`port = world.port("engine", world.role_rank)`',
    "role_size": "`for n in range(world.role_size): ...`",
    "ranks_of": '`world.ranks_of("engine")[0]`',
    "port": '`serve(world.port("engine"))`',
    "host": '`assert world.host == "host-0"`',
    "devices": "`jax.device_put(x, world.devices[0])`",
    "clock": "`assert world.clock.now() > 1800`",
    "shared_directory": '`path = world.shared_directory / "ckpt"`',
    "barrier": '`world.barrier("saved")`',
    "gather": "`assert len(set(world.gather(step))) == 1`",
    "broadcast": "`address = world.broadcast(address)`",
    "inherit": "`name = world.inherit(tempfile.mkdtemp())`",
    "part": "`world.part()` before a tear-down that removes shared files",
    "sync_point": '`world.sync_point("before-commit")`',
    "same": '`world.same("step", step)`',
    "breakpoint": "`world.breakpoint(rank=2)`",
}
"""A use of each member of `World`."""


@dataclass
class Declared:
    """Takes what a plugin declares to pytest's parser."""

    options: list[tuple[tuple[str, ...], dict[str, Any]]] = field(default_factory=list)
    settings: list[tuple[str, str]] = field(default_factory=list)

    def getgroup(self, *_: str) -> Declared:
        """Return itself: all groups are one here."""
        return self

    def addoption(self, *flags: str, **given: Any) -> None:  # noqa: ANN401
        """Note an option."""
        self.options.append((flags, given))

    def addini(self, name: str, text: str, **_: Any) -> None:  # noqa: ANN401
        """Note a setting of the configuration file."""
        self.settings.append((name, text))


def row(*cells: str) -> str:
    """Return a row of a table; a bar in a cell ends none."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def sentence(text: str) -> str:
    """Return a help text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def link(name: str) -> str:
    """Return where an option is described; empty if its row says all."""
    page = next((SEE[each] for each in SEE if each in name.split("_")), "")
    return f" [More]({page})" if page and not page.startswith("settings") else ""


def options() -> Iterator[str]:
    """Yield a row for each option with an environment variable and an ini setting."""
    offers = new_plugin_manager().hook.pytest_multihost_options.get_hookimpls()
    by_plugin = sorted(offers, key=lambda each: each.plugin_name)
    offered = [*CORE_OPTIONS, *(one for each in by_plugin for one in each.function())]
    yield "| command line | environment, ini | marker | meaning |"
    yield "|---|---|---|---|"
    for each in {one.name: one for one in offered if one.is_for_tests}.values():
        flags = ", ".join((*each.flags, each.flag))
        value = f"[={each.metavar.strip('[]')}]" if each.bare is not None else f" {each.metavar}"
        yield row(
            f"`{flags}{value}`",
            f"`{each.variable}`, `{each.dest}`",
            f"`{each.name}=`" if each.key is not None else "",
            f"{sentence(each.help)}{link(each.name)}",
        )


def other_options() -> Iterator[str]:
    """Yield a row for each option of the command line alone, and each setting of the ini file."""
    parser: Any = Declared()
    add_options(parser)
    for _, plugin in extension_plugins():
        if (declare := getattr(plugin, "pytest_addoption", None)) is not None:
            declare(parser)
    yield "| command line or ini setting | meaning |"
    yield "|---|---|"
    for flags, given in parser.options:
        if given["help"] == argparse.SUPPRESS:
            continue
        name = flags[0].removeprefix("--multihost-")
        yield row(
            f"`{flags[0]}{' ' + given['metavar'] if 'metavar' in given else ''}`",
            f"{sentence(given['help'])}{link(name.replace('-', '_'))}",
        )
    for name, text in parser.settings:
        yield row(f"`{name}` (ini)", sentence(text))


def commands() -> Iterator[str]:
    """Yield a section for each command of ``multihost``."""
    parser, every = make_parser(new_plugin_manager().hook)
    helps = {
        each.dest.partition(" ")[0]: each.help
        for action in parser._actions  # noqa: SLF001 - argparse has no other way to read a parser
        for each in getattr(action, "_choices_actions", ())
    }
    for name, command in sorted(every.items()):
        if name not in helps:
            continue  # an older name of another one
        actions = [each for each in command._actions if each.dest != "help"]  # noqa: SLF001
        yield f"## multihost {name}"
        yield ""
        yield sentence(str(helps[name]))
        if actions:
            yield ""
            yield "| argument | meaning |"
            yield "|---|---|"
        for each in actions:
            if each.help == argparse.SUPPRESS:
                continue
            yield row(f"`{_usage(each)}`", _expanded(each))
        yield ""


def _usage(action: argparse.Action) -> str:
    flags = [each for each in action.option_strings if "_" not in each]
    value = action.metavar or action.dest
    value = " ".join(value) if isinstance(value, tuple) else value
    if action.choices is not None and not action.option_strings:
        return "|".join(map(str, action.choices))
    value = (
        value if action.option_strings or action.nargs not in ("?", "*", "...") else f"[{value}]"
    )
    shown = ", ".join(flags)
    return (
        f"{shown} {value if action.metavar else value.upper()}".strip()
        if action.nargs != 0
        else shown
    )


def _expanded(action: argparse.Action) -> str:
    return action.help or {"script": "a program", "COMMAND": "the command to watch"}.get(
        str(action.metavar or action.dest).lstrip("- "), "the command to run"
    )


def world() -> Iterator[str]:
    """Yield a row with an example for each member of `World`."""
    yield "| member | meaning | example |"
    yield "|---|---|---|"
    for name, member in vars(World).items():
        if name.startswith("_"):
            continue
        text = (member.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        call = "" if isinstance(member, property) else "()"
        yield row(f"`{name}{call}`", " ".join(text.split()), EXAMPLES[name])


def found() -> Iterator[str]:
    """Yield a row for each place that sweeps have found in a library."""
    table = tomllib.loads((DOCS / "found" / "found.toml").read_text(encoding="utf-8"))
    heads = "what happens", "what stays wrong", "what is reported", "what ends the wait"
    yield row("library", *heads, "reproducer")
    yield "|---|---|---|---|---|---|"
    for name, each in table.items():
        kind = "" if "replay" in each else " *"
        script = f"[{each['script']}](reproducers/{each['script']}.py)"
        happens = f'<a id="{name}"></a>{each["happens"]}{kind}'
        yield row(each["library"], happens, each["stays"], each["reported"], each["ends"], script)


def versions() -> Iterator[str]:
    """Yield the oldest versions that are supported, and those that the tests run on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    needs = [
        *project["project"]["dependencies"],
        *(each for extra in extras.values() for each in extra),
    ]
    pins = "\n".join(each for each in project["dependency-groups"]["test"] if isinstance(each, str))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    pythons = re.findall(r'python: \[(".*?")\]', workflow)[0].replace('"', "")
    older = re.findall(r'pytest: \[(".*?")\]', workflow)[0].replace('"', "")
    yield "| | oldest | what CI tests |"
    yield "|---|---|---|"
    yield row("Python", project["project"]["requires-python"].removeprefix(">="), pythons)
    for name in ("pytest", "torch", "jax", "pytest-timeout", "py-spy", "pystack", "ray[client]"):
        oldest = next(
            re.split(r"[;,]", each)[0].partition(">=")[2]
            for each in needs
            if each.partition(">=")[0] == name
        )
        tested = re.findall(rf"(?m)^{re.escape(name)}==([\w.]+)", pins)
        also = [f"{older}"] if name == "pytest" else []
        yield row(name.partition("[")[0], oldest, ", ".join([*also, *tested]) or "not pinned")


def hooks() -> Iterator[str]:
    """Yield what documents each hook of the core, then those of extensions."""
    for name in ["", *(each for each, _ in extension_plugins())]:
        home = f"extensions.{name.removeprefix('multihost_')}.hookspecs" if name else "hookspecs"
        try:
            module = importlib.import_module(f"pytest_multihost.{home}")
        except ModuleNotFoundError:
            continue  # an extension without hooks
        yield f"::: {module.__name__}"
        yield "    options:"
        yield "      members:"
        yield from (
            f"        - {each}" for each in vars(module) if each.startswith("pytest_multihost_")
        )
        yield "      show_root_heading: false"
        yield ""


def values() -> Iterator[str]:
    """Yield what documents each class that hooks get or return."""
    for name in hookspecs.__all__:
        if inspect.isclass(getattr(hookspecs, name)):
            yield f"::: pytest_multihost.hookspecs.{name}"
            yield ""


def shown_file(name: str) -> Iterator[str]:
    """Yield a file of the repository as a block of code."""
    kind = {".yml": "yaml", ".yaml": "yaml", ".ini": "ini", ".py": "python"}[Path(name).suffix]
    yield f"```{kind}"
    yield (ROOT / name).read_text(encoding="utf-8").rstrip("\n")
    yield "```"


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "found": found,
    "hooks": hooks,
    "options": options,
    "other options": other_options,
    "values": values,
    "versions": versions,
    "world": world,
}


def part(name: str) -> str:
    """Return a part of a page, by its name; ``file NAME`` is a file.

    Raises:
        KeyError: There is no such part.
    """
    kind, _, rest = name.partition(" ")
    lines = shown_file(rest) if kind == "file" else PARTS[name]()
    return "\n".join(lines).rstrip("\n") + "\n"


def made_anew(page: str) -> str:
    """Return a page whose parts are made anew."""
    return PART.sub(lambda each: f"{each[1]}{part(each['name'])}<!-- /made -->", page)


def main() -> None:
    """Make all parts of all pages, and the schemas of the JSON files."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (made := made_anew(text)) != text:
            path.write_text(made, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    schemas.write()


if __name__ == "__main__":
    main()
