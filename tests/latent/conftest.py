"""What the corpus of latent hangs asks of pytest."""

pytest_plugins = ["latent_plugin"]
