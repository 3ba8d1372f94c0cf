"""Reads source: the use of the result of a call, and whether functions depend on hashes."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


Use = Literal["asserted", "returned", "other"]


@lru_cache(maxsize=4096)
def use_of_line(file: str, line: int) -> Use:
    """Return the use of a line's value in its function.

    It is asserted if the line's statement is an assertion, or assigns names that an assertion of
    the function uses and no `if`, `while` or conditional expression does. It is returned if the
    statement returns it, or assigns names that the function returns.
    """
    tree = _tree(file)
    if tree is None:
        return "other"
    function, statement = _around(tree, line)
    if isinstance(statement, ast.Assert) or _calls_an_assertion(statement):
        return "asserted"
    if isinstance(statement, ast.Return):
        return "returned"
    names = set(_assigned(statement)) if statement is not None else set()
    if not names:
        return "other"
    names = _followed(function, names)
    nodes = list(ast.walk(function))
    if _uses([e.test for e in nodes if isinstance(e, ast.If | ast.While | ast.IfExp)], names):
        return "other"
    if _uses([each.test for each in nodes if isinstance(each, ast.Assert)], names):
        return "asserted"
    returned = [e.value for e in nodes if isinstance(e, ast.Return) and e.value is not None]
    return "returned" if _uses(returned, names) else "other"


@lru_cache(maxsize=4096)
def is_asked_whether_empty(file: str, line: int) -> bool:
    """Return whether code asks if the value that a line assigns is empty.

    The line's function asks, or one of the same file to which it passes the value.
    """
    tree = _tree(file)
    if tree is None:
        return False
    function, statement = _around(tree, line)
    names = set(_assigned(statement)) if statement is not None else set()
    return bool(names) and (
        _asks(function, names)
        or any(_asks(asked, {name}) for asked, name in _passed(tree, function, names))
    )


def _passed(
    tree: ast.Module, function: Function, names: set[str]
) -> Iterator[tuple[Function, str]]:
    """Yield the functions to which a function passes names, and their parameters for these."""
    defined = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        for each in (each for each in defined if each.name == called):
            pairs = zip(call.args, _parameters(each, call), strict=False)
            yield from (
                (each, parameter)
                for given, parameter in pairs
                if isinstance(given, ast.Name) and given.id in names
            )


def _parameters(function: ast.FunctionDef, call: ast.Call) -> list[str]:
    """Return the parameters for the positional arguments of a call; `self` only of a function."""
    found = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    is_of_method = isinstance(call.func, ast.Attribute) and found[:1] == ["self"]
    return found[1:] if is_of_method else found


def _asks(function: Function, names: set[str]) -> bool:
    """Return whether a branch or a loop of a function depends on whether a name is empty."""
    tests = [e.test for e in ast.walk(function) if isinstance(e, ast.If | ast.While | ast.IfExp)]
    for test in tests:
        asked = test.operand if isinstance(test, ast.UnaryOp) else test
        if isinstance(asked, ast.Compare) and _is_of_least(asked.comparators[0]):
            asked = asked.left
        if isinstance(asked, ast.Call) and getattr(asked.func, "id", "") == "len" and asked.args:
            asked = asked.args[0]
        if isinstance(asked, ast.Name) and asked.id in names:
            return True
    return False


def _is_of_least(compared: ast.expr) -> bool:
    """Return whether a length is compared with 0 or 1."""
    return isinstance(compared, ast.Constant) and compared.value in (0, 1)


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _around(tree: ast.Module, line: int) -> tuple[Function, ast.stmt | None]:
    """Return the innermost function and the innermost statement at a line."""
    function: Function = tree
    statement: ast.stmt | None = None
    for each in _at_line(tree, line):  # outer nodes come before inner ones
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            function = each
        if isinstance(each, ast.stmt):
            statement = each
    return function, statement


def _at_line(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the nodes below another that are at a line; visit only these, of a whole module."""
    for each in ast.iter_child_nodes(node):
        first, last = getattr(each, "lineno", line), getattr(each, "end_lineno", line)
        if first <= line <= last:
            yield each
            yield from _at_line(each, line)


def _calls_an_assertion(statement: ast.stmt | None) -> bool:
    """Return whether a statement calls an assertion, such as `self.assertTrue`."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    return str(name).startswith("assert")


def _assigned(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns, or that its `with` binds."""
    if isinstance(statement, ast.With | ast.AsyncWith):
        bound = [each.optional_vars for each in statement.items]
        return [each.id for each in bound if isinstance(each, ast.Name)]
    if hasattr(statement, "body"):  # its first line assigns nothing that later lines may assert
        return []
    return [
        each.id
        for each in ast.walk(statement)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]


def _followed(function: Function, names: set[str]) -> set[str]:
    """Return names, and the names that the function assigns from them."""
    assignments = [
        each for each in ast.walk(function) if isinstance(each, ast.Assign | ast.AnnAssign)
    ]
    for _ in range(3):
        for each in assignments:
            if each.value is not None and _uses([each.value], names):
                names = names | set(_assigned(each))
    return names


def _uses(trees: list[ast.expr], names: set[str]) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id in names for tree in trees for each in ast.walk(tree)
    )


_OF_HASHES = frozenset({"set", "frozenset", "hash"})
_VIEWS = frozenset({"keys", "items"})


def may_depend_on_hashes(file: str, functions: Iterable[str]) -> bool:
    """Return whether functions of a file may depend on hashes of strings, as the order of a set.

    A set that is only asked whether it has an element does not count. The definitions that a
    function names belong to it, and so do those with the name of its parameter, such as fixtures.
    Decorators do not. A file that cannot be read may depend on anything.
    """
    tree = _tree(file)
    if tree is None or not tree.body:
        return True
    return any(map(_makes_sets, _used_by(tree, functions)))


def _used_by(tree: ast.Module, names: Iterable[str]) -> Iterator[ast.AST]:
    """Yield the parts of the definitions and assignments of a module that functions use."""
    named: dict[str, list[ast.stmt]] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            named.setdefault(each.name, []).append(each)
    for each in tree.body:
        for name in _assigned(each):
            named.setdefault(name, []).append(each)
    left, done = list(names), set[str]()
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        for found in named.get(name, ()):
            for each in ast.iter_child_nodes(found):
                if each not in getattr(found, "decorator_list", ()):
                    yield each
                    left += filter(None, map(_name_of, ast.walk(each)))


def _name_of(node: ast.AST) -> str | None:
    """Return the name that a node uses, or the parameter's name; None if it has none."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return name
    return None


def _makes_sets(tree: ast.AST) -> bool:
    nodes = list(ast.walk(tree))
    compared = (each.comparators for each in nodes if isinstance(each, ast.Compare))
    asked = {id(each) for found in compared for each in found}
    return any(_is_of_hashes(each) for each in nodes if id(each) not in asked)


def _is_of_hashes(node: ast.AST) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp):  # views of keys make sets
        sides = (node.left, node.right)
        calls = [each.func for each in sides if isinstance(each, ast.Call)]
        return any(isinstance(each, ast.Attribute) and each.attr in _VIEWS for each in calls)
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in _OF_HASHES
