"""What the results of a sweep depend on, so that no sweep takes over the results of other code.

`in_rank` records the files of code that each rank loads; it is the only module here for ranks.
`service` makes it part of a world. `code` reads these files, and `settings` collects options and
variables. `comparison` says what differs from an earlier sweep; it is pure.
"""
