"""Publish a file: one rank writes it, all read it."""


def publish(world, path, *, patient):
    """Return what every rank reads; `patient` ranks wait for the writer."""
    if world.is_primary:
        path.write_text("step 1000")
    if patient:
        world.barrier("written")
    return path.read_text() if path.exists() else None
