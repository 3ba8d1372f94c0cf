"""Writes the script that shows a weakness: a few ranks, a shim for the fault, and the test."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError, shown
from pytest_multihost.core.model.printable import printable
from pytest_multihost.extensions.sweep.reproduce.find import FoundWeakness
from pytest_multihost.extensions.sweep.reproduce.shims import Shim, shim_of
from pytest_multihost.extensions.sweep.words import disturbance_text, waits_text

LAUNCHED = ("gloo", "nccl")
"""The backends whose scripts torchrun starts; others start their processes themselves."""

MAX_LINES = 40
"""The maximum of lines of a script; a longer one is not read in an issue."""

SHOW_AFTER_S = 20
"""After how many seconds the script prints where its ranks are."""

_WIDTH = 100

_FIXTURES = ("world", "tmp_path", "shared_tmp_path")
_WORLD = ("rank", "size", "is_primary", "backend", "barrier", "sync_point", "same")
"""The fixtures, and the attributes of `world`, that a script has a replacement for."""


@dataclass(frozen=True, slots=True)
class TestFunction:
    """A test function, as its file shows it.

    Attributes:
        folder: The folder from which its module is imported.
        call: The expression that calls it, up to the bracket: "test_a.test_save".
        of_world: The attributes of `world` that its file uses.
    """

    __test__ = False

    folder: str
    module: str
    call: str
    fixtures: tuple[str, ...]
    of_world: tuple[str, ...] = _WORLD


def read_test(nodeid: str, path: Path) -> TestFunction:
    """Read a test function from its file.

    Args:
        path: The file, relative to the working directory; see `own_file.file_of_test`.

    Raises:
        MultihostError: A script cannot call it, since it needs pytest.
        OSError: The file cannot be read.
    """
    _, *names = nodeid.split("::")
    if not names:
        raise _refused(f"{shown(nodeid)} names no function")
    names[-1] = names[-1].partition("[")[0]
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (ValueError, SyntaxError) as error:
        raise _refused(f"{path} is not a Python file: {error}") from error
    function = _definition(tree.body, names)
    if function is None or len(names) > 2:  # noqa: PLR2004 - a class and a method
        raise _refused(f"{path} has no function {'.'.join(names)} that can be called by its name")
    fixtures = tuple(each.arg for each in function.args.args if each.arg != "self")
    if lacking := [each for each in fixtures if each not in _FIXTURES]:
        raise _refused(f"it takes the fixture {lacking[0]!r}, which only pytest can set up")
    used = {
        each.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "world"
    }
    if unknown := sorted(used - set(_WORLD)):
        raise _refused(f"it uses world.{unknown[0]}, which only the plugin has")
    folder, module = _import_name(path)
    owner = f"{names[0]}()." if len(names) > 1 else ""
    call = f"{module}.{owner}{names[-1]}"
    return TestFunction(folder, module, call, fixtures, tuple(sorted(used)))


def _refused(why: str) -> MultihostError:
    return MultihostError(
        "a script cannot call this test without pytest",
        seen=f"{why[:1].upper()}{why[1:]}.",
        remedy="Move what it tests into a function of its own, and sweep a test that calls it.",
    )


def _definition(body: Sequence[ast.stmt], names: Sequence[str]) -> ast.FunctionDef | None:
    for each in body:
        if isinstance(each, ast.ClassDef) and len(names) > 1 and each.name == names[0]:
            return _definition(each.body, names[1:])
        if isinstance(each, ast.FunctionDef) and names == [each.name]:
            return each
    return None


def _import_name(path: Path) -> tuple[str, str]:
    """Return the folder to import a file from, and its module's name, as pytest does."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return str(folder), ".".join(parts)


def make_script(found: FoundWeakness, test: TestFunction, name: str) -> str:
    """Return the script.

    Raises:
        MultihostError: A short script cannot show the weakness.
    """
    run, sweep = found.weakness.witness, found.sweep
    shim = shim_of(run.disturbance.fault, sweep.backend)
    rank = run.disturbance.fault.ranks[0]
    title = f"{_plain(disturbance_text(run.disturbance))}: {_plain(waits_text(run))}."
    title = f"{title[:1].upper()}{title[1:]}"
    is_launched = sweep.backend in LAUNCHED
    command = f"python {name}"
    if is_launched:
        command = f"torchrun --nproc-per-node {sweep.world_size} {name}"
    lines = [
        *textwrap.wrap(f'"""{title} Run: {command}"""', _WIDTH, break_long_words=False),
        *_imports(shim, test, sweep.backend),
        *(shim.lines if shim.is_for_all else ()),
        *([] if is_launched else _own_launcher(sweep.world_size, sweep.backend)),
        'rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])',
        "faulthandler.register(signal.SIGTERM, chain=True)  # prints where this rank is",
        f"faulthandler.dump_traceback_later({SHOW_AFTER_S})",
        f"sys.path.insert(0, {test.folder!r})",
        *([f"import {shim.own}"] if shim.own else ()),
        *(() if shim.is_for_all else _on_rank(rank, shim.lines)),
        f"import {test.module}",
        *_begin(sweep.backend),
        *_fixtures(test, sweep.backend),
        *shim.before_test,
        f"{test.call}({', '.join(f'{each}={each}' for each in test.fixtures)})",
    ]
    if len(lines) > MAX_LINES:
        raise MultihostError(
            "a short script cannot show this weakness",
            seen=f"Its fault takes a script of {len(lines)} lines, and {MAX_LINES} is the maximum.",
        )
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return printable(text).replace("\\", "/").replace('"', "'")


