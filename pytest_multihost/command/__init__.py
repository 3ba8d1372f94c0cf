"""The console script `multihost`.

`main` runs a command, of which `options` describes the command line; `run` runs a script in ranks,
without pytest, `screen` shows what they print, and `joined` has processes that a launcher has
started start them, and `scratch` is the temporary directory of these; `rejudged` judges attempts
again from their artifacts, and `dumps` worlds from the dumps of their flight recorders; `attached`
looks at running jobs, `attached_together` at those on several machines, and `judged_page` is what
is printed of all these. `merged_sweeps` joins the results of shards of sweeps.
"""
