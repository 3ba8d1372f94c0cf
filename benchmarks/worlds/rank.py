"""One rank of a peer that has no ranks of its own: start, work, end."""

import json
import sys

import work


def main(rank, size, value, *place):
    work.start(rank, size, *place)
    assert work.work(size, value) == size * value
    work.end()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
