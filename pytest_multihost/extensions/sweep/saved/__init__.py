"""Reads the files that a test has saved, and finds damaged ones.

`look` reads the test's folder after a world has ended. `formats` says whether a file can be loaded
as a plain load of its format would. `damage` compares a disturbed run with the undisturbed one; it
is pure.
"""

from pytest_multihost.extensions.sweep.saved.damage import Damage, find_damage
from pytest_multihost.extensions.sweep.saved.look import SavedFile, SavedFiles, look_at

__all__ = ["Damage", "SavedFile", "SavedFiles", "find_damage", "look_at"]
