"""Real hangs are judged again, from what was seen of them: facts.json of the corpus's programs.

benchmarks/record_facts.py records them, with the diagnosis that is right.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.core.attempt import rejudge
from pytest_multihost.core.blame import Judgement
from pytest_multihost.testing import files_below

RECORDED = sorted(Path(__file__).parents[2].joinpath("recorded").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_what_was_seen_of_a_hang_gives_the_same_diagnosis_again(path: Path, tmp_path: Path) -> None:
    """Kind, culprits, the ranks that wait, and the cycle."""
    record: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("facts", "verdict"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record[name]))
    again: Judgement = rejudge(tmp_path, files_below([tmp_path])).judged
    assert again.diagnosis is not None
    found = again.diagnosis
    told = {
        "kind": found.kind,
        "culprits": list(found.culprits),
        "waiting": list(found.waiting),
        "cycle": list(found.cycle),
    }
    assert told == record["told"]


def test_each_kind_of_hang_was_recorded() -> None:
    """A record that is lost is noticed."""
    kinds = {json.loads(gzip.decompress(each.read_bytes()))["told"]["kind"] for each in RECORDED}
    assert kinds >= {"straggler", "mismatch", "deadlock", "died", "finished", "livelock", "raised"}
    assert len(RECORDED) > 40
