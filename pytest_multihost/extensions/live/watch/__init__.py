"""Watches plain tests that start their own ranks, and says which rank the others wait for.

* `option` is `--multihost-watch`.
* `ancestor` puts a process above pytest, which passes on signals and the exit status.
* `watcher` is the work of this process: it reads and judges the processes below it.
* `judging` finds and judges the jobs; the watcher imports it for its first look.
* `strays` finds the processes that have left the tree below the watcher.
* `tree` reads the processes below another one, and how much they work.
* `ending` ends ranks, with `--multihost-watch=end`.
* `exchange` has the files with which pytest tells the watcher its test, and the watcher answers.
* `in_pytest` has the hooks in pytest's own process, or in a worker of xdist.
* `parser` and `command` are ``multihost watch``.
"""
