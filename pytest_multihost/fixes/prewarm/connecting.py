"""Connect one process group: use it once, as a member among all others that do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

from pytest_multihost.fixes.prewarm.agreement import Agreement, Entry, named

ProcessGroup = Any
"""A process group of torch's, which the type checker does not see."""

Work = Any
"""What torch returns for an operation that is not waited for."""

Device = Any
"""A torch.device, or what makes one."""


Coverage = Literal["all_pairs", "barrier"]


class NotConnectedError(RuntimeError):
    """A group could not be connected; it is of no use any more.

    Attributes:
        group: Its name.
        members: Its ranks.
        failures: Why members failed, by rank; a rank that is not in it may only have waited.
    """

    def __init__(
        self, entry: Entry, reason: str, failures: dict[int, str], timeout: timedelta
    ) -> None:
        self.group, self.members = entry
        self.failures = failures
        late = f"wait timeout after {timeout.total_seconds() * 1000:.0f}ms"
        others = "; ".join(f"{named([rank])} failed: {text}" for rank, text in failures.items())
        super().__init__(
            f"the process group {self.group!r} of {named(self.members)} was not connected:"
            f" {reason or late}{f' ({others})' if others else ''}"
        )


def connect(
    group: ProcessGroup,
    entry: Entry,
    agreement: Agreement,
    *,
    coverage: Coverage,
    timeout: timedelta,
    device: Device,
) -> None:
    """Connect a group of which this rank is a member.

    Args:
        group: torch's process group.
        entry: Its name and members.
        agreement: Where failures are written.
        coverage: What is to be connected.
        timeout: For each use of the group. Where a runtime connects in the calling thread, as NCCL
            does, that part ends when it likes.
        device: The accelerator; None for the current one.

    Raises:
        NotConnectedError: An error, or not all members came in time.
    """
    try:
        for each in devices_of(group, device):
            for work in _uses(group, each, coverage):
                work.wait(timeout)
            _synchronize(each)
    except RuntimeError as error:
        is_late = "timed out" in str(error).lower()
        reason = "" if is_late else f"{type(error).__name__}: {error}"
        if reason:
            agreement.report_failure(reason)
        others = [rank for rank in entry[1] if rank != agreement.rank]
        raise NotConnectedError(entry, reason, agreement.failures(others), timeout) from error


def _uses(group: ProcessGroup, device: Device, coverage: Coverage) -> Iterator[Work]:
    """Launch each use when the previous one is over.

    A reduction makes the rings and trees of NCCL. An all_to_all makes
    the connections of all pairs, which a barrier does not: gloo's opens those to the ranks that are
    1, 2, 4, ... places away.
    """
    import torch
    import torch.distributed as dist

    if coverage == "barrier":
        ids = None if device.type == "cpu" else [_index(device)]
        yield dist.barrier(group=group, async_op=True, device_ids=ids)
        return
    yield dist.all_reduce(torch.zeros(1, device=device), group=group, async_op=True)
    sent = torch.zeros(group.size(), device=device)
    received = torch.empty_like(sent)
    yield dist.all_to_all_single(received, sent, group=group, async_op=True)


def devices_of(group: ProcessGroup, device: Device) -> list[Device]:
    """Return a device for each backend of a group, the CPU first.

    Args:
        group: torch's process group.
        device: The accelerator to use; None for the current one.
    """
    found: dict[int, Device] = {}
    for each in sorted(group._device_types, key=lambda one: one.type != "cpu"):  # noqa: SLF001 - no public way
        is_asked_for = device is not None and device.type == each.type
        found.setdefault(id(group._get_backend(each)), device if is_asked_for else each)  # noqa: SLF001 - as above
    return list(found.values())


def _index(device: Device) -> int:
    """Return an accelerator's number; without one it stands for the current one."""
    import torch

    index = device.index
    return int(getattr(torch, device.type).current_device() if index is None else index)


def _synchronize(device: Device) -> None:
    """Return when an accelerator has done what it was given: until then nothing is connected."""
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
