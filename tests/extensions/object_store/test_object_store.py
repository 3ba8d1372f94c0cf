"""An S3 store that is slow, narrow or failing, seen by real clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import fsspec
import numpy as np
import psutil
import pytest
import tensorstore as ts

from pytest_multihost.extensions.object_store.store import ObjectStore, StoreRule, serving

CHUNKS = 4
CHUNK_BYTES = 1_000_000
VALUES = np.random.default_rng(0).integers(0, 255, CHUNKS * CHUNK_BYTES, dtype="u1")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """One store for all tests here, with an array in it."""
    with serving() as endpoint:
        store = ObjectStore(endpoint, "ckpt")
        store.create_bucket()
        write_array(store)
        yield endpoint


@pytest.fixture
def store(endpoint) -> Iterator[ObjectStore]:
    """The store, well at the beginning."""
    store = ObjectStore(endpoint, "ckpt")
    yield store
    store.heal()


def write_array(store: ObjectStore) -> None:
    """Write the values in chunks of their own requests."""
    array = ts.open(
        {"driver": "zarr", "kvstore": store.tensorstore_kvstore("array/")},
        create=True,
        dtype=ts.uint8,
        shape=[CHUNKS * CHUNK_BYTES],
        chunk_layout=ts.ChunkLayout(chunk_shape=[CHUNK_BYTES]),
    ).result()
    array.write(VALUES).result()


def read_array(store: ObjectStore) -> np.ndarray:
    """Open the array anew, and read all of it."""
    spec = {"driver": "zarr", "kvstore": store.tensorstore_kvstore("array/")}
    return np.asarray(ts.open(spec).result().read().result())


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.monotonic()
    function()
    return time.monotonic() - began


def test_without_rules_tensorstore_reads_what_it_wrote(store) -> None:
    """The front changes nothing."""
    assert np.array_equal(read_array(store), VALUES)
    assert store.fired() == ()


def test_each_request_of_tensorstore_is_slow(store) -> None:
    """The metadata is read before the chunks, so it takes two delays at least, and not one each."""
    store.slow(seconds=0.3, methods=["GET"])
    took = seconds(lambda: read_array(store))
    (count,) = store.fired()
    assert count.struck == CHUNKS + 1
    assert 0.6 <= took < 0.3 * (CHUNKS + 1)


def test_tensorstore_reads_at_the_rate_that_was_asked_for(store) -> None:
    """All its requests share the one stream."""
    store.throttle(bytes_per_s=8e6)
    took = seconds(lambda: read_array(store))
    (count,) = store.fired()
    assert count.bytes >= VALUES.nbytes
    assert count.bytes / took < 8e6 * 1.2


@pytest.mark.parametrize("status", [503, "reset"])
def test_tensorstore_tries_again_after_a_failure(store, status) -> None:
    """Two requests fail, the array is read all the same."""
    store.fail(status, nth=2, count=2)
    assert np.array_equal(read_array(store), VALUES)
    (count,) = store.fired()
    assert count.struck == 2
    assert count.matched == CHUNKS + 1 + 2


def test_tensorstore_gives_up_where_it_may_not_read(store) -> None:
    """What is no passing weakness is not tried again."""
    store.fail(403, methods=["GET"])
    with pytest.raises(ValueError, match="PERMISSION_DENIED"):
        read_array(store)
    assert store.fired()[0].struck == 1


def test_rules_are_for_the_keys_and_requests_that_match(store) -> None:
    """Another key, another method: nothing happens, and the counter says so."""
    store.fail(503, key="/ckpt/array/0")
    store.fail(503, methods=["DELETE"])
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **store.s3fs_options)
    assert len(fs.cat_file("ckpt/array/1")) > 0
    assert [count.matched for count in store.fired()] == [0, 0]


def test_fsspec_writes_and_reads_at_the_rate_that_was_asked_for(store) -> None:
    """Bodies are paced in both directions."""
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **store.s3fs_options)
    data = os.urandom(2_000_000)
    fs.pipe_file("ckpt/warm", b"")
    for work in (lambda: fs.pipe_file("ckpt/f", data), lambda: fs.cat_file("ckpt/f")):
        store.throttle(bytes_per_s=4e6)
        assert seconds(work) >= 0.45
        assert store.fired()[0].bytes >= len(data)
        store.heal()
    assert fs.cat_file("ckpt/f") == data


def test_who_waits_goes_on_when_the_store_is_healed(store) -> None:
    """A delay of an hour ends with the rule."""
    store.slow(seconds=3600, methods=["GET"])
    threading.Timer(0.5, store.heal).start()
    assert seconds(lambda: read_array(store)) < 30


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (StoreRule(seconds=-1), "seconds"),
        (StoreRule(bytes_per_s=0), "bytes_per_s"),
        (StoreRule(status=200), "status"),
        (StoreRule(nth=0), "nth"),
        (StoreRule(count=0), "count"),
        (StoreRule(methods="GET"), "methods"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(store, rule, problem) -> None:
    """By the side that has written it, with the reason."""
    with pytest.raises(ValueError, match=problem):
        store.add(rule)


def test_the_store_ends_with_who_started_it() -> None:
    """Also when that is killed, and a fork of it lives on with all that it had open."""
    program = """
