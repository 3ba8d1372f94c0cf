"""Gives advice for a test id that was not found because of its part for the size or the backend.

An id has such a part only if the test runs with several sizes or backends: test_save[4] exists with
--ranks 2,4, and neither without the option nor with --ranks 4.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping

from pytest_multihost.core.pytest_plugin.marks import Axes

_ID = re.compile(r"(?P<test>.*::[^\[]*)\[(?P<params>.*)\]")
_RULE = "An id ends in a number of ranks or a backend only if the test runs with several of them."


def hint_of_id(args: Iterable[str], tests: Mapping[str, Axes], backends: Collection[str]) -> str:
    """Return advice for the first of some ids that has a wrong size or backend; empty if none has.

    Args:
        args: pytest's arguments.
        tests: The collected multihost tests, by their ids without parameters.
    """
    for arg in args:
        found = _ID.fullmatch(arg)
        names = found["test"].partition("::")[2] if found is not None else ""
        axes = next(
            (each for test, each in tests.items() if test.partition("::")[2] == names), None
        )
        if found is None or axes is None:
            continue
        *own, last = found["params"].split("-")
        backend = last if last in backends else None
        if backend is None:
            own.append(last)
        size = own.pop() if own and own[-1].isdecimal() else None
        if size is not None or backend is not None:
            return _advice(found["test"], own, axes, size=size, backend=backend)
    return ""


def _advice(
    test: str, params: list[str], axes: Axes, *, size: str | None, backend: str | None
) -> str:
    """Return the rule, and the command that runs the test or the reason why none does.

    Args:
        params: The parts of the id for the test's own parameters.
    """
    options: list[str] = []
    words = ""
    asked = (
        (size, [str(each) for each in axes.ranks], axes.is_of_any_size, "--ranks", "ranks"),
        (
            backend,
            list(axes.backends),
            axes.is_of_any_backend,
            "--multihost-backend",
            "backend",
        ),
    )
    for value, own, is_any, option, key in asked:
        if len(own) > 1 and value in own:
            params = [*params, value]
        elif value is not None and is_any:
            options += [option, value]
        elif value not in own and (value is not None or len(own) > 1):
            return f"{_RULE} This test runs only with {key} {' and '.join(own)}."
        if value is not None:
            words += f" with {value} ranks" if key == "ranks" else f" over {value}"
    whole = f"{test}[{'-'.join(params)}]" if params else test
    return f"{_RULE} To run the test{words}: {shlex.join(['pytest', whole, *options])}"
