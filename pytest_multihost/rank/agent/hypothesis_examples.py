"""Hypothesis in a rank: every rank draws the same examples, and the first failure is the last.

A rank that shrinks or replays alone runs its test body when the others do not, and each
collective in it would meet somebody else's. So a failing example is reported as it is, at once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Tell = Callable[[BaseException], object]


def agree_on_examples(test: Any, seed: int, tell: Tell) -> None:  # noqa: ANN401 - any callable
    """Make a hypothesis test fit for a world; leave any other alone.

    No deadline: a collective takes as long as the slowest rank. No database: ranks would read and
    write it at different moments. No shrinking. The same seed for all ranks.

    Args:
        test: The test function or bound method.
        seed: The world's.
        tell: Reports the exception that an example raised, and does not return.
    """
    function = getattr(test, "__func__", test)
    if not getattr(function, "is_hypothesis_test", False):
        return
    hypothesis: Any = sys.modules["hypothesis"]
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    function._hypothesis_internal_use_settings = hypothesis.settings(  # noqa: SLF001
        own or hypothesis.settings.default,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    function._hypothesis_internal_use_seed = seed  # noqa: SLF001
    handle = function.hypothesis
    handle.inner_test = _first_failure_ends(handle.inner_test, tell)


def _first_failure_ends(body: Callable[..., Any], tell: Tell) -> Callable[..., Any]:
    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a test's own arguments
        try:
            return body(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("hypothesis."):  # assume() and its like
                raise
            error.add_note(f"Falsifying example: {_shown(args, kwargs)}")
            tell(error)
            raise

    return run


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return ", ".join(parts)
