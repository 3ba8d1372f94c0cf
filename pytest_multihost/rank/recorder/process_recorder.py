"""Start recording in a rank, or get ready for it in the server that ranks are forked from."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

from pytest_multihost.model.operation import OWN_SCOPE
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.rank.recorder import jax, torch
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.slots import SlotPage, slots_path

_prepared: list[Recorder] = []
_recorders: list[Recorder] = []
_transfers: dict[tuple[str, int], itertools.count[int]] = {}


def prepare_recording() -> None:
    """Wrap what is to be recorded, once for all ranks that this process will fork.

    Until a rank starts recording, what is noted goes nowhere. Done in each rank it would make each
    copy hundreds of pages of memory.
    """
    recorder = Recorder(SlotPage(), rank=-1, size=0)
    jax.install(recorder)
    torch.install(recorder)
    _prepared.append(recorder)


def start_recording(spec: RankSpec) -> None:
    """Make this rank's slot page, and record from now on what it does with other ranks."""
    if not _prepared:
        prepare_recording()
    recorder = _prepared.pop()
    recorder.enter(slots_path(spec.scratch, spec.rank), spec.rank, spec.world.size)
    _recorders[:] = [recorder]


def the_recorder() -> Recorder:
    """Return the recorder of this rank."""
    return _recorders[0]


@contextlib.contextmanager
def operation(name: str, peers: Iterable[int] | None = None) -> Iterator[None]:
    """Tell that this thread waits for other ranks while it is in the block.

    For a transport of your own, so that a hang in it can name whom it waits for. Outside of a rank
    nothing happens.

        with pytest_multihost.operation("halo exchange", peers=[left, right]):
            ...

    Args:
        name: What it is called where it is told of. Ranks that wait for each other under one name
            meet: the first of one with the first of the other, and so on.
        peers: Whom it waits for; all other ranks if not given.
    """
    if not _recorders:
        yield
        return
    recorder = _recorders[0]
    with recorder.during(_begin(recorder, name, peers)):
        yield


def _begin(recorder: Recorder, name: str, peers: Iterable[int] | None) -> int:
    others = sorted(set(recorder.everybody if peers is None else peers) - {recorder.rank})
    scope = f"{OWN_SCOPE}{name}"
    if len(others) == 1:
        number = next(_transfers.setdefault((name, others[0]), itertools.count(1)))
        return recorder.begin(
            name, "transfer", recorder.everybody, scope=scope, sequence=number, peer=others[0]
        )
    members = tuple(sorted({*others, recorder.rank}))
    return recorder.begin(name, "collective", members, scope=scope)
