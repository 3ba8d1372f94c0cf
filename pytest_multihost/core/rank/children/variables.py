"""The environment variables that tell the interpreters of a rank's children where to record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import pathsep
from pathlib import Path

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.recorder import WRAPPERS
from pytest_multihost.core.slots import slots_path

VARIABLE = "PYTEST_MULTIHOST_CHILD"


def child_variables(spec: RankSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which interpreters that a rank starts find `sitecustomize`.

    A world without roles has none.
    """
    if spec.role is None:
        return {}
    settings = {
        "page": str(slots_path(spec.scratch, spec.rank)),
        "stacks": f"{spec.directory}/rank-{spec.rank}.stacks",
        "rank": spec.rank,
        "size": spec.world.size,
        "role": [spec.role.ranks.start, spec.role.ranks.stop],
        "modules": [
            *(name for each in WRAPPERS if each.in_children for name in each.imported),
            *(each.module for each in spec.world.recorders),
        ],
        "recorders": [each.wrap for each in spec.world.recorders],
    }
    here = str(Path(__file__).parent)
    before = [each for each in inherited.get("PYTHONPATH", "").split(pathsep) if each != here]
    path = pathsep.join([here, *(each for each in before if each)])
    return {VARIABLE: json.dumps(settings), "PYTHONPATH": path}
