"""The console script `multihost`.

* `main` defines the command line and runs a command; plugins add commands with the hook
  `pytest_multihost_commands`.
* `run` runs a script in ranks, without pytest. `joined_script` lets the processes of a launcher run
  it together.
* `torchrun_options` are those that it takes from torchrun, `program` is the Python program behind a
  command.
* `screen` shows the ranks' output, `world_page` the page of a world that is no test's attempt.
* `rejudged` judges attempts again from their artifacts.
* `explainer` is the interface of plugins that explain other kinds of folders.
"""
