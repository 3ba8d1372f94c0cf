"""The manifest that runs tests in pods of Kubernetes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.engines.attach import Rendezvous
from pytest_multihost.extensions.engines.manifest import jobset
from pytest_multihost.testing import SettingError

pytestmark = pytest.mark.unit

SCHEMA = json.loads((Path(__file__).parent / "jobset.schema.json").read_text())


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
    jsonschema.validate(read(**values), SCHEMA)


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
