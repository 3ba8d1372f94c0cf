"""Writes the lines of Python that disturb one rank of a script as a fault disturbs it in a sweep.

The lines replace functions of `os`, `torch.distributed` and so on, before the test is imported.
They know less than the plugin: where calls on a file count, they count calls of these functions.
The script is run before it is written, so a shim that does not fit is never shown.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.fault import (
    FIELD_ERRORS,
    OTHERS_HASH_SEED,
    START,
    Fault,
    Point,
    hash_seed_of,
)
from pytest_multihost.core.torch_private import ARCHIVE_WRITER
from pytest_multihost.extensions.sweep.own_kinds import own_kinds
from pytest_multihost.intercept.clocks import CLOCKS

_HOLD_S = 5
"""How long a late rank sleeps: others wait for it well before that."""

_OPENS = ("builtins.open", "io.open")

_FUNCTIONS: Mapping[str, Sequence[str]] = {
    "open": (*_OPENS, "os.open", ARCHIVE_WRITER),
    "read": _OPENS,
    "write": (*_OPENS, ARCHIVE_WRITER),
    "fsync": ("os.fsync", "os.fdatasync"),
    "stat": ("os.stat", "os.lstat", "os.access"),
    "rename": ("os.rename", "os.replace"),
    "link": ("os.link", "os.symlink"),
    "unlink": ("os.unlink", "os.remove"),
    "mkdir": ("os.mkdir",),
    "rmdir": ("os.rmdir",),
    "listdir": ("os.listdir", "os.scandir"),
}
"""The functions by which programs make a call on a file."""

_BROKEN: Mapping[tuple[str, str], str] = {
    ("write", "ENOSPC"): "/dev/full",
    ("read", "EIO"): "/proc/self/mem",
}
"""Files of Linux whose reads or writes fail with an error, to be opened instead of the real one."""

_JAX = ("sync_global_devices", "process_allgather", "broadcast_one_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shim:
    """The lines that disturb one rank.

    Attributes:
        own: The user's module to import before the lines; empty if they need none.
        lines: Lines to run on the disturbed rank, before the test's module is imported.
        is_for_all: Whether the lines run on every rank, and before anything else.
        before_test: Lines to run on every rank directly before the test.
    """

    imports: tuple[str, ...] = ()
    own: str = ""
    lines: tuple[str, ...] = ()
    is_for_all: bool = False
    before_test: tuple[str, ...] = ()


def shim_of(fault: Fault, backend: str) -> Shim:
    """Return the lines for a fault.

    The fault comes from a file that may be foreign, and its values become a part of the
    script. So only values that a test could have given are taken: names of errors and modules that
    are names, numbers that are numbers. All other texts are quoted.

    Raises:
        MultihostError: A few lines cannot act like the fault, or no test can have the fault.
    """
    if problems := _problems(fault):
        raise _refused(fault, problems[0])
    if fault.is_first or not isinstance(fault.ranks, tuple) or len(fault.ranks) != 1:
        raise _refused(
            fault, "it disturbs the rank that comes first, and no script can know that rank before"
        )
    maker = _MAKERS.get(fault.kind)
    if maker is None:
        raise _refused(fault, "it takes more than a few lines of Python")
    return maker(fault, backend)


def _problems(fault: Fault) -> list[str]:
    kind = own_kinds().get(fault.kind)
    return [*fault.problems(), *(kind.problems(fault.params) if kind is not None else ())]


def _refused(fault: Fault, why: str) -> MultihostError:
    return MultihostError(
        "this weakness cannot be shown by a script without the plugin",
        seen=f"Its fault is {fault!r}: {why}.",
        remedy="Repeat the run with the command in the line that begins with 'replay'.",
    )


def _acting(fault: Fault, backend: str, action: Sequence[str], imports: Sequence[str]) -> Shim:
    """Return a shim that acts before the n-th call at the fault's point.

    Args:
        action: The lines that act; they know `real`, `args` and `kwargs`.
    """
    at = fault.at
    if at == START:
        return Shim(imports=tuple(imports), lines=tuple(action))
    functions, is_it = _functions_at(fault, backend)
    modules = {each.rpartition(".")[0] for each in functions}
    is_io = at.point == "io"
    test = f"passed {'>=' if at.onwards else '=='} {at.nth}"
    lines = [
        *(_fits(at.name) if is_io else ()),
        "passed = 0",
        "def disturbed(real):",
        "    def call(*args, **kwargs):",
        "        global passed",
        *([f"        is_it = {is_it}"] if is_io else ()),
        f"        passed += {'is_it' if is_io else '1'}",
        f"        if {'is_it and ' if is_io else ''}{test}:",
        *(f"            {each}" for each in action),
        "        return real(*args, **kwargs)",
        "    return call",
        *_replaced(functions),
    ]
    more = ("fnmatch", "os") if is_io else ()
    return Shim(imports=tuple({*imports, *modules, *more}), lines=tuple(lines))


def _fits(pattern: str) -> Sequence[str]:
    """Return the lines of a function that tells whether a pattern matches a file's path."""
    rooted = pattern if pattern.startswith(("/", "*")) else f"*/{pattern}"
    return (
        "def fits(file):",
        "    link = f'/proc/self/fd/{file}'",
        "    path = os.readlink(link) if isinstance(file, int) else os.path.abspath(file)",
        f"    return fnmatch.fnmatch(os.fsdecode(path), {rooted!r})",
    )


