"""A trace of a world for Perfetto."""
