"""Private parts of others have one home each; what is unknown there counts as "may be"."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType

import pytest
from sources import MODULES, name_of, text_of, trees

from pytest_multihost.core import cpython_private, jax_private, torch_private

HOMES = {f"{name}_private.py" for name in ("cpython", "jax", "pytest", "torch")}
ELSEWHERE = {
    # The table of collectives has all names of each.
    "core/model/collectives.py": {
        "_allgather_base",
        "_reduce_scatter_base",
        "jax/_src/distributed.py",
    },
    # Harnesses of other suites are recognised by these names: a class without them is not adopted.
    "extensions/adopt/torch_classes.py": {
        *("_event_listener", "_get_local_tensor_mode", "_join_processes", "_spawn_processes"),
        *("_spawn_threads", "_start_processes", "_worker_loop", "_worker_run_main_wait"),
    },
    "extensions/adopt/deepspeed_classes.py": {
        *("_get_fixture_kwargs", "_launch_procs", "_pool_cache"),
    },
    # Functions that only wait for ranks, and that a worker of a pool runs: looked for on stacks.
    "extensions/live/parents.py": {
        *("_invoke_run", "_join_processes", "_launch_daemonic_procs", "_launch_non_daemonic_procs"),
    },
    "extensions/live/watch/ending.py": {
        *("_process_worker",),
    },
    # What other tools keep for themselves: no module of CPython, jax, torch or pytest.
    "core/rank/neighbours.py": {
        *("_choose_filename", "_data", "_suffix"),
        *("_hypothesis_internal_use_seed", "_hypothesis_internal_use_settings"),
    },
    # Names of files that mark a checkpoint as complete.
    "extensions/sweep/saved/damage.py": {"_CHECKPOINT_METADATA", "_COMMITTED", "_SUCCESS"},
    # The folder and package of pytest, and the name of a plugin: looked for, not looked into.
    "intercept/targets.py": {"_pytest"},
    "extensions/faults/points.py": {"_pytest"},
    "core/pytest_plugin/launchers.py": {"_cov"},
    # pytest says that its items have it: the class inherits.
    "core/pytest_plugin/item.py": {"_report_sections"},
    # Types of the standard library that only type checkers know.
    "core/launch/interpreter.py": {"_typeshed"},
    "core/launch/job_spec.py": {"_typeshed"},
    "core/model/json_values.py": {"_typeshed"},
    "core/standard_streams.py": {"_typeshed"},
    "extensions/faults/io_shim/__init__.py": {"_NamedFuncPointer"},
    # The end of a variable's name.
    "extensions/engines/attach/rendezvous.py": {"_FILE"},
    "core/watch/kernel/elf.py": {"_NamedFuncPointer"},
    # argparse has no public name for what `add_subparsers` returns.
    "hookspecs.py": {"_SubParsersAction"},
}
PUBLIC = {"_exit"}  # of `os`
PARTS = {
    *("_anysource", "_ctxt_switches", "_recorded_"),  # of longer names
    *("_multihost_backend", "_multihost_ranks"),  # of parameters that we add to tests
}
PRIVATE = re.compile(r"_(?!_)[A-Za-z]\w*")
INSIDE = re.compile(r"(?:jax|jaxlib|torch)\b.*[./]_(?!_)\w")
"""A path or the name of a module, with a private part."""


@cache
def guests() -> Mapping[str, ast.Module]:
    """Return the modules that are no home of private parts, by their names."""
    return {
        name: tree
        for name, tree in trees().items()
        if name.rpartition("/")[2] not in HOMES and not name.startswith("fixes/")
    }


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of others in a module: attributes, imports, and texts."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        match node:
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                yield name
            case ast.Constant(value=str(text)) if PRIVATE.fullmatch(text) or INSIDE.match(text):
                yield text
            case ast.ImportFrom(module=str(module)):
                yield from [module] if INSIDE.match(module) or PRIVATE.match(module) else []


def test_private_parts_of_others_are_named_in_their_homes_alone() -> None:
    """If this fails: move the name to `cpython_private`, `jax_private` or `torch_private`.

    There it stands beside what happens in a version that lacks it.
    """
    ours = {name for tree in guests().values() for name in defined(tree)}
    allowed = ours | PUBLIC | PARTS
    found = {
        module: sorted(set(named(tree)) - allowed - ELSEWHERE.get(module, set()))
        for module, tree in guests().items()
    }
    assert {module: names for module, names in found.items() if names} == {}


def test_no_access_to_a_private_name_is_excused_elsewhere() -> None:
    """The linter finds them; a private name that we have as well escapes the test above."""
    excused = {
        name_of(path) for path in MODULES if "SLF001" in text_of(path) and "fixes" not in path.parts
    }
    assert excused == {"core/rank/neighbours.py", "hookspecs.py"}


def test_the_exceptions_are_needed() -> None:
    """What is not there any more is excused no longer."""
    for module, names in ELSEWHERE.items():
        assert names <= set(named(guests()[module])), module


# CPython


def test_this_interpreters_exception_tables_can_be_read() -> None:
    """Else every call would count as one whose exception may be handled."""
    assert cpython_private.reads_tables()


@pytest.mark.parametrize("table", [b"", b"\x01\x02", b"\x01\x02\x03", b"\x00\x04\x03"])
def test_a_table_of_another_form_is_noticed(table: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything follows from it: cut off, without a handler there, over too many calls."""

    class Code:
        co_exceptiontable = table
        co_code = bytes(8)

        def co_lines(self) -> Iterator[tuple[int, int, int]]:
            """Yield where lines begin and end."""
            yield from ((0, 2, 1), (2, 4, 3))

    def compiled(*_: object) -> Code:
        return Code()

    cpython_private.reads_tables.cache_clear()
    monkeypatch.setattr(cpython_private, "compile", compiled, raising=False)
    assert not cpython_private.reads_tables()
    monkeypatch.undo()
    cpython_private.reads_tables.cache_clear()


