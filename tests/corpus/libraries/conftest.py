"""These programs are expected to be judged as those of the corpus itself are."""

pytest_plugins = ["corpus_plugin"]
