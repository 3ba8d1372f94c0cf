"""Do hostile inputs do more than end their own connection? Fuzz what an attached run listens to.

    python benchmarks/fuzz.py [--inputs 100000] [--seed N]

The inputs are shared out evenly over the targets of tests/shared/hostile.py: both sides of the
handshake, authenticated frames that were changed, and messages of other shapes. Told is how many
inputs each has taken. Exits with an exception and the smallest input that does harm.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/shared")]

from hostile import TARGETS, fuzz  # noqa: E402 - found by the path above

EVERY = 500


def main() -> None:
    """Fuzz all targets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    asked = parser.parse_args()
    each, total, seconds = -(-asked.inputs // len(TARGETS)), 0, 0.0
    print(f"{asked.inputs} inputs, --seed {asked.seed}")
    for target in TARGETS:

        def show(taken: int, name: str = target.name) -> None:
            if taken % EVERY == 0:
                print(f"\r{name}: {taken} of {each}", end="", file=sys.stderr, flush=True)

        done = fuzz(target, each, number=asked.seed, progress=show)
        total, seconds = total + done.inputs, seconds + done.seconds
        print(f"\r{done.name}: {done.inputs} inputs in {done.seconds:.0f} s, no harm", flush=True)
    print(f"{total} inputs in {seconds:.0f} s: each ended at most its own connection")


if __name__ == "__main__":
    main()
