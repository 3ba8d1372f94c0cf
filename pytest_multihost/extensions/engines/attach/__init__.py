"""Worlds whose ranks are started by several processes: torchrun, srun, mpirun.

`rendezvous` says where the processes meet and how they authenticate each other, `connect` connects
them. `peer` is another process of the run as the controller sees it, `world` starts ranks through
all of them.
"""

from pytest_multihost.extensions.engines.attach.connect import Connector, Listener
from pytest_multihost.extensions.engines.attach.peer import Peer
from pytest_multihost.extensions.engines.attach.rendezvous import Rendezvous
from pytest_multihost.extensions.engines.attach.world import AttachLauncher, hosts_at, pack

__all__ = [
    "AttachLauncher",
    "Connector",
    "Listener",
    "Peer",
    "Rendezvous",
    "hosts_at",
    "pack",
]
