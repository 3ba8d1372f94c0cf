"""The manifest that runs tests in pods of Kubernetes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from ruamel.yaml import YAML

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.engines.attach import Rendezvous
from pytest_multihost.extensions.engines.manifest import jobset
from pytest_multihost.testing import SettingError

pytestmark = pytest.mark.unit


def read(**values: object) -> dict[str, Any]:
    """Return a manifest as Kubernetes reads it: YAML 1.1, where 0400 is an octal number."""
    given: dict[str, Any] = {
        "name": "worlds",
        "nodes": 2,
        "image": "img:1",
        "gpus": 0,
        "pytest_args": [],
        **values,
    }
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    found: dict[str, Any] = yaml.load(jobset(**given))
    return found


def is_accepted(manifest: dict[str, Any]) -> bool:
    """Return whether JobSet, Job and Pod have these fields, with values of these types.

    Kubeflow generates its models from the OpenAPI of JobSet v1alpha2 and of Kubernetes, as the CRD
    is. They drop fields that do not exist.
    """
    try:
        read_back = JobsetV1alpha2JobSet.from_dict(manifest)
    except (ValueError, AttributeError):  # the latter for a text where an object belongs
        return False
    return read_back is not None and read_back.to_dict() == manifest


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"gpus": 8, "nodes": 64},
        {"image": 'odd: "image" {x}', "pytest_args": ["-k", "a or 'b'", "--maxfail=1"]},
        {"name": "a" * 40},
    ],
)
def test_a_jobset_has_only_fields_that_exist(values: dict[str, Any]) -> None:
    """With values of their types."""
    assert is_accepted(read(**values))


FREE = ("labels", "matchLabels", "limits")
"""Maps whose keys are the user's own."""


def places_in(
    value: dict[str, Any] | list[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every field of a manifest."""
    if isinstance(value, dict) and (not path or path[-1] not in FREE):
        yield from ((*path, key) for key in value)
    found = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in found:
        if isinstance(each, dict | list):
            yield from places_in(each, (*path, key))


PLACES = list(places_in(read(gpus=1)))


def parent_of(manifest: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
    """Return the object that has a field."""
    found: dict[str, Any] = reduce(getitem, place[:-1], manifest)
    return found


def test_a_wrong_name_of_any_field_is_seen() -> None:
    """So the test above can fail at every depth."""
    assert len(PLACES) > 50
    for place in PLACES:
        manifest = copy.deepcopy(read(gpus=1))
        parent = parent_of(manifest, place)
        parent[f"{place[-1]}s"] = parent.pop(place[-1])
        assert not is_accepted(manifest), place


def test_a_wrong_type_of_any_field_is_seen() -> None:
    """A number for a text, and a text for anything else."""
    for place in PLACES:
        manifest = copy.deepcopy(read(gpus=1))
        parent = parent_of(manifest, place)
        parent[place[-1]] = 7 if isinstance(parent[place[-1]], str) else "seven"
        assert not is_accepted(manifest), place


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the container of each pod."""
    (job,) = manifest["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def test_the_pods_of_a_jobset_find_each_other(tmp_path: Path) -> None:
    """Their variables are those of one attached run."""
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    secret.chmod(0o400)
    values = {each["name"]: each.get("value") for each in container_of(read())["env"]}
    values |= {"PYTEST_MULTIHOST_RANK": "1", "PYTEST_MULTIHOST_SECRET_FILE": str(secret)}
    membership = Rendezvous.read(values, tmp_path).membership
    assert (membership.rank, membership.size) == (1, 2)
    assert membership.addresses == (("worlds-node-0-0.worlds", 7777),)


def test_only_the_owner_can_read_the_secret() -> None:
    """A file that others can read is refused by the peers."""
    job = read()["spec"]["replicatedJobs"][0]["template"]["spec"]
    volumes = {each["name"]: each for each in job["template"]["spec"]["volumes"]}
    assert volumes["secret"]["secret"]["defaultMode"] == 0o400


def test_gpus_are_asked_for_only_if_wanted() -> None:
    """As a limit of each pod."""
    assert "resources" not in container_of(read())
    assert container_of(read(gpus=4))["resources"] == {"limits": {"nvidia.com/gpu": 4}}


@pytest.mark.parametrize("values", [{"name": "Worlds"}, {"name": "a" * 41}, {"nodes": 0}])
def test_what_kubernetes_would_refuse_is_refused(values: dict[str, Any]) -> None:
    """Before it is printed."""
    with pytest.raises(SettingError):
        read(**values)


def test_the_command_prints_the_manifest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more arguments for pytest."""
    command = ["manifest", "jobset", "--nodes", "2", "--image", "img:1", "--pytest=-x tests"]
    monkeypatch.setattr("sys.argv", ["multihost", *command])
    assert main() == os.EX_OK
    printed = capsys.readouterr().out
    assert "kind: JobSet" in printed
    assert '"--multihost-attach", "-x", "tests"]' in printed
