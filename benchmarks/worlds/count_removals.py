"""A plugin that counts the files and folders that the process of pytest removes, its end included.

What its server and the ranks remove does not count.
"""

import atexit
import json
import os
import pathlib
import sys

CONTROLLER = os.getpid()
removed = []


def count(event, _):
    if event in ("os.remove", "os.rmdir") and os.getpid() == CONTROLLER:
        removed.append(event)


@atexit.register
def write():
    if os.getpid() == CONTROLLER:
        pathlib.Path(os.environ["PLACE"], "removed.json").write_text(json.dumps(len(removed)))


sys.addaudithook(count)
