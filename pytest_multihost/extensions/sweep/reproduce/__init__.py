"""Writes a script that shows a weakness without this plugin, and the text of an issue.

* `find` finds the run of a token in the files of sweeps.
* `shims` writes the lines that disturb a rank, and `script` the whole script. They are pure.
* `trial` runs the script, and `evidence` finds the weakness in its output.
* `issue` writes the text of the issue; `permalinks` finds lines of packages in their repositories.
* `own_file` finds the files of the project that a script imports, and refuses others.
* `command` is ``multihost reproduce``.
"""
