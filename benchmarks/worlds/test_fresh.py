"""An interpreter for each rank, started by hand; RANK_PROGRAM says what it runs."""

import json
import os
import socket
import subprocess
import sys


def test_one(tmp_path, value):
    size = int(os.environ["RANKS"])
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        rest = size, value, str(tmp_path), holder.getsockname()[1]
    program = os.environ.get("RANK_PROGRAM", "rank.py")
    command = [[sys.executable, program, json.dumps([rank, *rest])] for rank in range(size)]
    ranks = list(map(subprocess.Popen, command))
    assert [rank.wait() for rank in ranks] == [0] * size
