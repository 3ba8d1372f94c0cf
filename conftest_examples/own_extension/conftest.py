pytest_plugins = ["lab"]
