"""A program: write the native frames of processes to stdout, one JSON object per line.

It runs as a separate process because it can crash, and can hang for good on a process in
uninterruptible sleep.

pystack stops a process until all its frames have names. For jax that takes seconds: it searches
740 000 symbols for each frame. But it ships elfutils' libdw, which can stop one thread after the
other with ptrace(2), for well under a millisecond each, and collect only addresses. Their names are
looked up when all threads run again, in a table read once for all processes. If that fails,
pystack's own method is used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

Threads = list[tuple[int, list[str]]]
"""Each thread's id and the symbols of its frames, innermost first."""

_DEPTH = 128  # the outermost frames of more are of no interest
_UNKNOWN = "???"
_OUT_OF_FRAMES = 1  # what a callback returns to end the walk

_ELF = Path(__file__).parents[1] / "kernel" / "elf.py"
"""Our reader of symbol tables, loaded by its path: importing the package that it is in would take
longer than reading a process."""

_Frame = CFUNCTYPE(c_int, c_void_p, c_void_p)
_FindNothing = CFUNCTYPE(c_int, *[c_void_p] * 6, ctypes.c_uint32, c_void_p)

_SIGNATURES = {
    "dwfl_begin": (c_void_p, [c_void_p]),
    "dwfl_end": (None, [c_void_p]),
    "dwfl_linux_proc_report": (c_int, [c_void_p, c_int]),
    "dwfl_report_end": (c_int, [c_void_p, c_void_p, c_void_p]),
    "dwfl_linux_proc_attach": (c_int, [c_void_p, c_int, c_bool]),
    "dwfl_getthread_frames": (c_int, [c_void_p, c_int, _Frame, c_void_p]),
    "dwfl_frame_pc": (c_bool, [c_void_p, POINTER(c_uint64), POINTER(c_bool)]),
    "dwfl_addrmodule": (c_void_p, [c_void_p, c_uint64]),
    "dwfl_module_getelf": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "dwfl_module_info": (c_char_p, [*[c_void_p] * 6, POINTER(c_char_p), c_void_p]),
    "dwfl_errmsg": (c_char_p, [c_int]),
}


class _Callbacks(ctypes.Structure):
    """Dwfl_Callbacks of libdwfl.h."""

    _fields_ = (
        ("find_elf", c_void_p),
        ("find_debuginfo", c_void_p),
        ("section_address", c_void_p),
        ("debuginfo_path", c_void_p),
    )


_find_no_debuginfo = _FindNothing(lambda *_: -1)
"""Says that there is none: it is not needed, and looking for it may reach the network."""


