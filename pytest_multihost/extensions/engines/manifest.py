"""The subcommand ``multihost manifest``: prints a JobSet that runs tests in pods of Kubernetes.

The pods attach to each other as processes of any launcher do. The text is YAML; values are written
as JSON, which is valid YAML.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.extensions.engines.engine import split_words

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""The name of a JobSet; names of pods, which contain it, are limited to 63 characters."""

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
"""Where a pod of an indexed job finds its index."""

_TEMPLATE = """\
# Runs pytest in {nodes} pods, one on each node. The pods authenticate each other by a secret:
#   kubectl create secret generic {name} --from-literal=secret="$(openssl rand -hex 32)"
#   kubectl apply -f this-file
#   kubectl logs -f jobs/{name}-node-0    # the output of pytest, which is in the first pod
#   kubectl wait --for=condition=Completed jobset/{name}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "{name}"
spec:
  network: {{enableDNSHostnames: true, publishNotReadyAddresses: true, subdomain: "{name}"}}
  failurePolicy: {{maxRestarts: 0}}
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          completions: {nodes}
          parallelism: {nodes}
          backoffLimit: 0
          template:
            metadata:
              labels: {{app: "{name}"}}
            spec:
              restartPolicy: Never
              affinity:
                podAntiAffinity:
                  requiredDuringSchedulingIgnoredDuringExecution:
                    - topologyKey: kubernetes.io/hostname
                      labelSelector: {{matchLabels: {{app: "{name}"}}}}
              containers:
                - name: pytest
                  image: {image}
                  command: {command}
                  env:
                    - {{name: PYTEST_MULTIHOST_SIZE, value: "{nodes}"}}
                    - {{name: PYTEST_MULTIHOST_ADDRESS, value: "{name}-node-0-0.{name}:7777"}}
                    - {{name: PYTEST_MULTIHOST_SECRET_FILE, value: /secret/secret}}
                    - name: PYTEST_MULTIHOST_RANK
                      valueFrom:
                        fieldRef:
                          fieldPath: {index}
                  # Native frames in stacks; everything else works without it.
                  securityContext: {{capabilities: {{add: [SYS_PTRACE]}}}}
{resources}                  volumeMounts:
                    - {{name: secret, mountPath: /secret, readOnly: true}}
                    - {{name: shm, mountPath: /dev/shm}}
              volumes:
                - {{name: secret, secret: {{secretName: "{name}", defaultMode: 0400}}}}
                - {{name: shm, emptyDir: {{medium: Memory}}}}
"""


def add_manifest(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "manifest", help="print a manifest that runs the tests on Kubernetes"
    )
    parser.set_defaults(act=_print)
    parser.add_argument("kind", choices=("jobset",), help="jobset: one pod on each node")
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="number of nodes")
    parser.add_argument("--image", required=True, help="image with the project and this package")
    parser.add_argument("--name", default="worlds", help="name of the JobSet and of its secret")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of each node")
    parser.add_argument(
        "--pytest", default="", metavar="ARGS", help="more arguments for pytest, as in '-x tests'"
    )


def _print(options: argparse.Namespace, _: pluggy.HookRelay) -> int:
    text = jobset(
        name=options.name,
        nodes=options.nodes,
        image=options.image,
        gpus=options.gpus,
        pytest_args=split_words("--pytest", options.pytest),
    )
    sys.stdout.write(text)
    return 0


def jobset(*, name: str, nodes: int, image: str, gpus: int, pytest_args: list[str]) -> str:
    """Return a JobSet that runs pytest in one pod on each node.

    Args:
        name: Name of the JobSet and of its secret.

    Raises:
        SettingError: Kubernetes would refuse a value.
    """
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"--name: {shown(name)} cannot be the name of a JobSet",
            remedy="It may have small letters, digits and hyphens, at most 40.",
        )
    if nodes < 1 or gpus < 0:
        raise SettingError("--nodes and --gpus must be positive numbers")
    limits = f"                  resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    command = ["python", "-m", "pytest", "--multihost-join", *pytest_args]
    return _TEMPLATE.format(
        name=name,
        index=_INDEX,
        nodes=nodes,
        image=json.dumps(image),
        command=json.dumps(command),
        resources=limits if gpus else "",
    )