def _replaced(functions: Sequence[str]) -> list[str]:
    """Return lines that replace functions, given as "module.function"."""
    by_module: dict[str, list[str]] = {}
    for each in functions:
        module, _, name = each.rpartition(".")
        by_module.setdefault(module, []).append(name)
    lines = []
    for module, names in by_module.items():
        if len(names) == 1:
            lines.append(f"{module}.{names[0]} = disturbed({module}.{names[0]})")
            continue
        lines.append(f"for name in {' '.join(names)!r}.split():")
        lines.append(f"    setattr({module}, name, disturbed(getattr({module}, name)))")
    return lines


def _functions_at(fault: Fault, backend: str) -> tuple[Sequence[str], str]:
    """Return the functions that pass a point, and an expression that tells which calls of files do.

    Raises:
        MultihostError: The point is none of a few known functions.
    """
    at = fault.at
    if at.point == "io":
        return _functions_of_files(at, backend)
    if at.point == "collective" and (found := _collectives(at.name, backend)):
        return found, ""
    raise _refused(fault, f"the point {at!r} is not a call of a known function")


def _functions_of_files(at: Point, backend: str) -> tuple[Sequence[str], str]:
    has_torch = backend in ("gloo", "nccl")
    calls = _FUNCTIONS[at.call or "open"]
    functions = [each for each in calls if has_torch or not each.startswith("torch.")]
    is_it = "any(map(fits, args[:2]))" if at.call in ("rename", "link") else "fits(args[0])"
    writes = "set('wax+') & {*str(args[1:2]), *kwargs.get('mode', '')}"
    if at.call == "read":
        is_it += f" and not {writes}"
    if at.call == "write":
        is_it += f" and (real.__name__ != 'open' or bool({writes}))"
    return functions, is_it


def _collectives(name: str, backend: str) -> list[str]:
    if backend == "jax":
        found = [each for each in _JAX if name in ("", each)]
        return [f"jax.experimental.multihost_utils.{each}" for each in found]
    functions = [
        function
        for each in COLLECTIVES
        if each.file.endswith("distributed_c10d.py")
        for function in each.functions
        if name in ("", function)
    ]
    return [f"torch.distributed.{each}" for each in dict.fromkeys(functions)]


def _fails(fault: Fault, backend: str) -> Shim:
    if fault.at.point != "io":
        action = [f"raise RuntimeError({f'{fault.at.name}: failed for this script'!r})"]
        return _acting(fault, backend, action, ())
    call = fault.at.call or "open"
    error = str(fault.params.get("error", FIELD_ERRORS[call]))
    if error not in errno.errorcode.values():
        raise _refused(fault, f"there is no error {error!r}")
    if call in ("read", "write"):
        broken = _BROKEN.get((call, error))
        if broken is None:
            raise _refused(fault, f"no file fails its {call}s with {error}")
        return _acting(fault, backend, [f"args = ({broken!r}, *args[1:])"], ())
    action = [f"raise OSError(errno.{error}, os.strerror(errno.{error}), str(args[0]))"]
    return _acting(fault, backend, action, ("errno", "os"))


