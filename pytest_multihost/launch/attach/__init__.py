"""Worlds whose ranks are started by several processes: torchrun, srun, mpirun.

`launcher_env` reads the launcher's variables, `rendezvous` connects the processes,
`handshake` authenticates them, `world` starts ranks through all of them.

`peer` is another process of the run as the controller sees it.
"""

from pytest_multihost.launch.attach.launcher_env import Membership, read_membership
from pytest_multihost.launch.attach.peer import Peer
from pytest_multihost.launch.attach.rendezvous import Connector, Listener, given_secret
from pytest_multihost.launch.attach.world import AttachLauncher, sites_for

__all__ = [
    "AttachLauncher",
    "Connector",
    "Listener",
    "Membership",
    "Peer",
    "given_secret",
    "read_membership",
    "sites_for",
]
