"""The console script `multihost`.

`main` describes the command line and runs a command; plugins add others over the hook
`pytest_multihost_commands`. `run` runs a script in ranks, without pytest, and `screen` shows what
they print, and the page of a world that is no attempt of a test. `rejudged` judges attempts again
from their artifacts, and `explainer` says what a plugin gives that explains folders of other kinds.
"""