def _imports(shim: Shim, test: TestFunction, backend: str) -> Iterator[str]:
    own = {"faulthandler", "os", "signal", "sys", "tempfile", "pathlib", "types"}
    own |= {"jax"} if backend == "jax" else set()
    own |= {"subprocess"} if backend not in LAUNCHED else set()
    names = {each for each in (*own, *shim.imports) if "._" not in each}  # they come with torch
    yield f"import {', '.join(sorted(each for each in names if '.' not in each))}"
    yield from (f"import {each}" for each in sorted(names) if "." in each)
    if backend in LAUNCHED and "torch.distributed" not in names:
        yield "import torch.distributed"
    if backend == "jax" and "barrier" in test.of_world:
        yield "from jax.experimental import multihost_utils"


def _own_launcher(size: int, backend: str) -> list[str]:
    more = ", 'JAX_PLATFORMS': 'cpu'" if backend == "jax" else ""
    return [
        'if "RANK" not in os.environ:  # the parent starts the ranks',
        f"    ranks = [{{'RANK': f'{{e}}', 'WORLD_SIZE': '{size}'{more}}} for e in range({size})]",
        "    command = [sys.executable, *sys.argv]",
        "    jobs = [subprocess.Popen(command, env={**os.environ, **each}) for each in ranks]",
        "    sys.exit(max(each.wait() for each in jobs))",
    ]


def _on_rank(rank: int | str, lines: Sequence[str]) -> Iterator[str]:
    """Yield lines that run on one rank; `global` in a function needs no indentation of its own."""
    yield f"if rank == {rank}:"
    yield from (f"    {each}" for each in lines)


def _begin(backend: str) -> list[str]:
    if backend == "jax":
        address = 'f"localhost:{20000 + os.getppid() % 10000}"'
        return [f"jax.distributed.initialize({address}, size, rank)"]
    if backend in LAUNCHED:
        return [f'torch.distributed.init_process_group("{backend}")']
    return []


def _fixtures(test: TestFunction, backend: str) -> Iterator[str]:
    if {"tmp_path", "shared_tmp_path"} & {*test.fixtures}:
        yield 'base = pathlib.Path(tempfile.gettempdir(), f"reproduce-{os.getppid()}")'
        own = "base.lstat().st_uid == os.getuid()"  # else another user has made it before
        yield f"base.mkdir(0o700, exist_ok=True) or {own} or sys.exit(f'{{base}} is not yours')"
    for name, folder in (("shared_tmp_path", "shared"), ("tmp_path", "rank-{rank}")):
        if name in test.fixtures:
            yield f'{name} = base / f"{folder}"' if "{" in folder else f'{name} = base / "{folder}"'
            yield f"{name}.mkdir(exist_ok=True)"
    if "world" not in test.fixtures:
        return
    barrier = {
        "gloo": "lambda *_: torch.distributed.barrier()",
        "jax": "lambda name='world': multihost_utils.sync_global_devices(name)",
    }.get(backend, "lambda *_: None")
    values = {
        "rank": "rank",
        "size": "size",
        "is_primary": "rank == 0",
        "backend": repr(backend),
        "barrier": barrier,
        "sync_point": "lambda *_: None",
        "same": 'lambda name, value: print(f"rank {rank}: {name} = {value!r}", flush=True)',
    }
    text = ", ".join(f"{each}={values[each]}" for each in test.of_world)
    yield from textwrap.wrap(
        f"world = types.SimpleNamespace({text})", _WIDTH, subsequent_indent="    "
    )


def script_name(nodeid: str) -> str:
    """Return the name of the script for a test."""
    name = nodeid.rpartition("::")[2].partition("[")[0]
    return f"reproduce_{re.sub('[^A-Za-z0-9_]', '_', name)}.py"
