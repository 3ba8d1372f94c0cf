"""Torch's messages on collectives that do not match, with TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import of_single_lines
from pytest_multihost.extensions.logs.said import Said, Waited

MESSAGE = "message"
"""How the key of the group begins that such a message does not name."""

_SIDE = re.compile(
    r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d{1,18}))?"
    r",? ?OpType=(\w{1,60})(?:, TensorShape=\[([\d, ]{0,200})\])?"
)


def _read(line: Line) -> Iterator[Said]:
    found = _SIDE.findall(line.text)
    number = next((int(each[1]) for each in found), 0)  # the other one's is not transmitted
    for rank, _, name, shape in found if len(found) > 1 else ():
        sizes = [int(each) for each in shape.replace(" ", "").split(",") if each][:16]
        sent = 1
        for each in sizes:
            sent *= each
        yield Waited(
            line.at,
            int(rank),
            name,
            inner=int(rank),
            group=f"{MESSAGE} {number}",
            sequence=number + 1,
            sent=sent if sizes else None,
            shape=f"[{','.join(map(str, sizes))}]" if sizes else "",
        )


MISMATCHES = of_single_lines("mismatches", (b"Detected mismatch between collectives",), _read)
