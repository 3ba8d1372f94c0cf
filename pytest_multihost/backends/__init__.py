"""How ranks form a process group. torch and jax are imported inside functions only."""
