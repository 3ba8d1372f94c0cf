"""Worlds whose ranks are started by several processes of torchrun, srun or mpirun.

`rendezvous` finds the meeting point of the processes and authenticates them; `connect` connects
them, and `admission` decides which connections become peers. `peer` is another process of the run
from the controller's view, and `world` starts ranks through all processes. `archives` carry the
files of ranks on other machines.
"""

from pytest_multihost.extensions.engines.attach.archives import pack
from pytest_multihost.extensions.engines.attach.connect import (
    Connector,
    Listener,
    detect_local_peers,
    require_one_machine,
)
from pytest_multihost.extensions.engines.attach.peer import Peer
from pytest_multihost.extensions.engines.attach.rendezvous import Rendezvous
from pytest_multihost.extensions.engines.attach.world import (
    PeersLauncher,
    hosts_of,
    with_controller,
)

__all__ = [
    "Connector",
    "Listener",
    "Peer",
    "PeersLauncher",
    "Rendezvous",
    "detect_local_peers",
    "hosts_of",
    "pack",
    "require_one_machine",
    "with_controller",
]
