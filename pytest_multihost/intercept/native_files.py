"""Report the files that native code opens, so that they are points like all others.

Files of safetensors and tensorstore are reported when Python calls these libraries: before a file
is opened or a store is read or written, with the path that the caller has given. Calls on files
within one such call are not seen. Files of `torch.save` are reported around its writer in C++.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.fault import IoCall
from pytest_multihost.core.rank.recorder.calls import replace_code
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.torch_groups import Function
from pytest_multihost.core.torch_private import archive_writer_class
from pytest_multihost.intercept.files import is_observing, reported

_FILE_URL = "file://"
_SAFETENSORS = ("torch", "numpy", "flax", "mlx", "tensorflow", "paddle")

Store = Any
"""An object of tensorstore, or its argument: JSON or a spec."""

PathOf = Callable[..., str | None]
"""Returns the path of the file that a call uses, given its arguments; None if it uses none."""

_CALLS_FOR_OTHERS = True  # see `extensions.faults.points`: these calls on files are the test's


def report_native_files() -> None:
    """Report the files that this process opens with these libraries, once they are imported."""
    for name in _SAFETENSORS:
        after_import(f"safetensors.{name}", _wrap_safetensors)
    after_import("tensorstore", _wrap_tensorstore)
    after_import("torch.serialization", _wrap_torch_save)


def _reporting(calls: tuple[IoCall, ...], path_of: PathOf, original: Function) -> Function:
    def wrapped(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        if is_observing():
            path = None
            with contextlib.suppress(Exception):  # arguments that the library will refuse
                path = path_of(*args, **kwargs)
            for call in calls if path else ():
                reported(call, path or "")
        return original(*args, **kwargs)

    return wrapped


def _wrap_safetensors(module: ModuleType) -> None:
    replace_code(module.save_file, partial(_reporting, ("open", "write"), partial(_filename, 1)))
    replace_code(module.load_file, partial(_reporting, ("open", "read"), partial(_filename, 0)))


def _filename(place: int, *args: object, **kwargs: object) -> str:
    path: Any = kwargs["filename"] if "filename" in kwargs else args[place]
    return os.fsdecode(path)


def _wrap_tensorstore(module: ModuleType) -> None:
    opens = _reporting(("open",), _opened_path, module.open)
    module.open = opens  # type: ignore[attr-defined]
    for name, call in (("read", "read"), ("write", "write")):
        original = getattr(module.TensorStore, name)
        wrapped = _reporting((call,), _path_of_store, original)  # type: ignore[arg-type]
        setattr(module.TensorStore, name, wrapped)


def _opened_path(spec: Store, *_: object, **__: object) -> str | None:
    return next(_paths_in(spec if isinstance(spec, dict | str) else spec.to_json()), None)


def _path_of_store(store: Store, *_: object, **__: object) -> str | None:
    return next(_paths_in(store.kvstore.spec().to_json()), None)


def _paths_in(spec: object) -> Iterator[str]:
    """Yield the path of the store of files at the bottom of a spec in JSON, if there is one."""
    if isinstance(spec, str) and spec.startswith(_FILE_URL):
        yield spec.removeprefix(_FILE_URL).partition("|")[0]
    elif isinstance(spec, dict) and spec.get("driver") == "file":
        yield str(spec["path"])
    elif isinstance(spec, dict):
        for key in ("kvstore", "base"):
            yield from _paths_in(spec.get(key))


def _wrap_torch_save(serialization: ModuleType) -> None:
    """Report that `torch.save` is about to open a file, and that it is about to finish writing."""
    writer = archive_writer_class(serialization)
    opening, closing = writer.__init__, writer.__exit__

    def __init__(self: object, name: str, *args: object) -> None:  # noqa: N807 - as the original
        reported("open", name)
        opening(self, name, *args)

    def __exit__(self: Any, *error: object) -> None:  # noqa: ANN401, N807 - as the original
        if not any(error):
            reported("write", self.name)
        closing(self, *error)

    writer.__init__ = update_wrapper(__init__, opening)
    writer.__exit__ = update_wrapper(__exit__, closing)
