"""What ranks wait in where no recorder tells: inferred from native frames, sockets and stacks."""
