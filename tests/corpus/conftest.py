"""The corpus's own pytest plugin is a module, since the corpus of libraries uses it, too."""

pytest_plugins = ["corpus_plugin"]
