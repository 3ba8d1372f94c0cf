"""Reports of NCCL RAS: how many ranks of a communicator have launched how many operations.

RAS lists the smaller number of ranks. These may be ahead of all others, so the list blames no rank.
It also says of which processes it has no data; the ranks that it lists there may be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.said import Behind, Remark, Said

_NAME = re.compile(r"ranks have different (\w{1,60}) operation counts")
_COUNT = re.compile(r"(\d{1,7}) ranks? (?:has|have) launched up to operation (\d{1,18})")
_RANK = re.compile(r"^\s{0,8}Rank (\d{1,7}) ")
_LOST = re.compile(r"^\s{0,8}Process (\d{1,9}) on node (\S{1,100})")
_NO_DATA = "Missing communicator data from"
_BEHIND = 40
_MOST = 5000


def _begin() -> Parse:
    open_ones: dict[str, Behind] = {}
    left = 0

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        nonlocal left
        text = line.text
        if _NO_DATA in text:
            left = _BEHIND
            return left
        if left and (lost := _LOST.match(text)):
            what = f"NCCL RAS has no data of process {lost[1]} on {lost[2]}"
            say(Remark(line.at, f"{what}: it is gone, or its machine cannot be reached"))
        left = max(0, left - 1)
        if named := _NAME.search(text):
            if len(open_ones) > _MOST:
                open_ones.clear()
            open_ones[line.stream] = Behind(line.at, named[1], ())
            return _BEHIND
        known = open_ones.get(line.stream)
        if known is None:
            return left
        if count := _COUNT.search(text):
            counts = (*known.counts, (int(count[1]), int(count[2])))
            known = Behind(known.at, known.name, counts[:_BEHIND], known.listed)
        elif rank := _RANK.match(text):
            listed = (*known.listed, int(rank[1])) if len(known.listed) < _MOST else known.listed
            known = Behind(known.at, known.name, known.counts, listed)
        else:
            return 0
        open_ones[line.stream] = known
        if known.listed:
            say(known)  # a longer list of the same replaces it
        return _BEHIND

    return parse


NCCL_RAS = Reader("NCCL RAS", (b"operation counts", _NO_DATA.encode()), _begin)