def _hold(fault: Fault, backend: str) -> Shim:
    if fault.params.get("what") == "child":
        raise _refused(fault, "it stops a process that the rank starts")
    seconds = max(_HOLD_S, float(fault.params.get("min_s", 0.0)))
    return _acting(fault, backend, [f"time.sleep({seconds:g})"], ("time",))


def _raise_at(fault: Fault, backend: str) -> Shim:
    name = str(fault.params.get("error", "RuntimeError"))
    if not name.isidentifier():  # "module:Class" of the user's
        raise _refused(fault, f"{name} is not a built-in exception")
    return _acting(fault, backend, [f"raise {name}('failed for this script')"], ())


def _kill(fault: Fault, backend: str) -> Shim:
    return _acting(fault, backend, ["os.kill(os.getpid(), signal.SIGKILL)"], ("os", "signal"))


def _clock_skew(fault: Fault, backend: str) -> Shim:
    seconds = f"{float(fault.params['seconds']):g}"
    acting = _acting(fault, backend, [f"ahead.append({seconds})"], ())
    lines = (
        "ahead, real_time = [], time.time",
        "time.time = lambda: real_time() + sum(ahead)",
        "class Skewed(datetime.datetime):",
        "    @classmethod",
        "    def now(cls, tz=None):",
        "        return super().now(tz) + datetime.timedelta(seconds=sum(ahead))",
        "datetime.datetime = Skewed",
    )
    imports = ("datetime", "time", *acting.imports)
    return Shim(imports=imports, lines=(*lines, *acting.lines))


def _hash_seed(fault: Fault, _backend: str) -> Shim:
    rank = int(fault.ranks[0])
    seed = hash_seed_of((fault,), rank, 0)
    lines = (
        f"seed = '{seed}' if os.environ.get('RANK') == '{rank}' else '{OTHERS_HASH_SEED}'",
        "if 'RANK' in os.environ and os.environ.get('PYTHONHASHSEED') != seed:",
        "    os.environ['PYTHONHASHSEED'] = seed",
        "    os.execv(sys.executable, [sys.executable, *sys.argv])",
    )
    return Shim(imports=("os", "sys"), lines=lines, is_for_all=True)


def _elapsed_time(fault: Fault, _backend: str) -> Shim:
    if fault.at != START:
        raise _refused(fault, "its time does not begin with the test")
    seconds, first = float(fault.params["seconds"]), int(fault.params.get("read", 1))
    lines = (
        "reads = []",
        "def disturbed(real):",
        "    def call():",
        "        code, found = sys._getframe(1).f_code, real()",
        "        if code.co_name == '<module>' or '/lib/python3' in code.co_filename:",
        "            return found",
        "        reads.append(code)",
        "        per_second = 1_000_000_000 if isinstance(found, int) else 1",
        f"        ahead = {seconds:g} * per_second if len(reads) >= {first} else 0",
        "        return found + type(found)(ahead)",
        "    return call",
        *_replaced([f"time.{each}" for each in CLOCKS]),
    )
    return Shim(imports=("sys", "time"), lines=lines)


def _returns(fault: Fault, _backend: str) -> Shim:
    module, _, path = fault.at.name.partition(":")
    owner, _, name = f"{module}.{path}".rpartition(".")
    test = f"passed {'>=' if fault.at.onwards else '=='} {fault.at.nth}"
    lines = (
        "passed = 0",
        "def disturbed(real):",
        "    def call(*args, **kwargs):",
        "        global passed",
        "        passed += 1",
        "        found = real(*args, **kwargs)",
        f"        return {_instead(fault.params.get('value'))} if {test} else found",
        "    return call",
        f"{owner}.{name} = disturbed({owner}.{name})",
    )
    return Shim(own=module, lines=lines, before_test=("passed = 0",))


