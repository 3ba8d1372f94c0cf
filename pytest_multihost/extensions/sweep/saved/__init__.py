"""Reads the files that a test has saved, and finds damaged ones.

`look` reads the test's folder after a world has ended. `formats` says whether a file can be loaded
as a plain load of its format would. `acts` has the calls of ranks on the files, and `damage`
compares a disturbed run with the undisturbed one; both are pure.
"""

from pytest_multihost.extensions.sweep.saved.acts import NO_ACTS, Acts, acts_of
from pytest_multihost.extensions.sweep.saved.damage import Damage, find_damage
from pytest_multihost.extensions.sweep.saved.look import SavedFile, SavedFiles, look_at

__all__ = [
    "NO_ACTS",
    "Acts",
    "Damage",
    "SavedFile",
    "SavedFiles",
    "acts_of",
    "find_damage",
    "look_at",
]
