"""Points at which faults begin: ``at.call("storage:read_shard", nth=2)``.

Every rank counts its own passages. A point does nothing by itself; faults are bound to it. With
``onwards=True`` a point is the `nth` passage and every later one, so a fault without duration, such
as `raise_at` or `delay`, happens each time.
"""

from __future__ import annotations

from pytest_multihost.core.model.fault import IoCall, Point, When

__all__ = ["batch", "call", "collective", "io", "rendezvous", "start", "sync_point"]


def start() -> Point:
    """Return the start of the test, when all ranks are ready and no fixture is set up."""
    return Point("start")


def rendezvous() -> Point:
    """Return the moment before any rank starts its backend.

    Network faults at this point begin before the rendezvous.
    """
    return Point("rendezvous")


def batch(loader: str, *, nth: int = 1, onwards: bool = False) -> Point:
    """Return the `nth` time that the rank is about to draw a batch from a data loader.

    Args:
        loader: ``module:name`` of a function that returns a loader, a list or an array or is a
            generator, of a class of loaders such as ``torch.utils.data:DataLoader``, or of a loader
            itself. A loader is anything that Python code iterates over, except a built-in type. All
            entries of a list and all rows of an array are drawn when the function returns it.
        nth: 1 is the first batch in the test. All epochs count, and so does the attempt that finds
            the end of the data.
        onwards: Whether each later passage counts as well.
    """
    return Point("batch", loader, nth, onwards=onwards)


def call(target: str, *, nth: int = 1, when: When = "before", onwards: bool = False) -> Point:
    """Return the `nth` call of a function.

    Args:
        target: ``module:function`` or ``module:Class.method``. Calls through a name imported from
            the module also count. Calls through other copies, such as a default argument or a
            table, do not count.
        nth: 1 is the first call in the test, fixtures included.
        when: Before the function runs, or after it has returned or raised.
        onwards: Whether each later passage counts as well.
    """
    return Point("call", target, nth, when, onwards=onwards)


def collective(op: str | None = None, *, nth: int = 1, onwards: bool = False) -> Point:
    """Return the `nth` time that the rank is about to enter an operation of the runtime under test.

    Args:
        op: The operation's name in the public API, such as ``all_reduce``. None counts every
            collective; transfers and waits count only by name.
        nth: 1 is the first such operation in the test.
        onwards: Whether each later passage counts as well.
    """
    return Point("collective", op or "", nth, onwards=onwards)


def sync_point(name: str, *, nth: int = 1, onwards: bool = False) -> Point:
    """Return the `nth` time that the rank calls ``world.sync_point(name)``."""
    return Point("sync_point", name, nth, onwards=onwards)


def io(path: str, *, call: IoCall | None = None, nth: int = 1, onwards: bool = False) -> Point:
    """Return the `nth` time that the rank is about to make a call on a matching file.

    Args:
        path: A glob for absolute paths; ``*`` also matches slashes. A glob that begins with
            neither ``/`` nor ``*`` matches in any directory. For a rename or link, the new or the
            old path must match.
        call: ``open``, ``read``, ``write``, ``fsync``, ``stat`` (also ``exists`` and its like),
            ``rename`` (also ``replace``), ``link``, ``unlink``, ``mkdir``, ``rmdir`` or
            ``listdir`` (also ``scandir`` and ``glob``). None counts opens, reads, writes and fsyncs
            together, so its numbers change when the code under test does.
        nth: 1 is the first such call in the test.
        onwards: Whether each later passage counts as well.
    """
    return Point("io", path, nth, call=call or "", onwards=onwards)
