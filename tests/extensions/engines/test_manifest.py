"""The manifest that runs tests in pods of Kubernetes."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from ruamel.yaml import YAML

from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.engines.attach import Rendezvous
from pytest_multihost.extensions.engines.engine import split_words
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


POD = "spec.replicatedJobs[].template.spec.template.spec"
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"

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


# What the models do not check

REQUIRED = {
    "spec.replicatedJobs[]": ("name", "template"),
    "spec.replicatedJobs[].template.spec": ("template",),
    POD: ("containers",),
    f"{POD}.containers[]": ("name",),
    f"{POD}.containers[].env[]": ("name",),
    f"{POD}.containers[].env[].valueFrom.fieldRef": ("fieldPath",),
    f"{POD}.containers[].volumeMounts[]": ("name", "mountPath"),
    f"{POD}.volumes[]": ("name",),
    f"{POD}.affinity.podAntiAffinity.{TERMS}[]": ("topologyKey",),
}
"""The fields that objects must have, by their place, of the objects that our manifest has."""

KEYS = {
    "spec.replicatedJobs": "name",
    f"{POD}.containers": "name",
    f"{POD}.containers[].env": "name",
    f"{POD}.containers[].volumeMounts": "mountPath",
    f"{POD}.volumes": "name",
}
"""Lists that are maps (x-kubernetes-list-type): no two entries have the same value of the key."""

ALLOWED = {
    "spec.failurePolicy.restartStrategy": ("Recreate", "BlockingRecreate"),
    "spec.startupPolicy.startupPolicyOrder": ("AnyOrder", "InOrder"),
    "spec.successPolicy.operator": ("All", "Any"),
    "spec.failurePolicy.rules[].action": (
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
    ),
    "spec.replicatedJobs[].dependsOn[].status": ("Ready", "Complete"),
    "spec.replicatedJobs[].template.spec.completionMode": ("NonIndexed", "Indexed"),
    f"{POD}.restartPolicy": ("Never", "OnFailure"),
}
"""The values that a field may have. The CRD has them as enums, but the last two: these are rules of
Kubernetes for every Job."""


def values_at(manifest: object, place: str) -> list[Any]:
    """Return the values at a place, of which each ``[]`` stands for all entries of a list."""
    found = [manifest]
    for name in place.split("."):
        key, is_list = name.removesuffix("[]"), name.endswith("[]")
        found = [each[key] for each in found if isinstance(each, dict) and key in each]
        found = [entry for each in found for entry in each] if is_list else found
    return found


def complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what JobSet would refuse, by the rules of its CRD and of its webhook.

    From kubernetes-sigs/jobset: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml at
    0a2be5c551fcee10134addb43a2fb2673743788e, and pkg/webhooks/jobset_webhook.go at
    01078527ec4383c3d7289b5af3e0a788324e14ec. The rules ``self == oldSelf`` are about changes.
    """
    for place, names in REQUIRED.items():
        for each in values_at(manifest, place):
            yield from (f"{place} has no {name}" for name in names if name not in each)
    for place, key in KEYS.items():
        for entries in values_at(manifest, place):
            found = [each.get(key) for each in entries]
            if len(found) != len(set(found)):
                yield f"{place} has a {key} twice"
    for place, allowed in ALLOWED.items():
        wrong = [each for each in values_at(manifest, place) if each not in allowed]
        yield from (f"{place} is {each}" for each in wrong)
    spec = manifest["spec"]
    depends = [each for each in spec["replicatedJobs"] if "dependsOn" in each]
    if any(len(each["dependsOn"]) > 1 for each in depends):  # maxItems
        yield "dependsOn has more than one entry"
    if depends and spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
        yield "StartupPolicy and DependsOn APIs are mutually exclusive"
    if spec.get("ttlSecondsAfterFinished", 0) < 0:  # minimum
        yield "ttlSecondsAfterFinished is negative"
    yield from (f"{each} is no DNS label" for each in names_in(manifest) if not LABEL(each))


LABEL = re.compile(r"(?=.{1,63}$)[a-z]([-a-z0-9]*[a-z0-9])?").fullmatch
"""Matches a label as of RFC 1035."""


