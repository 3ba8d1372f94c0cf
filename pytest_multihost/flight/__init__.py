"""Judge a world from what torch's flight recorders have dumped of it, after the fact.

`recording` is what one rank's dump holds, `dump_files` finds and reads a folder of them, `launched`
joins them: who has launched which operation of which group. `progress` tells how far each rank has
come, `clocks` how far the hosts' clocks are apart, `told_world` makes the world that is judged, and
`remarks` are what dumps show besides.
"""

from pytest_multihost.flight.dump_files import DumpFolder, is_dump_folder, read_dumps
from pytest_multihost.flight.told_world import judge_dumps

__all__ = ["DumpFolder", "is_dump_folder", "judge_dumps", "read_dumps"]
