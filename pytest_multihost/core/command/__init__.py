"""The console script `multihost`.

`main` describes the command line and runs a command; plugins add others over the hook
`pytest_multihost_commands`. `run` runs a script in ranks, without pytest, and `screen` shows what
they print; `world_page` is the page of a world that is no attempt of a test. `rejudged` judges
attempts again from their artifacts. `explainer` is what a plugin offers that explains folders of
other kinds, `joined_script` what it is given to run a script in processes that a launcher has
started.
"""