@dataclass(slots=True)
class _Unwinder:
    """Reads processes with libdw."""

    dw: ctypes.CDLL
    name_of: Callable[[str, int], str]

    @classmethod
    def load(cls) -> _Unwinder:
        """Load the libdw that pystack brings.

        Raises:
            OSError: It is not there, or not one that we know.
            AttributeError: It lacks a function.
        """
        spec = importlib.util.find_spec("pystack")
        if spec is None or spec.origin is None:
            raise OSError("pystack is not installed")
        libraries = Path(spec.origin).parent.parent / "pystack.libs"
        path = next(libraries.glob("libdw-*.so*"), None)
        dw = ctypes.CDLL(str(path or "libdw.so.1"))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(dw, name)
            function.restype, function.argtypes = result, arguments
        return cls(dw, _namer())

    def threads(self, pid: int) -> Threads:
        """Return the threads of a process.

        Raises:
            OSError: It cannot be read.
        """
        find_elf = ctypes.cast(self.dw.dwfl_linux_proc_find_elf, c_void_p)
        find_debuginfo = ctypes.cast(_find_no_debuginfo, c_void_p)
        callbacks = _Callbacks(find_elf, find_debuginfo, None, None)  # libdw keeps its address
        dwfl = self.dw.dwfl_begin(byref(callbacks))
        try:
            self._check(self.dw.dwfl_linux_proc_report(dwfl, pid))
            self._check(self.dw.dwfl_report_end(dwfl, None, None))
            self._check(self.dw.dwfl_linux_proc_attach(dwfl, pid, c_bool(False)))  # noqa: FBT003
            stacks = {
                tid: self._addresses(dwfl, tid) for tid in map(int, os.listdir(f"/proc/{pid}/task"))
            }
            if not any(stacks.values()):
                self._check(1)
            code = {pc: self._file_and_address(dwfl, pc) for pcs in stacks.values() for pc in pcs}
        finally:
            self.dw.dwfl_end(dwfl)
        names = {pc: self.name_of(*each) for pc, each in code.items()}
        return [(tid, [names[pc] for pc in pcs]) for tid, pcs in stacks.items()]

    def _check(self, status: int) -> None:
        if status != 0:
            message = os.strerror(status) if status > 1 else (self.dw.dwfl_errmsg(-1) or b"")
            raise OSError(message if isinstance(message, str) else message.decode())

    def _addresses(self, dwfl: int, tid: int) -> list[int]:
        """Return the addresses that a thread's frames are at; it is stopped meanwhile."""
        found: list[int] = []

        def add(state: int, _: object) -> int:
            pc, is_interrupted = c_uint64(), c_bool()
            if not self.dw.dwfl_frame_pc(state, byref(pc), byref(is_interrupted)):
                return _OUT_OF_FRAMES
            # A return address may be the first of the next function.
            found.append(pc.value if is_interrupted else pc.value - 1)
            return _OUT_OF_FRAMES if len(found) == _DEPTH else 0

        self.dw.dwfl_getthread_frames(dwfl, tid, _Frame(add), None)
        return found

    def _file_and_address(self, dwfl: int, pc: int) -> tuple[str, int]:
        """Return the ELF file of some code and its address there; none of code made at run time."""
        module = self.dw.dwfl_addrmodule(dwfl, pc)
        if not module:
            return "", 0
        bias, path = c_uint64(), c_char_p()
        self.dw.dwfl_module_getelf(module, byref(bias))
        name = self.dw.dwfl_module_info(module, *[None] * 5, byref(path), None)
        return os.fsdecode(path.value or name or b""), pc - bias.value


def _namer() -> Callable[[str, int], str]:
    """Return what names the function at an address of an ELF file."""
    spec = importlib.util.spec_from_file_location("elf", _ELF)
    assert spec is not None  # noqa: S101 - for the type checker
    assert spec.loader is not None  # noqa: S101 - for the type checker
    elf = sys.modules["elf"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elf)
    demangle = _demangler()

    def name_of(path: str, address: int) -> str:
        name = elf.symbol_table(path).name_at(address)
        return demangle(name) if name else _UNKNOWN

    return name_of


def _demangler() -> Callable[[bytes], str]:
    """Return what turns mangled names of C++ into readable ones."""
    demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    demangle.restype, demangle.argtypes = c_void_p, [c_char_p, c_void_p, c_void_p, c_void_p]
    free = ctypes.CDLL(None).free
    free.argtypes = [c_void_p]

    def readable(name: bytes) -> str:
        pointer = demangle(name, None, None, None)
        if not pointer:
            return name.decode("utf-8", "replace")
        try:
            return ctypes.string_at(pointer).decode("utf-8", "replace")
        finally:
            free(pointer)

    return readable


def _threads_by_pystack(pid: int) -> Threads:
    from pystack.engine import NativeReportingMode, get_process_threads

    threads = get_process_threads(pid, native_mode=NativeReportingMode.ALL)
    return [(each.tid, [frame.symbol for frame in each.native_frames][::-1]) for each in threads]


def _methods() -> list[Callable[[int], Threads]]:
    """Return the functions that can read processes here, the best first."""
    try:
        return [_Unwinder.load().threads, _threads_by_pystack]
    except (OSError, AttributeError):
        return [_threads_by_pystack]


def _answer(pid: int, methods: list[Callable[[int], Threads]]) -> dict[str, object]:
    error = ""
    for method in methods:
        try:
            return {"pid": pid, "threads": method(pid)}
        except Exception as reason:  # noqa: BLE001 - whatever it is, the others can be read
            error = f"{type(reason).__name__}: {reason}"
    return {"pid": pid, "error": error}


if __name__ == "__main__":
    methods = _methods()
    for argument in sys.argv[1:]:
        sys.stdout.write(json.dumps(_answer(int(argument), methods)) + "\n")
        sys.stdout.flush()
