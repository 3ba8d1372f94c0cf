"""Worlds whose hosts are made from Linux namespaces, and the faults of the network between them.

`network` builds a world's hosts and holds them, with the `links` between them. `network_faults`
performs faults in the netfault daemon, with `relay` for what the kernel cannot do.
"""
