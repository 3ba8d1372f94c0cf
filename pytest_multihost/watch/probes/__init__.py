"""Take stacks: faulthandler's, py-spy's, native frames; ask torch's flight recorder."""

from pytest_multihost.watch.probes.dump import dump_stacks, request_dump
from pytest_multihost.watch.probes.pyspy import PySpySampler

__all__ = ["PySpySampler", "dump_stacks", "request_dump"]
