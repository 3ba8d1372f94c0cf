"""An object store that can be made slow, narrow or failing, for tests of what reads from one."""

from pytest_multihost.nemesis.object_store.store import (
    ObjectStore,
    StoreRule,
    serving,
    why_no_store,
)

__all__ = ["ObjectStore", "StoreRule", "serving", "why_no_store"]
