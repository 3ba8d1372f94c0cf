"""Worlds whose ranks are started by several processes of torchrun, srun or mpirun.

`rendezvous` finds the meeting point of the processes and authenticates them; `connect` connects
them. `peer` is another process of the run from the controller's view, and `world` starts ranks
through all processes.
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
