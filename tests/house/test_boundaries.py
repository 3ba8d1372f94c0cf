"""What others made, chose or can reach is read, checked and locked in one place for each kind."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from sources import ROOM, trees

READER = "core/model/foreign_bytes.py"

UNBOUNDED: Mapping[str, Mapping[str, str]] = {
    "zipfile.ZipFile": {
        READER: "here the number of files is checked first",
        "extensions/engines/attach/archives.py": "it only writes an archive",
    },
    "ast.literal_eval": {
        READER: "here the length is checked first",
        "extensions/faults/fault_text.py": "an option that the user typed",
    },
    "os.pread": {
        READER: "here the size is checked first",
        "core/watch/kernel/elf.py": "it imports nothing of ours, and has limits of its own",
        "core/slots/page.py": "one record",
        "core/slots/history.py": "one ring",
        "core/slots/rank_log.py": "parts of fixed sizes",
    },
    "mmap.mmap": {
        "core/slots/page.py": "a file that the rank itself has made",
        "extensions/faults/io_shim/__init__.py": "a page of a fixed size, which is checked",
        "extensions/clock/page.py": "a page of a fixed size, which is checked",
    },
    "pickle.loads": {
        "core/pytest_plugin/calls.py": "of ranks that were forked from this process",
        "core/rank/world.py": "between ranks, which are code of the user's",
        "core/torch_private.py": "of the rank's own torch",
        "extensions/simulated/jax_processes.py": "between ranks",
    },
    "marshal.loads": {"extensions/simulated/link.py": "between ranks, in a private folder"},
}
"""Calls that take memory as their input says, and the modules that may make them, with a reason."""


@cache
def calls(tree: ast.AST) -> tuple[tuple[str, ast.Call], ...]:
    """Return each call of a function of a module, with the name of both."""
    return tuple(
        (ast.unparse(node.func), node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )


@pytest.mark.parametrize("name", UNBOUNDED)
def test_only_one_reader_unpacks_what_somebody_else_made(name: str) -> None:
    """A size, a count or a depth in foreign bytes has a limit, because one place checks it."""
    found = {path for path, tree in trees().items() for call, _ in calls(tree) if call == name}
    assert found == set(UNBOUNDED[name])


def test_no_module_imports_a_parser_under_another_name() -> None:
    """The rule above finds calls by the names of their modules."""
    modules = {name.partition(".")[0] for name in UNBOUNDED} - {"os"}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in modules, path
            elif isinstance(node, ast.Import):
                renamed = {each.name for each in node.names if each.asname}
                assert not renamed & modules, path


def test_the_reader_turns_a_lack_of_memory_into_its_error() -> None:
    """A size that fits into no memory is one of the ways in which bytes cannot be read."""
    for path in (READER, "core/watch/kernel/elf.py"):
        names = {node.id for node in ast.walk(trees()[path]) if isinstance(node, ast.Name)}
        assert "MemoryError" in names, path


def test_what_a_node_sends_is_parsed_where_its_error_names_the_node() -> None:
    """`Peer.reading` says which node sent what cannot be read."""
    for path in ("extensions/engines/attach/world.py", "extensions/live/joined.py"):
        tree = trees()[path]
        inside = {
            id(node)
            for each in ast.walk(tree)
            if isinstance(each, ast.With)
            and any(".reading(" in ast.unparse(item) for item in each.items)
            for node in ast.walk(each)
        }
        readers = {"write_files", "from_json"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in readers:
                assert id(node) in inside, f"{path}:{node.lineno}"


def test_only_one_module_locks_files() -> None:
    """There each wait for a lock has an end, since whoever may read a file may lock it."""
    locking = {"fcntl.flock", "fcntl.lockf"}
    found = {path for path, tree in trees().items() for call, _ in calls(tree) if call in locking}
    assert found == {"core/locks.py"}
    waits = [node for call, node in calls(trees()["core/locks.py"]) if call in locking]
    assert all("LOCK_NB" in ast.unparse(node) for node in waits)


def test_who_owns_what_is_asked_in_one_place() -> None:
    """A file that is trusted is checked with all folders above it, by `core.trust`."""
    asking = {"core/trust.py": 0, "core/preload.py": 1, "core/backends/jax.py": 1}
    for path, count in asking.items():
        called = [call for call, _ in _names(trees()[path])]
        found = called.count("why_untrusted") + called.count("require_own_listener")
        assert found == count, path
    assert "_is_stray" in [call for call, _ in _names(trees()["core/launch/reaper.py"])]


def test_a_port_that_a_rank_connects_to_is_checked() -> None:
    """Each backend that has ranks meet at a reserved port asks first whose listener is there."""
    backends = {path: ast.unparse(tree) for path, tree in trees().items() if "backends" in path}
    users = {path for path, text in backends.items() if "spec.ports[" in text}
    assert users
    for path in users:
        assert "require_own_listener(port)" in backends[path], path


def test_a_process_is_signalled_by_id_only_where_it_is_a_child() -> None:
    """Another process may have the id by now; a stray is signalled by a descriptor."""
    tree = trees()["core/launch/reaper.py"]
    strays = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "kill_strays"
    )
    assert "os.kill" not in ast.unparse(strays)


def _names(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def test_a_local_service_asks_for_the_key_of_the_run() -> None:
    """Every user of the machine, and every page in a browser, reaches a port of the loopback."""
    serving = {
        path
        for path, tree in trees().items()
        for call, _ in (*calls(tree), *_names(tree))
        if call in {"make_server", "http.server.HTTPServer", "socketserver.TCPServer"}
    }
    assert serving == {"extensions/object_store/server.py"}
    source = ast.unparse(trees()["extensions/object_store/server.py"])
    assert "compare_digest" in source
    assert "_OF_BROWSERS" in source


def test_actions_are_pinned_and_the_build_of_a_release_has_one_index() -> None:
    """A tag can be moved, a cache filled by another run, and a second index asked first."""
    used = {
        path.relative_to(ROOM.parent).as_posix(): re.findall(
            r"^[ -]*uses:(.+)$", text, re.MULTILINE
        )
        for path, text in published()
        if re.search(r"^[ -]*uses:", text, re.MULTILINE)
    }
    assert len([path for path in used if path.startswith("conftest_examples/")]) == 2
    for path, actions in used.items():
        for each in actions:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each.strip()), path
    release = (ROOM.parent / ".github/workflows/release.yml").read_text("utf-8")
    assert "cache: pip" not in release
    assert "PIP_" not in release
    assert "persist-credentials: false" in release


def test_nothing_that_users_copy_has_a_secret() -> None:
    """A secret that everybody can read keeps nobody out: it is made for each run, or asked for."""
    given = re.compile(r"SECRET\b\"?\s*[:=][ \"']*([^\s|`,)}\]]+)")
    made = re.compile(r"\$\(|\$\{MULTIHOST_SECRET:\?|\.\.\.|\{name|\$\{\{")
    found = [(path.name, each) for path, text in published() for each in given.findall(text)]
    assert found
    assert [each for each in found if not made.match(each[1])] == []


def published() -> Iterator[tuple[Path, str]]:
    """Yield the files that users read and copy, and our own workflows, with their texts."""
    kinds = {".md", ".yml", ".yaml", ".sh", ".toml", ".ini", ".txt", ".py", ""}
    yield ROOM.parent / "README.md", (ROOM.parent / "README.md").read_text("utf-8")
    for folder in (".github", "conftest_examples", "docker", "docs"):
        for path in sorted((ROOM.parent / folder).rglob("*")):
            if path.suffix in kinds and path.is_file() and ".pytest_" not in str(path):
                yield path, path.read_text("utf-8")


def test_roots_are_made_of_signed_packages() -> None:
    """Without a keyring, debootstrap goes on with what anybody on the way has sent."""
    scripts = [
        e for e in (ROOM.parent / "docker").rglob("*.sh") if "debootstrap --" in e.read_text()
    ]
    assert len(scripts) == 2
    assert all("debootstrap --force-check-gpg" in each.read_text() for each in scripts)


def test_the_guide_says_whom_to_trust_and_where_to_report() -> None:
    """A user with a finding, and one of a shared machine, find what they look for."""
    policy = (ROOM.parent / "SECURITY.md").read_text("utf-8")
    assert "Report a vulnerability" in policy
    assert "Supported versions" in policy
    guide = (ROOM.parent / "docs/security.md").read_text("utf-8")
    for part in ("As root", "On a machine with other users", "On a network", "no authentication"):
        assert part in guide


def test_the_faces_of_extensions_import_no_pytest() -> None:
    """`multihost run` works where pytest is not installed."""
    code = (
        "import sys; from pytest_multihost.core.registry import new_plugin_manager;"
        " new_plugin_manager(); assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