def names_in(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield the subdomain, and the longest names of jobs and pods that JobSet makes."""
    yield manifest["spec"]["network"]["subdomain"]
    for each in manifest["spec"]["replicatedJobs"]:
        job = f"{manifest['metadata']['name']}-{each.get('name')}-{each['replicas'] - 1}"
        yield job
        yield f"{job}-{each['template']['spec'].get('completions', 1) - 1}-abcde"


@pytest.mark.parametrize(
    "values", [{}, {"gpus": 8, "nodes": 64}, {"name": "a" * 40, "nodes": 9999}]
)
def test_a_jobset_keeps_the_rules_of_its_schema(values: dict[str, Any]) -> None:
    """Those of the CRD, and those that are checked when one is created."""
    assert list(complaints(read(**values))) == []
    for place in (*REQUIRED, *KEYS):
        assert values_at(read(**values), place), place


WRONG: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("has no containers", lambda it: pod_of(it).pop("containers")),
    ("has no topologyKey", lambda it: terms_of(it)[0].pop("topologyKey")),
    ("has no fieldPath", lambda it: container_of(it)["env"][-1]["valueFrom"]["fieldRef"].clear()),
    ("has a name twice", lambda it: container_of(it)["env"].append({"name": RANK})),
    ("has a mountPath twice", lambda it: mounts_of(it).append({**mounts_of(it)[0], "name": "x"})),
    ("restartPolicy is Always", lambda it: pod_of(it).update(restartPolicy="Always")),
    ("completionMode is Index", lambda it: job_of(it)["spec"].update(completionMode="Index")),
    ("is Again", lambda it: it["spec"]["failurePolicy"].update(restartStrategy="Again")),
    ("is negative", lambda it: it["spec"].update(ttlSecondsAfterFinished=-1)),
    ("is no DNS label", lambda it: it["metadata"].update(name="a" * 55)),
    ("exclusive", lambda it: depend(it, 1)),
    ("more than one entry", lambda it: depend(it, 2)),
]


@pytest.mark.parametrize(("words", "act"), WRONG, ids=[words for words, _ in WRONG])
def test_a_rule_that_is_broken_is_seen(words: str, act: Callable[[dict[str, Any]], object]) -> None:
    """So the test above can fail by each kind of rule."""
    manifest = copy.deepcopy(read(gpus=1))
    act(manifest)
    assert any(words in each for each in complaints(manifest))


RANK = "PYTEST_MULTIHOST_RANK"


def depend(manifest: dict[str, Any], count: int) -> None:
    """Make the job depend on others, in a JobSet that starts them in order."""
    manifest["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    others = [{"name": f"other-{index}", "status": "Ready"} for index in range(count)]
    manifest["spec"]["replicatedJobs"][0]["dependsOn"] = others


def job_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the template of the only kind of jobs."""
    (job,) = manifest["spec"]["replicatedJobs"]
    found: dict[str, Any] = job["template"]
    return found


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of each pod."""
    found: dict[str, Any] = job_of(manifest)["spec"]["template"]["spec"]
    return found


def terms_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what keeps pods from sharing a node."""
    found: list[dict[str, Any]] = pod_of(manifest)["affinity"]["podAntiAffinity"][TERMS]
    return found


def mounts_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each container mounts."""
    found: list[dict[str, Any]] = container_of(manifest)["volumeMounts"]
    return found


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the container of each pod."""
    (container,) = pod_of(manifest)["containers"]
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
    assert '"--multihost-join", "-x", "tests"]' in printed


@pytest.mark.parametrize("name", ["on", "yes", "null", "y"])
def test_a_name_that_yaml_reads_as_a_truth_stays_a_name(name: str) -> None:
    """YAML 1.1, which Kubernetes reads, takes some words for values."""
    assert read(name=name)["metadata"]["name"] == name


def test_a_missing_quotation_mark_is_a_mistake_of_the_caller() -> None:
    """It is told in one sentence."""
    with pytest.raises(SettingError, match=r"--pytest: .* cannot be read"):
        split_words("--pytest", "-k 'x")
