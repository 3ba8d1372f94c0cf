"""Record the operations that a rank is in: those of torch, of jax and of the harness.

An operation needs other ranks to take part. Its record in the slot page holds its start and the
user's line that began it, and stays readable when the rank is stopped or dead.

The recorder of a process is prepared in the server, and opened in the rank forked from it.

* `recorder`: writes operations into the slot page. `calls`: records calls of functions.
* `torch`, `torch_groups`, `torch_process_groups`, `torch_rpc`, `torch_flight_recorder`: wrap torch.
* `torch_streams`: keeps operations open that a GPU has not done yet.
* `jax`, `jax_programs`: wrap jax. `hlo`: the collectives in a compiled program of jax.
* `jax_keys`: notes the keys that a rank sets in jax's coordination service.
* `torch_data`: marks waits of torch's data loaders.
* `child_names`: the names that a rank gives to its children.
* `file_locks`: wraps fcntl.
* `imports`: calls back when a module has been imported.
* `exception_paths`: the handlers that an exception meets, and whether it certainly fails the test.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

from pytest_multihost.core.import_path import import_path
from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.recorder import jax, torch
from pytest_multihost.core.rank.recorder.child_names import tell_names
from pytest_multihost.core.rank.recorder.exception_paths import user_frames
from pytest_multihost.core.rank.recorder.file_locks import record_file_locks
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch import record_torch_classes
from pytest_multihost.core.rank.recorder.torch_data import mark_data_loaders
from pytest_multihost.core.slots import SlotPage, SourceRef, slots_path

__all__ = [
    "Recorder",
    "SourceRef",
    "after_import",
    "current_recorder",
    "operation",
    "prepare_recording",
    "record_in_child",
    "record_torch_classes",
    "start_recording",
    "user_frames",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """A recorder of the waits in one library.

    Attributes:
        wrap: Wraps the library's functions now, or as soon as it is imported.
        imported: The modules whose first import makes a child of a rank record; empty if children
            are recorded in any case, or never.
        in_children: Whether the waits of a rank's children are recorded, too.
    """

    wrap: Callable[[Recorder], None]
    in_children: bool
    imported: tuple[str, ...] = ()


WRAPPERS: Final = (
    Wrapper(wrap=jax.install, in_children=False),
    Wrapper(wrap=torch.install, in_children=True, imported=("torch",)),
    Wrapper(wrap=record_file_locks, in_children=False),
    Wrapper(wrap=lambda _: mark_data_loaders(), in_children=True),
    Wrapper(wrap=tell_names, in_children=True),
)
"""The recorders of the core, in the order of wrapping; plugins add `RecorderPart`s."""


_prepared: list[Recorder] = []
_recorders: list[Recorder] = []
_transfers: dict[tuple[str, int], itertools.count[int]] = {}


def prepare_recording() -> None:
    """Wrap the functions to record, once for all ranks that this process will fork.

    Wrapping in each rank would copy hundreds of memory pages per rank. Until a rank opens its page,
    its records go to memory that no process reads.
    """
    recorder = Recorder(SlotPage(), rank=-1, size=0)
    for each in WRAPPERS:
        each.wrap(recorder)
    _prepared.append(recorder)


def start_recording(spec: RankSpec) -> None:
    """Make this rank's slot page, and record its operations from now on."""
    if not _prepared:
        prepare_recording()
    recorder = _prepared.pop()
    role = spec.role.ranks if spec.role is not None else None
    recorder.open(slots_path(spec.scratch, spec.rank), spec.rank, spec.world.size, role)
    if spec.world.keeps_operations:
        recorder.page.keep_all()
    jax.note_keys(f"{spec.directory}/rank-{spec.rank}.keys")
    _recorders[:] = [recorder]
    for each in spec.world.recorders:
        after_import(each.module, partial(_wrap_for, recorder, each.wrap))


def _wrap_for(recorder: Recorder, path: str, _: ModuleType) -> None:
    """Wrap the functions of a library by the function of a plugin, which is imported only now."""
    import_path(path)(recorder)


def record_in_child(
    *, page: str, rank: int, size: int, role: Sequence[int], recorders: Sequence[str] = ()
) -> None:
    """Record the operations of this interpreter, which a rank has started, from now on.

    They go to a page of its own, made when it first joins a group or opens a message socket.

    Args:
        page: The path of the rank's slot page.
        rank: The rank, in a world of `size` ranks.
        role: The first rank of the rank's role, and the one after its last.
        recorders: The functions of plugins that wrap libraries; see `RecorderPart`.
    """
    recorder = Recorder(SlotPage(Path(page)), rank, size, role=range(*role))
    for each in WRAPPERS:
        if each.in_children:
            each.wrap(recorder)
    for path in recorders:
        with contextlib.suppress(Exception):  # the child may lack the plugin
            import_path(path)(recorder)


def current_recorder() -> Recorder:
    """Return the recorder of this rank."""
    return _recorders[0]


@contextlib.contextmanager
def operation(name: str, peers: Iterable[int] | None = None) -> Iterator[None]:
    """Record that this thread waits for other ranks while it is in the block.

    Use it for a transport of your own, so that a hang in it can name the ranks it waits for.
    Outside of a rank it does nothing.

        with pytest_multihost.operation("halo exchange", peers=[left, right]):
            ...

    Args:
        name: Its name in verdicts. Two ranks that wait for each other under one name are matched:
            the first wait of one with the first wait of the other, and so on.
        peers: The ranks it waits for; by default all other ranks.
    """
    if not _recorders:
        yield
        return
    recorder, scope = _recorders[0], Scope("operation", name)
    others = set(recorder.all_ranks if peers is None else peers) - {recorder.rank}
    if len(others) == 1:
        [peer] = others
        number = next(_transfers.setdefault((name, peer), itertools.count(1)))
        record = recorder.begin(
            name, "transfer", recorder.all_ranks, scope=scope, sequence=number, peer=peer
        )
    else:
        members = tuple(sorted({*others, recorder.rank}))
        record = recorder.begin(name, "collective", members, scope=scope)
    with recorder.during(record):
        yield
