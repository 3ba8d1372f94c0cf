"""What ranks wait in where no recorder tells: inferred from native frames, sockets and stacks."""

from pytest_multihost.blame.inferred.native_frames import operation_of, plain_name
from pytest_multihost.blame.inferred.sockets import waits_at_sockets
from pytest_multihost.blame.inferred.stacks import with_stacks

__all__ = ["operation_of", "plain_name", "waits_at_sockets", "with_stacks"]
