"""The service "simulated" of a world: it reads whether the exchange has proven a hang.

Each run with a multihost test imports this module, but few run a simulated world. So the code of
the exchange is imported when one starts.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.spec import ServicePart
from pytest_multihost.core.services import Opening, Service, ServiceKind

NAME = "simulated"

_INTERVAL_S = 0.05

_ANSWER_S = 1.0
"""How long the exchange may take to answer; on a busy machine it may have to wait for its turn."""

_QUIET_S = 2.2
"""How long the exchange and the ranks must have sent each other nothing for the kernel's view of
the ranks to prove a hang.

The snapshots of a proof are up to two seconds apart. A busy machine may need longer for them."""

PART = ServicePart(
    server="pytest_multihost.extensions.simulated.server_part:start",
    rank="pytest_multihost.extensions.simulated.in_rank:join",
    one_machine=("backend='simulated'", "backend='gloo'"),
)


@dataclass(slots=True)
class _Exchange:
    """The process of an exchange, as a connection to it shows it.

    Attributes:
        connection: None before the first check.
    """

    address: str
    connection: socket.socket | None = None

    def check(self) -> None:
        """Check that the process lives.

        Raises:
            LaunchError: It has ended. All ranks have lost their connections to it.
        """
        if self.connection is None:
            self._connect()
            return
        try:
            has_ended = not self.connection.recv(1)
        except BlockingIOError:
            return
        except OSError:
            has_ended = True
        if has_ended:
            raise _lost()

    def _connect(self) -> None:
        from pytest_multihost.extensions.simulated.link import short_path

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_S)
            with short_path(self.address) as path:
                connection.connect(path)
        except ConnectionRefusedError:
            connection.close()
            raise _lost() from None
        except OSError:  # it is too busy: the next turn tries again
            connection.close()
        else:
            connection.settimeout(0.0)
            self.connection = connection

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _lost() -> LaunchError:
    return LaunchError(
        "the process that exchanges the messages of the simulated ranks has ended",
        seen="It was killed, perhaps because memory ran out, or it has printed its error.",
    )


def _open(opening: Opening) -> Service:
    from pytest_multihost.extensions.simulated.link import ask_exchange
    from pytest_multihost.extensions.simulated.server_part import exchange_address
    from pytest_multihost.extensions.simulated.standing import read_standing

    folder, watchdog = opening.scratch, opening.watchdog

    def has_proof(deadline_s: float) -> bool:
        standing = read_standing(folder)
        return standing.is_still and standing.until_s >= deadline_s and watchdog.early == "fail"

    def permits_proof(deadline_s: float) -> bool:
        found = ask_exchange(exchange_address(folder), _ANSWER_S)
        if found is None or not found.is_idle or found.until_s < deadline_s:
            return False
        return found.last_s <= min(watchdog.seen_since_s, time.monotonic() - _QUIET_S)

    exchange = _Exchange(exchange_address(folder))
    return Service(
        name=NAME,
        interval_s=lambda: _INTERVAL_S,
        has_proof=has_proof,
        permits_proof=permits_proof,
        check=exchange.check,
        close=exchange.close,
    )


SIMULATED_SERVICE = ServiceKind(name=NAME, open=_open, part=PART)
