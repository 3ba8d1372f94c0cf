"""Replicate host values over processes without gathering the values of all processes (jax).

`jax.device_put(host_array, sharding)` onto devices of several processes contains a hidden
collective: every process gathers and compares the values of all processes. The gather needs two
copies per process in each process, and it waits for every process. `replicate` places only the
value of its own process. On request it compares digests of a few bytes.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_multihost.fixes import Fix

PyTree = Any
"""Any pytree of jax's."""

Sharding = Any
"""A sharding of jax's, which the type checker does not see."""

Array = Any
"""An array of jax's or numpy's."""

Client = Any
"""The client of jax's coordination service."""


FIX = Fix(
    name="replicate",
    title="Replicate host arrays without an allgather across processes",
    upstream="https://github.com/goodfire-ai/spd/pull/898",
    symptom=(
        "RESOURCE_EXHAUSTED in jax.device_put of a host array onto a sharding of several processes,"
        " from some number of processes on; or a hang in it if not all processes call it"
    ),
    affected=("jax>=0.8",),
    tried=("jax==0.8.0", "jax==0.9.1", "jax==0.10.2"),
    differs=(
        "Published without versions, for replicated shardings, with the advice to drop the"
        " comparison. Not affected are versions before 0.8, which compare by a broadcast; affected"
        " are also shardings that split. The same line hangs if one process skips it, and raises"
        " for a NaN. Without any comparison, processes that disagree go unnoticed: compare digests."
    ),
)

_DIGEST_BYTES = 16
_NAMED_LEAVES = 5


class RanksDisagreeError(ValueError):
    """The processes called with different values.

    Attributes:
        ranks: Which processes have another value than most, in order; all of them, where no value
            is that of more than half.
        leaves: Paths of the leaves in which these differ from the others, in jax's notation.
    """

    def __init__(self, ranks: tuple[int, ...], leaves: tuple[str, ...]) -> None:
        super().__init__(ranks, leaves)
        self.ranks = ranks
        self.leaves = leaves

    def __str__(self) -> str:
        """Name the ranks and the first leaves."""
        shown = ", ".join(self.leaves[:_NAMED_LEAVES])
        more = len(self.leaves) - _NAMED_LEAVES
        rest = f" and {more} more" if more > 0 else ""
        return (
            "replicate was called with different values by different processes. Out of line:"
            f" {_listed(self.ranks)}. In: {shown}{rest}. Give every process the same value, or"
            " leave out the comparison with check=None."
        )


class RanksMissingError(TimeoutError):
    """Some processes did not call in time.

    Attributes:
        ranks: Which did not come.
    """

    def __init__(self, ranks: tuple[int, ...], timeout_s: float) -> None:
        super().__init__(ranks, timeout_s)
        self.ranks = ranks
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        """Name the ranks."""
        return (
            "replicate was to compare the values of all processes. Did not come within"
            f" {self.timeout_s:g} s: {_listed(self.ranks)}. All processes of the sharding must call"
            " it, equally often; or leave out the comparison with check=None."
        )


