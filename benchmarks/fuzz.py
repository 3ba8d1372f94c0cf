"""Do hostile inputs do more than end their own connection, or be refused? Fuzz what reads them.

    python benchmarks/fuzz.py [--inputs 100000] [--seed N] [--only connections|files|TARGET ...]

The inputs are shared out evenly over the targets of tests/shared/hostile.py (both sides of the
handshake of an attached run, authenticated frames that were changed, messages of other shapes) and
of tests/shared/foreign.py (dumps of flight recorders, logs, sweep.json, facts.json, tokens,
environments, accept files, stacks, saved arrays, archives and slot pages of nodes, mapped
libraries). Prints how many inputs each has taken, what became of them, and the peak of memory.
Exits with an exception and the smallest input that does harm, or if memory exceeds 300 MB, or if
one input takes more than 5 s.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/shared")]

from foreign import FOREIGN  # noqa: E402 - found by the path above
from hostile import TARGETS, fuzz  # noqa: E402

EVERY = 500
MAX_MB = 300
MAX_S = 5.0
KINDS = {"connections": TARGETS, "files": FOREIGN}


def main() -> None:
    """Fuzz all targets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    names = [*KINDS, *(each.__name__ for each in (*TARGETS, *FOREIGN))]
    parser.add_argument("--only", choices=names, nargs="+", help="some targets, or those of a kind")
    asked = parser.parse_args()
    targets = [
        target
        for kind, members in KINDS.items()
        for target in members
        if not asked.only or {kind, target.__name__} & {*asked.only}
    ]
    each, total, seconds, slowest_s = -(-asked.inputs // len(targets)), 0, 0.0, 0.0
    print(f"{asked.inputs} inputs, --seed {asked.seed}")
    for target in targets:

        def show(taken: int, name: str = target.name) -> None:
            if taken % EVERY == 0:
                print(f"\r{name}: {taken} of {each}", end="", file=sys.stderr, flush=True)

        done = fuzz(target, each, number=asked.seed, progress=show)
        total, seconds = total + done.inputs, seconds + done.seconds
        slowest_s = max(slowest_s, done.slowest_s)
        ends = "".join(f", {count} {end}" for end, count in sorted(done.ends.items()))
        told = f"{done.inputs} inputs in {done.seconds:.0f} s, no harm{ends}"
        print(f"\r{done.name}: {told}", flush=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    told = f"{total} inputs in {seconds:.0f} s, the slowest in {slowest_s:.2f} s, {peak_mb} MB"
    print(f"{told}: no more than a connection was ended")
    if slowest_s > MAX_S:
        sys.exit(f"an input took more than {MAX_S} s")
    if peak_mb > MAX_MB:
        sys.exit(f"more than {MAX_MB} MB")


if __name__ == "__main__":
    main()
