"""Whose a file is whose folder py-spy has left out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import queue
import selectors
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from pytest_multihost.extensions.logs.readers.short_paths import full_path
from pytest_multihost.testing import Frame


def is_known(function: str, place: str) -> bool:
    """Return whether a frame counts as that of a library."""
    file, _, line = place.rpartition(":")
    return full_path(Frame(file, int(line), function)).file.startswith("/site-packages/")


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("Queue.get", "queue.py:171"),
        ("get", "queue.py:171"),  # a py-spy that names no classes
        ("EpollSelector.select", "selectors.py:468"),
        ("BaseEventLoop.run_until_complete", "asyncio/base_events.py:640"),
        ("Future.result", "concurrent/futures/_base.py:451"),
        ("Popen.wait", "subprocess.py:1264"),
        ("HTTPResponse._read_status", "http/client.py:286"),
        ("urlopen", "urllib/request.py:216"),
        ("SSLSocket.read", "ssl.py:1100"),
        ("TarFile.extractall", "tarfile.py:2246"),
        ("XMLParser.feed.<locals>.<lambda>", "xml/etree/ElementTree.py:1700"),
        ("contextmanager.<locals>.helper", "contextlib.py:301"),
        ("Condition.wait", "threading.py:327"),
        ("Connection._recv", "multiprocessing/connection.py:379"),
        ("ClientSession._request", "aiohttp/client.py:536"),
        ("UnixFileLock._acquire", "filelock/_unix.py:40"),
        ("wrapper", "torch/distributed/c10d_logger.py:83"),
    ],
)
def test_a_file_of_the_standard_library_is_no_file_of_the_users(function: str, place: str) -> None:
    """These are frames as py-spy prints them, of Python 3.11."""
    assert is_known(function, place)


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("get", "queue.py:3"),  # data/queue.py in a folder without __init__.py: seen so
        ("Prefetch.get", "queue.py:171"),
        ("<module>", "queue.py:171"),
        ("<lambda>", "queue.py:171"),
        ("interact", "code.py:18"),
        ("main", "profile.py:40"),
        ("main", "test.py:5"),
        ("test_reduce", "test/test_reduce.py:5"),
        ("get", "http/backend.py:20"),
        ("load", "trainer/queue.py:171"),
        ("get", "/job/queue.py:171"),
        ("get", "../queue.py:171"),
        ("get", "asyncio/../queue.py:171"),
        ("Queue.get", "queue.pyx:171"),
    ],
)
def test_a_users_file_with_a_name_of_the_standard_library_is_the_users(
    function: str, place: str
) -> None:
    """py-spy leaves out the folder of these, too."""
    assert not is_known(function, place)


@pytest.mark.parametrize(
    ("of", "file"),
    [
        (queue.Queue.get, "queue.py"),
        (selectors.DefaultSelector.select, "selectors.py"),
        (asyncio.BaseEventLoop.run_forever, "asyncio/base_events.py"),
        (concurrent.futures.Future.result, "concurrent/futures/_base.py"),
        (http.client.HTTPConnection.getresponse, "http/client.py"),
        (subprocess.Popen.communicate, "subprocess.py"),
        (urllib.request.OpenerDirector.open, "urllib/request.py"),
    ],
)
@pytest.mark.parametrize("drift", [-40, 0, 40])
def test_another_version_of_python_has_the_function_at_a_line_nearby(
    of: Callable[..., Any], file: str, drift: int
) -> None:
    """Logs are often read with another Python than that of the job."""
    assert is_known(of.__qualname__, f"{file}:{of.__code__.co_firstlineno + 1 + drift}")
