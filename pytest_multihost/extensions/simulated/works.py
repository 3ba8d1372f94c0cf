"""The result of an operation of a simulated group: the handle to wait for its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from pytest_multihost.extensions.simulated.exchange import TRANSFERS
from pytest_multihost.extensions.simulated.launches import Completion, SimulatedLaunch
from pytest_multihost.extensions.simulated.link import ExchangeLink, is_own_thread

__tracebackhide__ = True  # pytest leaves the frames of this module out of tracebacks

Tensor = Any
Take = Callable[[Completion], None]
"""Copies the data that an operation has received into the caller's tensors."""

OnTimeout = Callable[[SimulatedLaunch, str], None]
"""Takes the operation whose timeout has struck, and the text of the error."""

_NO_TIMEOUT = timedelta(0)

_POLL_S = 0.02
"""How long a test for completion waits at most: the caller may have something else to do."""

_FUTURE_S = 1.0
"""How long the caller of a future waits at most before a thread waits instead."""


class SimulatedWork(Work):  # type: ignore[misc]
    """One operation that this rank has launched.

    It inherits because torch's C++ code waits for it, too.
    """

    def __init__(
        self,
        link: ExchangeLink,
        launch: SimulatedLaunch,
        take: Take,
        outputs: Sequence[Tensor],
        timeout_s: float,
        on_timeout: OnTimeout | None = None,
    ) -> None:
        """Make the handle of an operation.

        Args:
            on_timeout: Called when the timeout has struck; None: the wait only raises an error.
        """
        super().__init__()
        self._link, self.launch, self._take = link, launch, take
        self._outputs, self.timeout_s, self._on_timeout = list(outputs), timeout_s, on_timeout
        self._completion: Completion | None = None
        self.is_sent = False
        self._error = ""
        self._ended: Any = None
        self._future: Any = None

    def send(self) -> None:
        """Send the launch, if that has not been done."""
        if not self.is_sent:
            send_together(self._link, [self])

    def take(self, completion: Completion) -> None:
        """Take the end of the operation."""
        self._error = completion.error
        if not self._error:
            try:
                self._take(completion)
            except RuntimeError as error:
                self._error = f"{self.launch.operation}: {error}"
        self._completion = completion

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the end.

        Raises:
            RuntimeError: The operation has failed, or its timeout has struck.
        """
        if self._completion is None:
            is_given = timeout > _NO_TIMEOUT
            limit_s = timeout.total_seconds() if is_given else self.timeout_s
            if self.is_sent:
                error = self._link.wait([self.launch.number], limit_s)
            else:
                self.is_sent = True
                error = self._link.launch_and_wait(self.launch, self, limit_s)
            if error and is_given and self._outlives_waits:
                raise RuntimeError("Operation timed out!")
            if error:
                told = f"Timed out waiting {limit_s * 1000:.0f}ms for {self.launch.operation}"
                self._error = f"{told} operation to complete"
                if self._on_timeout is not None:
                    self._on_timeout(self.launch, self._error)
        if self._error:
            raise RuntimeError(self._error)
        return True

    @property
    def _outlives_waits(self) -> bool:
        """Whether the operation goes on when a wait gives up: gloo's collectives do."""
        own = (*TRANSFERS, "monitored_barrier")  # these have no timeout but that of their wait
        return not self.launch.stream and self.launch.operation not in own

    def is_completed(self) -> bool:
        """Return whether the operation has ended; another rank may run first."""
        self._look(_POLL_S)
        return self._completion is not None

    def is_success(self) -> bool:
        """Return whether the operation has ended without an error."""
        return self._completion is not None and not self._error

    def exception(self) -> Exception | None:
        """Return the error of the operation, or None."""
        return RuntimeError(self._error) if self._error else None

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the end: the CPU has no stream."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors that it fills."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the number of the rank in the group from which it has received."""
        found = self._completion.source if self._completion is not None else None
        return -1 if found is None else found

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:  # noqa: ANN401 - torch's
        """Return a future of the tensors that it fills.

        The caller first waits as long as other ranks can go on. A thread that waits instead is
        only started where the future must exist before the end, as with gloo.
        """
        if self._future is None:
            self._look(_FUTURE_S)
            self._ended = torch.futures.Future()
            # An error that is set in Python is not an error for C++ code, such as DDP's: it would
            # take the exception for the tensors. An exception of a callback is an error for both.
            self._future = self._ended.then(self._result_of_future)
            if self._completion is not None:
                self._settle()
            else:
                # It counts as a thread of the test: while it waits, the caller may still work.
                threading.Thread(target=self._wait_and_settle, name="future", daemon=True).start()
        return self._future

    def _look(self, limit_s: float) -> None:
        """Wait while other ranks can go on, but not for long."""
        if self._completion is None and not is_own_thread():
            self.send()
            self._link.wait([self.launch.number], limit_s, may_return=True)

    def _wait_and_settle(self) -> None:
        with contextlib.suppress(RuntimeError):  # the future gets it
            self.wait()
        self._settle()

    def _settle(self) -> None:
        self._ended.set_result(None)

    def _result_of_future(self, _: object) -> list[Tensor]:
        if self._error:
            raise RuntimeError(self._error)
        return self._outputs


def send_together(link: ExchangeLink, works: Sequence[SimulatedWork]) -> None:
    """Send launches that start together."""
    for each in works:
        each.is_sent = True
    launches = [each.launch for each in works]
    receivers = {each.launch.number: each for each in works}
    link.launch(receivers, launches, min(each.timeout_s for each in works))


class SimulatedWorks(Work):  # type: ignore[misc]
    """Several operations that were launched as one."""

    def __init__(self, works: Sequence[SimulatedWork]) -> None:
        """Make the handle of operations that have been launched."""
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the end of all of them."""
        for each in self._works:
            each.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all of them have ended."""
        found = [each.is_completed() for each in self._works]  # each of them may let others run
        return all(found)

    def is_success(self) -> bool:
        """Return whether all of them have ended without an error."""
        return all(each.is_success() for each in self._works)

    def synchronize(self) -> None:
        """Wait for the end of all of them."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the end of all of them: the CPU has no stream."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Return the tensors that they fill."""
        return [tensor for each in self._works for tensor in each.result()]

    def get_future(self) -> Any:  # noqa: ANN401 - torch's
        """Return a future of the tensors that they fill."""
        every = torch.futures.collect_all([each.get_future() for each in self._works])
        return every.then(lambda _: self.result())
