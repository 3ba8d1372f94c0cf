"""One rank of a program of tests/corpus as a plain script, without pytest and without the plugin.

    RANK=0 WORLD_SIZE=2 ... python benchmarks/worlds/plain_rank.py FILE TEST SCRATCH

The variables are torchrun's; a rank with a role sets them anew for its role. What the harness does
for a test, the script does as a script would: it makes the process group, its barrier is the
backend's, and without a backend one of sockets. A rank that is done waits for its launcher: it
would end the hang if it closed its connections.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BASE, PORTS = 20_000 + int(os.environ["MASTER_PORT"]) % 10_000, 16
"""The first port for roles, below those that the kernel gives to connections, and each role's."""


class Star:
    """Meetings of ranks that have no backend: all tell the first one, and it answers."""

    def __init__(self, path: str) -> None:
        self.peers: list[socket.socket] = []
        if RANK == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)
                server.listen(SIZE)
                Path(path + ".up").touch()
                accepted = [server.accept()[0] for _ in range(SIZE - 1)]
            self.peers = sorted(accepted, key=lambda each: each.recv(1))
        else:
            while not Path(path + ".up").exists():
                pass
            self.peers = [socket.socket(socket.AF_UNIX)]
            self.peers[0].connect(path)
            self.peers[0].send(bytes([RANK]))

    def meet(self, value: object) -> list[object]:
        """Return what all ranks have brought."""
        if RANK == 0:
            values = [value, *(receive(each) for each in self.peers)]
            for each in self.peers:
                send(each, values)
            return values
        send(self.peers[0], value)
        return receive(self.peers[0])


def send(connection: socket.socket, value: object) -> None:
    """Send a value."""
    data = pickle.dumps(value)
    connection.sendall(len(data).to_bytes(4, "little") + data)


def receive(connection: socket.socket) -> Any:
    """Receive a value."""
    size = int.from_bytes(exactly(connection, 4), "little")
    return pickle.loads(exactly(connection, size))  # noqa: S301 - of a rank of ours


def exactly(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


class World:
    """What programs of the corpus are given."""

    def __init__(self, backend: str, scratch: Path, roles: Mapping[str, int]) -> None:
        self.roles, self.shared_directory = roles, scratch / "shared"
        self.role, self.role_rank = placed(roles)
        self.rank, self.size, self.is_primary = RANK, SIZE, RANK == 0
        self.backend = backend
        self.star = Star(str(scratch / "star")) if backend == "none" else None

    def port(self, role: str, n: int = 0) -> int:
        """Return a port of a role, the same on every rank."""
        return BASE + PORTS * (1 + list(self.roles).index(role)) + 1 + n

    def barrier(self, name: str = "barrier") -> None:
        """Let all ranks meet."""
        if self.star is not None:
            self.star.meet(name)
        elif self.backend == "jax":
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(name)
        else:
            import torch.distributed as dist

            dist.barrier()

    def gather(self, value: object) -> object:
        """Return the values of all ranks on the primary."""
        if self.star is not None:
            return self.star.meet(value)
        import torch.distributed as dist

        found: list[object] = [None] * SIZE
        dist.all_gather_object(found, value)
        return found

    def broadcast(self, value: object) -> Any:
        """Return the primary's value."""
        return self.gather(value)[0]


def placed(roles: Mapping[str, int]) -> tuple[str, int]:
    """Return the role of this rank, and its number there."""
    first = 0
    for name, size in roles.items():
        if first + size > RANK:
            return name, RANK - first
        first += size
    return "", RANK


def enter_role(roles: Mapping[str, int]) -> None:
    """Set torchrun's variables to those of this rank's role."""
    name, rank = placed(roles)
    if name:
        port = BASE + PORTS * (1 + list(roles).index(name))
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(roles[name]), MASTER_PORT=str(port))


def form(backend: str, local_devices: int) -> None:
    """Form the process group as a script does."""
    if backend == "gloo":
        import torch.distributed as dist

        dist.init_process_group("gloo")
    elif backend == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", local_devices)
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, SIZE, RANK)
        jax.devices()


def stay() -> None:
    """Wait until the launcher closes the pipe."""
    sys.stdin.buffer.read()


def main() -> None:
    """Run one program."""
    file, name, scratch = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    sys.path.insert(0, str(file.parent))
    os.environ.setdefault("XLA_FLAGS", "")
    module = importlib.import_module(file.stem)
    plain, _, parameter = name.partition("[")
    test = getattr(module, plain)
    marks = {each.name: each.kwargs for each in test.pytestmark}
    os.environ.update(marks["multihost"].get("env", {}))
    backend, roles = marks["corpus"]["backend"], marks["multihost"].get("roles", {})
    enter_role(roles)
    form(backend, marks["multihost"].get("local_devices", 1))
    world = World(backend, scratch, roles)
    values: dict[str, Any] = {"world": world}
    values["shared_tmp_path"] = shared = scratch / "shared"
    values["tmp_path"] = own = scratch / f"rank-{RANK}"
    shared.mkdir(exist_ok=True)
    own.mkdir()
    print("up", flush=True)
    after = []
    for each in inspect.signature(test).parameters:
        if each not in values and hasattr(module, each):
            fixture = inspect.unwrap(getattr(module, each))
            fixture = getattr(fixture, "_get_wrapped_function", lambda f=fixture: f)()
            arguments = {key: values[key] for key in inspect.signature(fixture).parameters}
            made = fixture(**arguments)
            values[each] = next(made) if inspect.isgenerator(made) else made
            after += [made] if inspect.isgenerator(made) else []
        elif each not in values:
            values[each] = int(re.sub(r"\D", "", parameter) or 1)
    test(**{each: values[each] for each in inspect.signature(test).parameters})
    for each in after:
        next(each, None)
    print("done", flush=True)
    stay()


if __name__ == "__main__":
    main()