def replicate(
    tree: PyTree,
    sharding: Sharding,
    *,
    check: Literal["digest"] | None = "digest",
    timeout_s: float = 300.0,
) -> PyTree:
    """Make global arrays of values that every process has in full; nothing large is exchanged.

    Stands for `jax.device_put(tree, sharding)`. Each process needs its value once more for each of
    its own devices, however many processes there are. As with `device_put`, an array on the CPU
    may share its memory with the numpy array that it was made of: leave that unchanged.

    Args:
        tree: A pytree. Its numpy and jax arrays and numpy scalars become global arrays; anything
            else (None, texts, functions, Python's numbers) stays as it is. A jax array must be
            whole in this process or already have the sharding; such an array is returned as it is.
        sharding: Of every array, a `jax.sharding.Sharding`; not only replicated ones will do.
        check: `"digest"` compares the values of all processes of the sharding, bit by bit, through
            16 bytes each in the coordination service; then all of them must call. `None` compares
            nothing and waits for no process.
        timeout_s: How long to wait for the other processes if they are compared, in seconds. Must
            exceed the difference of the times at which they come here.

    Raises:
        RanksDisagreeError: Values, shapes, types or trees differ; raised in every process.
        RanksMissingError: Not all processes came in time.
        ValueError: A jax array is spread over processes and would have to be moved between them.
        RuntimeError: Processes are to be compared without `jax.distributed`.
    """
    import jax

    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [_read(jax.tree_util.keystr(path), leaf, sharding) for path, leaf in paths]
    if check is not None:
        _compare(leaves, sharding, timeout_s)
    return jax.tree_util.tree_unflatten(structure, [_place(leaf, sharding) for leaf in leaves])


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf of the tree.

    Attributes:
        path: Where it is, in jax's notation.
        host: The part of it in this process, to be placed; None if it stays as it is.
    """

    path: str
    given: Array
    host: Array = None


def _read(path: str, leaf: Array, sharding: Sharding) -> _Leaf:
    import jax
    import numpy

    if isinstance(leaf, numpy.ndarray | numpy.generic):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return _Leaf(path, leaf, numpy.asarray(leaf, dtype))
    if not isinstance(leaf, jax.Array):
        return _Leaf(path, leaf)
    if leaf.is_fully_addressable:
        local = leaf
    elif leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return _Leaf(path, leaf)
    elif leaf.is_fully_replicated:
        local = leaf.addressable_data(0)
    else:
        raise ValueError(
            f"replicate cannot move {path or 'the array'} between processes: it is"
            f" {leaf.sharding}, of which this process has a part. Reshard it with"
            " jax.jit(lambda x: x, out_shardings=sharding), which all processes must call."
        )
    return _Leaf(
        path, leaf, numpy.asarray(jax.random.key_data(local) if _has_keys(leaf) else local)
    )


def _has_keys(leaf: Array) -> bool:
    import jax

    is_key: bool = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )
    return is_key


def _place(leaf: _Leaf, sharding: Sharding) -> Array:
    import jax

    host = leaf.host
    if host is None:
        return leaf.given
    placed = jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
    if _has_keys(leaf.given):
        return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf.given))
    return placed


def _compare(leaves: Sequence[_Leaf], sharding: Sharding, timeout_s: float) -> None:
    """Raise if the processes of the sharding have not all called with the same leaves.

    The tree's own structure is not compared: its other parts, say a function, may
    print as another in each process.
    """
    import jax
    from jax._src import distributed  # there is no public way to the client

    ranks = sorted({device.process_index for device in sharding.device_set})
    rank = jax.process_index()
    if len(ranks) == 1 or rank not in ranks:
        return
    client = distributed.global_state.client
    if client is None:
        raise RuntimeError(
            "replicate compares processes through jax's coordination service, which this process"
            " has not joined. Call jax.distributed.initialize(), or leave out the comparison with"
            " check=None."
        )
    # Calls are counted in the service, so that a count ends with the world that it belongs to.
    calls = f"replicate/{_digest_of(json.dumps(ranks).encode())}"
    number = client.key_value_increment(f"{calls}/calls of {rank}", 1)
    gather = functools.partial(_gather, client, ranks, rank, timeout_s)
    digests = json.dumps({leaf.path: _digest(leaf) for leaf in leaves})
    wholes = gather(f"{calls}/{number}/tree", _digest_of(digests.encode()))
    if len(set(wholes.values())) == 1:
        if number > 1:  # by now, all have read this process's entry of the previous call
            client.key_value_delete(f"{calls}/{number - 1}/tree/{rank}")
        return
    of_all = gather(f"{calls}/{number}/leaves", digests)
    odd = odd_ones(wholes)
    raise RanksDisagreeError(odd, tuple(_differences(of_all, odd)))


def _gather(
    client: Client, ranks: Sequence[int], rank: int, timeout_s: float, key: str, value: str
) -> dict[int, str]:
    """Write `value` under `key`, and return the value of each process there, by rank."""

    def written() -> dict[int, str]:
        entries = client.key_value_dir_get(f"{key}/")
        return {int(name.rpartition("/")[2]): each for name, each in entries}

    client.key_value_set(f"{key}/{rank}", value)
    try:
        client.wait_at_barrier(f"{key} is written", int(timeout_s * 1000), process_ids=list(ranks))
    except RuntimeError as error:
        missing = tuple(sorted(set(ranks) - written().keys()))
        if missing and "DEADLINE_EXCEEDED" in str(error):
            raise RanksMissingError(missing, timeout_s) from error
        raise
    return written()


def odd_ones(values: Mapping[int, str]) -> tuple[int, ...]:
    """Return whose value is not that of more than half; all, where there is no such value."""
    common, count = collections.Counter(values.values()).most_common(1)[0]
    has_majority = 2 * count > len(values)
    return tuple(sorted(rank for rank in values if not has_majority or values[rank] != common))


def _differences(of_all: Mapping[int, str], odd: Sequence[int]) -> Iterator[str]:
    """Give the paths at which one of the odd ranks has something else than the first of others."""
    digests = {rank: json.loads(text) for rank, text in of_all.items()}
    like = digests[next((rank for rank in digests if rank not in odd), odd[0])]
    paths = dict.fromkeys(path for each in digests.values() for path in each)
    for path in paths:
        if any(digests[rank].get(path) != like.get(path) for rank in odd):
            yield path or "the array"


def _digest(leaf: _Leaf) -> str:
    """Return a digest of a leaf: type, shape and bits.

    Of leaves that stay as they are, only arrays count, with type and shape: this process cannot
    read the rest of them, and a function or a text may rightly be another in each process.
    """
    import numpy

    array = leaf.given if leaf.host is None else leaf.host
    if not hasattr(array, "dtype"):
        return ""
    head = f"{array.dtype} {array.shape} ".encode()
    if leaf.host is None:
        return _digest_of(head)
    # As bytes, because types such as bfloat16 have no buffer; copied only if it has gaps.
    return _digest_of(head, numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))


def _digest_of(*parts: Array) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
