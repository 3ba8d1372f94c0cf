"""Runs in which pytest has no rank, and an engine starts a peer on each node.

* `options` are the options of such runs; `order` is the order for a peer, and `orders_of_run`
  derives it from pytest's own command line.
* `start_peer` runs on a node: it follows an order. `ordered_peer` is the plugin that makes its
  pytest a peer.
* `line` carries the bytes of a connection both ways, in the processes that `carrier` starts beside
  the driver and beside each peer. `heartbeats` tell a peer that the driver's machine is in reach.
  `carrying_sockets` takes delays out of the connection to a node.
* `versions` compares the software of all processes. `lingering` keeps ranks alive after SIGTERM.
* `nodes` waits for the nodes and admits their peers.
* `plugin` is the plugin in pytest's process, which starts worlds through them.
"""
