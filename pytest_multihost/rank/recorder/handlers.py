"""Whether an exception that leaves a call fails the test, or something on the stack may handle it.

An exception goes from frame to frame. What each does about it is in the exception table of its code
(CPython's InternalDocs/exception_handling.md): the instructions that a `try` or a `with` covers.
"""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType

_OWN = f"{Path(__file__).parent}/"
_CALLS = {("python.py", "pytest_pyfunc_call"), ("fixtures.py", "call_fixture_func")}
"""Where pytest calls a test or a fixture; others of its functions, say `raises`, handle errors."""
_FIELDS = 4  # of an entry: first instruction, how many, the handler's, its depth of the stack
_covered: dict[tuple[CodeType, int], bool] = {}


def fails_test(frame: FrameType | None, runtime: str = "") -> bool:
    """Return whether an exception from the call that `frame` is in certainly fails the test.

    It does if it reaches pytest's call of the test, or of a fixture: no frame in between is in a
    `try` or a `with`, whatever these do with it. Not known in other threads, in coroutines and in
    programs that pytest does not call.

    Args:
        frame: The innermost frame.
        runtime: Directory of the runtime: its own functions pass on what they handle.
    """
    own = (_OWN, runtime) if runtime else (_OWN,)
    while frame is not None:
        code = frame.f_code
        directory, _, file = code.co_filename.rpartition("/")
        if directory.endswith("/_pytest") and (file, code.co_name) in _CALLS:
            return True
        if not code.co_filename.startswith(own):
            key = code, frame.f_lasti
            if key not in _covered:
                _covered[key] = _is_covered(*key)
            if _covered[key]:
                return False
        frame = frame.f_back
    return False


def _is_covered(code: CodeType, offset: int) -> bool:
    """Return whether a handler is there for an instruction, given by its offset in bytes.

    A number in the table has six bits in each byte, the highest first; bit 6 says that it goes on.
    Instructions are counted in units of two bytes.
    """
    numbers, number = list[int](), 0
    for byte in code.co_exceptiontable:
        number = number << 6 | byte & 63
        if not byte & 64:
            numbers.append(number)
            number = 0
    starts, counts = numbers[::_FIELDS], numbers[1::_FIELDS]
    return any(
        start <= offset // 2 < start + count for start, count in zip(starts, counts, strict=True)
    )
