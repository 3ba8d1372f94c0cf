"""Runs of pytest over several processes that a launcher has started.

`options` finds out whether this is one, and this process's part in it. `controller` has the
additions to an ordinary run in rank 0's process, `agent` the work of every other
process; both are imported only where they are needed.
"""

from pytest_multihost.pytest_plugin.attach.options import (
    ATTACHED_PLUGIN,
    add_attach_option,
    attach,
    peers_of,
    read_role,
)

__all__ = ["ATTACHED_PLUGIN", "add_attach_option", "attach", "peers_of", "read_role"]
