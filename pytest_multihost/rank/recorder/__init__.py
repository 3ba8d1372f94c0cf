"""Record which operations a rank is in; what it has from whom is in torch.py, jax.py, harness.py."""
