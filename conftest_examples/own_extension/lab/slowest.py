"""The subcommand ``multihost slowest``."""

import json
from pathlib import Path

COUNT = 3


def show_slowest(directory):
    """Print the slowest tests of the last run; return the exit code."""
    lines = Path(directory, "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = sorted(map(json.loads, lines), key=lambda each: -each["duration_s"])
    for each in verdicts[:COUNT]:
        print(f"{each['duration_s']:6.2f} s  {each['world_size']} ranks  {each['nodeid']}")
    return 0
