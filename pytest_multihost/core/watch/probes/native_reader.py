"""A program that writes the native frames of processes to stdout, one JSON object per line.

It reads the process ids from stdin, so it can be started before they are known. Its arguments are
ids of processes that are likely to follow: it reads the symbols of their largest library at once,
which does not touch the processes themselves.

It runs as a separate process because it can crash, and can hang forever on a process in
uninterruptible sleep.

pystack itself stops a process until all its frames have names. For jax that takes seconds, because
it searches 740 000 symbols for each frame. But pystack ships elfutils' libdw, which can stop one
thread after the other with ptrace(2), for well under a millisecond each, and collect only
addresses. Their names are looked up when all threads run again, in a table read once for all
processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_uint64, c_void_p
from pathlib import Path
from types import ModuleType

Threads = list[tuple[int, list[str]]]
"""Each thread's id and the symbols of its frames, innermost first."""

_DEPTH = 128  # of deeper stacks the outermost frames are skipped
_UNKNOWN = "???"
_OUT_OF_FRAMES = 1  # the result of a callback that ends the walk

_LARGEST = "/libjax_common.so"
_ELF = Path(__file__).parents[1] / "kernel" / "elf.py"

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
"""Finds no debug information: none is needed, and a search for it may use the network."""


@functools.cache
def _libdw() -> ctypes.CDLL:
    """Load the libdw that pystack brings.

    Raises:
        OSError: It cannot be found or loaded.
        AttributeError: It lacks a function.
    """
    spec = importlib.util.find_spec("pystack")
    if spec is None or spec.origin is None:
        raise OSError("pystack is not installed")
    libraries = Path(spec.origin).parent.parent / "pystack.libs"
    dw = ctypes.CDLL(str(next(libraries.glob("libdw-*.so*"), "libdw.so.1")))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(dw, name)
        function.restype, function.argtypes = result, arguments
    return dw


def _threads(dw: ctypes.CDLL, pid: int) -> Threads:
    """Return the threads of a process.

    Raises:
        OSError: It cannot be read.
    """

    def check(status: int) -> None:
        if status > 1:
            raise OSError(os.strerror(status))
        if status != 0:
            raise OSError((dw.dwfl_errmsg(-1) or b"").decode())

    find_elf = ctypes.cast(dw.dwfl_linux_proc_find_elf, c_void_p)
    find_debuginfo = ctypes.cast(_find_no_debuginfo, c_void_p)
    callbacks = _Callbacks(find_elf, find_debuginfo, None, None)  # libdw keeps its address
    dwfl = dw.dwfl_begin(byref(callbacks))
    try:
        check(dw.dwfl_linux_proc_report(dwfl, pid))
        check(dw.dwfl_report_end(dwfl, None, None))
        check(dw.dwfl_linux_proc_attach(dwfl, pid, c_bool(False)))  # noqa: FBT003
        tids = map(int, os.listdir(f"/proc/{pid}/task"))
        stacks = {tid: _addresses(dw, dwfl, tid) for tid in tids}
        if not any(stacks.values()):
            check(1)
        code = {pc: _file_and_address(dw, dwfl, pc) for pcs in stacks.values() for pc in pcs}
    finally:
        dw.dwfl_end(dwfl)
    names = {pc: _name(*each) for pc, each in code.items()}
    return [(tid, [names[pc] for pc in pcs]) for tid, pcs in stacks.items()]


def _addresses(dw: ctypes.CDLL, dwfl: int, tid: int) -> list[int]:
    """Return the code addresses of a thread's frames; the thread is stopped meanwhile."""
    found: list[int] = []

    def add(state: int, _: object) -> int:
        pc, is_interrupted = c_uint64(), c_bool()
        if not dw.dwfl_frame_pc(state, byref(pc), byref(is_interrupted)):
            return _OUT_OF_FRAMES
        # A return address may be the first of the next function.
        found.append(pc.value if is_interrupted else pc.value - 1)
        return _OUT_OF_FRAMES if len(found) == _DEPTH else 0

    dw.dwfl_getthread_frames(dwfl, tid, _Frame(add), None)
    return found


def _file_and_address(dw: ctypes.CDLL, dwfl: int, pc: int) -> tuple[str, int]:
    """Return the ELF file of code and its address there; "" and 0 for code made at run time."""
    module = dw.dwfl_addrmodule(dwfl, pc)
    if not module:
        return "", 0
    bias, path = c_uint64(), c_char_p()
    dw.dwfl_module_getelf(module, byref(bias))
    name = dw.dwfl_module_info(module, *[None] * 5, byref(path), None)
    return os.fsdecode(path.value or name or b""), pc - bias.value


@functools.cache
def _elf() -> ModuleType:
    """Load the module `kernel.elf` by its path.

    Importing its package would take longer than reading a process.
    """
    spec = importlib.util.spec_from_file_location("elf", _ELF)
    assert spec is not None  # noqa: S101 - for the type checker
    assert spec.loader is not None  # noqa: S101 - for the type checker
    elf = sys.modules["elf"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elf)
    return elf


def _name(path: str, address: int) -> str:
    """Return the readable name of the function at an address of an ELF file."""
    mangled = _elf().symbol_table(path).name_at(address)
    if not mangled:
        return _UNKNOWN
    return str(_elf().demangled(mangled))


def _read_symbols(pids: list[str]) -> None:
    """Read the symbols of the largest library, which takes 0.15 s, if a process has mapped it."""
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if line.endswith(_LARGEST):
                _elf().symbol_table(line[line.index("/") :])
                return


if __name__ == "__main__":
    with contextlib.suppress(Exception):  # reported below for each process
        _libdw()
        _elf()
        _read_symbols(sys.argv[1:])
    for argument in sys.stdin.read().split():
        pid = int(argument)
        answer: dict[str, object] = {"pid": pid}
        try:
            answer["threads"] = _threads(_libdw(), pid)
        except Exception as reason:  # noqa: BLE001 - other processes may still be readable
            answer["error"] = f"{type(reason).__name__}: {reason}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
