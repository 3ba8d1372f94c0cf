"""The console script `multihost`.

`main` parses the command line; `rejudged` judges attempts again from their artifacts;
`merged_sweeps` joins the results of shards of sweeps.
"""
