"""The built-in engines.

`command_node` is a node that a local command reaches; `commands` and `slurm` have such nodes.
`ray_engine` is pytest's side of Ray, `ray_client` a process beside pytest, and `ray_peer` runs on
the nodes.
"""