def _instead(value: object) -> str:
    """Return the expression of the value to return; a number takes the shape of an array."""
    if isinstance(value, bool):
        is_array = "'bool' in str(getattr(found, 'dtype', ''))"
        return f"((found ^ found) | {value} if {is_array} else {value})"
    if not isinstance(value, int | float):
        return repr(value)
    text = repr(value) if math.isfinite(value) else f"float('{value}')"
    alike = f"found * {text}" if math.isnan(value) else f"found * 0 + {text}"
    return f"({alike} if hasattr(found, 'shape') else {text})"


def _data_ends(fault: Fault, _backend: str) -> Shim:
    module, _, name = fault.at.name.partition(":")
    count = fault.at.nth - 1 if fault.kind == "short_data" else 0
    loader, is_class = f"{module}.{name}", name.rpartition(".")[2][:1].isupper()
    if is_class:
        function = f"{loader}.__iter__"
        lines: tuple[str, ...] = (
            f"real = {function}",
            f"{function} = lambda *args: itertools.islice(real(*args), {count})",
        )
        return Shim(imports=("itertools",), own=module, lines=lines)
    lines = (
        "drawn = 0",
        "def disturbed(real):",
        "    def call(*args, **kwargs):",
        "        global drawn",
        "        found, kept = real(*args, **kwargs), drawn",
        "        if not (isinstance(found, list) or hasattr(found, 'shape')):",
        f"            return itertools.islice(found, {count})",
        "        drawn += len(found) + 1  # a look finds the end",
        f"        kept = {fault.at.nth - 1} - kept",
        "        return found[:kept] if 0 <= kept < len(found) else found",
        "    return call",
        f"{loader} = disturbed({loader})",
    )
    return Shim(imports=("itertools",), own=module, lines=lines, before_test=("drawn = 0",))


_ENTRIES = (
    "class Entries(list):",
    "    __enter__, __exit__, close = lambda self: self, lambda *_: None, lambda self: None",
    "    __next__ = lambda self: self.pop(0) if self else next(iter(()))",
)
"""The result of `os.scandir`: its entries, its own context, and its own iterator."""


def _shuffled_listing(fault: Fault, _backend: str) -> Shim:
    pattern = str(fault.params["path"])
    lines = (
        *_ENTRIES,
        *_fits(pattern),
        "def disturbed(real):",
        "    def call(path='.'):",
        "        found = real(path)",
        "        return Entries(reversed(list(found))) if fits(path) else found",
        "    return call",
        *_replaced(("os.listdir", "os.scandir")),
    )
    return Shim(imports=("fnmatch", "os"), lines=lines)


def _stale_files(fault: Fault, _backend: str) -> Shim:
    pattern, seconds = str(fault.params["path"]), float(fault.params["seconds"])
    lines = (
        *_ENTRIES,
        *_fits(pattern),
        "def is_hidden(path, stat=os.stat):",
        "    is_there = fits(path) and os.access(path, os.F_OK)",
        f"    return is_there and time.time() - stat(path).st_ctime < {seconds:g}",
        "def disturbed(real):",
        "    def call(path='.', *args, **kwargs):",
        "        if is_hidden(path) and not set(str(args[:1])) & set('wax+'):",
        "            raise FileNotFoundError(errno.ENOENT, 'not visible yet', str(path))",
        "        found = real(path, *args, **kwargs)",
        "        if real.__name__ not in ('listdir', 'scandir'):",
        "            return found",
        "        return Entries(e for e in found if not is_hidden(os.path.join(path, e)))",
        "    return call",
        *_replaced(("os.stat", "builtins.open", "io.open", "os.listdir", "os.scandir")),
    )
    return Shim(imports=("builtins", "errno", "fnmatch", "io", "os", "time"), lines=lines)


_MAKERS: Mapping[str, Callable[[Fault, str], Shim]] = {
    "fails": _fails,
    "hold": _hold,
    "raise_at": _raise_at,
    "kill": _kill,
    "clock_skew": _clock_skew,
    "elapsed_time": _elapsed_time,
    "hash_seed": _hash_seed,
    "returns": _returns,
    "short_data": _data_ends,
    "empty_data": _data_ends,
    "shuffled_listing": _shuffled_listing,
    "stale_files": _stale_files,
}
"""By kind of fault: the function that writes the lines."""
