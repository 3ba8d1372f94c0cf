"""What the corpus of latent weaknesses asks of pytest."""

pytest_plugins = ["latent_plugin"]
