"""Record which operations a rank is in: torch's, jax's, the harness's own."""
