"""Machine code, as far as it tells a return address from a word that only looks like one.

A return address lies behind the instruction that has called. Pointers to functions and numbers that
happen to point into code do not, but for a few in a thousand; and a stack is full of them: a new
thread's is often an ended thread's, with what that has left.
"""

from __future__ import annotations

BYTES = 8
"""How many bytes before an address are needed to judge it."""

# Intel's manual, volume 2, CALL: E8 and a distance of four bytes, or FF with 2 in the middle bits
# of the next byte, of which the whole is two to seven bytes long.
_NEAR, _NEAR_SIZE = 0xE8, 5
_INDIRECT, _INDIRECT_SIZES = 0xFF, (2, 3, 4, 6, 7)

# Arm's manual, C6.2: BL; BLR, and its forms with a signed address.
_BRANCHES = ((0xFC000000, 0x94000000), (0xFFFFFC1F, 0xD63F0000), (0xFEFFF800, 0xD63F0800))


def is_call(before: bytes, machine: str) -> bool:
    """Tell whether code that ends in these bytes ends in a call.

    Args:
        before: The last `BYTES` of it.
        machine: As `os.uname` has it; of one that is not known, anything may be a call.
    """
    if machine == "x86_64":
        return before[-_NEAR_SIZE] == _NEAR or any(
            before[-size] == _INDIRECT and before[1 - size] >> 3 & 7 == 2  # noqa: PLR2004 - above
            for size in _INDIRECT_SIZES
        )
    if machine == "aarch64":
        word = int.from_bytes(before[-4:], "little")
        return any(word & mask == value for mask, value in _BRANCHES)
    return True
