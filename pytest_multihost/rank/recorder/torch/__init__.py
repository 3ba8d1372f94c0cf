"""Record what a rank does with other ranks through torch.distributed."""

from pytest_multihost.rank.recorder.torch.install import install

__all__ = ["install"]