def test_tasks_are_found_where_no_list_of_them_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the garbage collector: a task that is not known of may be the one that is waited for."""

    class Task:
        def done(self) -> bool:
            return False

    tasks = ModuleType("asyncio.tasks")
    tasks.Task = Task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncio.tasks", tasks)
    task = Task()
    task.itself = [task]  # type: ignore[attr-defined] # so that it is tracked
    assert task in cpython_private.unfinished_tasks()


def test_threads_are_waited_for_without_a_private_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it is called."""
    monkeypatch.delattr(threading, "_shutdown")
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait)
    thread.start()
    timer = threading.Timer(0.05, goes_on.set)
    timer.start()
    cpython_private.wait_for_threads()
    assert not thread.is_alive()


# jax and torch: nothing of them is imported here


def test_a_jax_that_is_built_otherwise_may_have_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with one must not be forked, so nobody takes it that there is none."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "jax"]:
        monkeypatch.delitem(sys.modules, name)
    assert not jax_private.may_have_backend()
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert jax_private.may_have_backend()
    bridge = ModuleType("jax._src.xla_bridge")
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    assert jax_private.may_have_backend()
    bridge.backends_are_initialized = lambda: False  # type: ignore[attr-defined]
    assert not jax_private.may_have_backend()


def test_a_program_of_another_jax_may_span_processes() -> None:
    """Where launches must take turns it is waited for."""
    assert jax_private.may_span_processes(object())


class HashStore:
    """A store as torch has it."""


class PrefixStore:
    """A store of another version, which does not say what it is made of."""


def test_a_store_of_unknown_making_may_be_written_by_others() -> None:
    """So a wait for it is recorded."""
    assert torch_private.is_of_this_process(HashStore())
    assert not torch_private.is_of_this_process(PrefixStore())
