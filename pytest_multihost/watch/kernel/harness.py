"""What of the machine belongs to the harness itself."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_multihost.watch.kernel.sockets import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessProcesses:
    """What of this machine belongs to the harness and so cannot end a wait of the test.

    Attributes:
        servers: Processes that hold ends of descriptors and do nothing with them: the server, from
            which ranks inherit. Only parents of ranks are believed to be that.
        controllers: Processes at the other end of the ranks' channels: the controller.
        paths: Files that only threads of the harness wait for, as patterns of the whole path; a
            star stands for part of one name.
        socket_tables: Netlink sockets that read the socket tables of the network namespaces of the
            world's hosts, by the namespace's name.
        companions: Other processes of the harness: children of the reaper that no rank has left.
        reaper: The process that inherits the ranks' orphans; its other children are no part of the
            harness.
    """

    servers: frozenset[int] = frozenset()
    controllers: frozenset[int] = frozenset()
    paths: tuple[str, ...] = ()
    socket_tables: Mapping[str, Table] = field(default_factory=dict)
    companions: frozenset[int] = frozenset()
    reaper: int | None = None

    def is_path(self, path: str) -> bool:
        """Return whether a path is one that only threads of the harness wait for."""
        return any(
            fnmatch.fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")
            for pattern in self.paths
        )