import os, time
from pytest_multihost.extensions.object_store.store import ObjectStore, serving
with serving() as endpoint:
    ObjectStore(endpoint).create_bucket()
    fork = os.fork()
    if fork:
        pid = os.getpid()
        print(fork, open(f"/proc/{pid}/task/{pid}/children").read(), flush=True)
    time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    fork, *children = map(int, run.stdout.readline().split())
    (store,) = set(children) - {fork}
    process = psutil.Process(store)
    run.kill()
    run.wait()
    try:
        process.wait(20)
    except psutil.TimeoutExpired:
        process.kill()
        raise
    finally:
        os.kill(fork, signal.SIGKILL)
        run.stdout.close()


SHARED = """
import fsspec, pytest, time

@pytest.mark.multihost(ranks=2{extra})
@pytest.mark.parametrize("i", range(2))
def test_store(world, object_store, i):
    fs = fsspec.filesystem("s3", **object_store.s3fs_options)
    assert fs.ls(object_store.url) == []
    assert object_store.fired() == ()
    world.barrier()
    if world.is_primary:
        fs.pipe_file(f"{{object_store.bucket}}/f", b"x" * 1000)
        object_store.slow(seconds=0.5, methods=["GET"])
    world.barrier()
    began = time.monotonic()
    assert fs.cat_file(f"{{object_store.bucket}}/f") == b"x" * 1000
    assert time.monotonic() - began >= 0.5
    world.barrier()

def test_plain(object_store):
    object_store.fail(503)
"""


@pytest.mark.parametrize("extra", ["", ", env={'A': 'b'}"], ids=["forked", "server"])
@pytest.mark.smoke
def test_the_ranks_of_a_world_share_the_store(run_worlds, extra) -> None:
    """Every test has an empty bucket and a store that is well, however the ranks are launched."""
    worlds = run_worlds(SHARED.format(extra=extra))
    worlds.run.assert_outcomes(passed=3)


@pytest.mark.parametrize("own", [False, True], ids=["nobody asks", "another object_store"])
def test_no_store_is_started_where_ours_is_not_asked_for(run_worlds, pytester, own) -> None:
    """It would cost a second, and so would what it imports."""
    pytester.makeconftest(
        """
import pytest

@pytest.fixture
def object_store():
    return "the project's own"
"""
        if own
        else ""
    )
    worlds = run_worlds(
        """
        import os, sys, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world{asked}):
            assert "PYTEST_MULTIHOST_OBJECT_STORE" not in os.environ
            assert "pytest_multihost.extensions.object_store.store" not in sys.modules
        """.format(asked=", object_store" if own else "")
    )
    worlds.run.assert_outcomes(passed=1)


def test_without_moto_the_error_names_the_extra(run_worlds, pytester) -> None:
    """In ranks and elsewhere; the other tests run."""
    pytester.makeconftest("""
import importlib.util

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "moto" else real(name, *args)
""")
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_ranks(world, object_store): pass

        def test_plain(object_store): pass

        def test_other(): pass
        """
    )
    worlds.run.assert_outcomes(passed=1, errors=2)
    assert worlds.stdout.count("pip install 'pytest-multihost-hangs[s3]'") >= 2
