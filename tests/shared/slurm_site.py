"""Slurm with three nodes, each a machine of namespaces with a slurmd of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from machines import Site, connected_machines
from runs import await_that
from slurm_cluster import daemon, munge_command, run, skip_without_slurm

NODES = ("n1", "n2", "n3")
CONFIGURATION = """
ClusterName=site
SlurmctldHost={host}(10.97.0.1)
SlurmUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmctldLogFile={folder}/slurmctld.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=n1 NodeAddr=10.97.0.11 CPUs=8 CoresPerSocket=8 RealMemory=1000
NodeName=n2 NodeAddr=10.97.0.12 CPUs=8 CoresPerSocket=8 RealMemory=1000
NodeName=n3 NodeAddr=10.97.0.13 CPUs=8 CoresPerSocket=8 RealMemory=1000
PartitionName=all Nodes=n[1-3] Default=YES PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=n[1-3] PriorityTier=2
"""
"""%n is the name of a node. Jobs of `urgent` take the nodes of other jobs."""


@dataclass(frozen=True)
class SlurmSite:
    """A Slurm cluster with three nodes.

    Attributes:
        folder: Has everything that Slurm's daemons write: logs, states and jobs that have ended.
        variables: By which Slurm's commands find it.
        daemons: Each node's slurmd, by the node's name.
    """

    site: Site
    folder: Path
    variables: Mapping[str, str]
    daemons: Mapping[str, subprocess.Popen[bytes]]

    def ask(self, *command: str) -> str:
        """Return what one of Slurm's commands prints."""
        inside = {**os.environ, **self.variables}
        return run([*self.site.door, *command], self.folder, inside).stdout


@contextmanager
def slurm_site() -> Iterator[SlurmSite]:
    """Run Slurm's daemons on three machines of namespaces; skip where that is not possible."""
    skip_without_slurm()
    with (
        tempfile.TemporaryDirectory() as name,
        connected_machines(NODES) as machines,
        ExitStack() as daemons,
    ):
        folder, host = Path(name), socket.gethostname().partition(".")[0]
        folder.chmod(0o755)
        for each in ("state", *NODES):
            (folder / each).mkdir()
        (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder))
        variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        environment = {**os.environ, **variables}
        daemons.enter_context(daemon(munge_command(folder), environment, folder))
        await_that((folder / "munge.socket").exists)
        control = [*machines.door, "slurmctld", "-D"]
        control_daemon = daemons.enter_context(daemon(control, environment, folder))
        started = {
            node: daemons.enter_context(daemon([*entry, "slurmd", "-D"], environment, folder))
            for node, entry in zip(NODES, machines.entries, strict=True)
        }
        found = SlurmSite(machines, folder, variables, started)
        await_that(lambda: found.ask("sinfo", "-h", "-N", "-p", "all", "-o", "%T") == "idle\n" * 3)
        try:
            yield found
        finally:
            control_daemon.kill()  # it would first wait for the nodes
