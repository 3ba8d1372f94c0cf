"""The console script `multihost`.

`main` describes the command line and runs a command. `run` runs a script in ranks, without pytest,
`joined` lets processes that a launcher has started start them, and `screen` shows what they print,
and the page of a world that is no attempt of a test. `rejudged` judges attempts again from their
artifacts, and worlds from dumps of their flight recorders. `attached` looks at running jobs, on one
machine or several.
"""
