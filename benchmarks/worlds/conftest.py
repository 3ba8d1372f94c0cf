"""Makes TESTS tests of one, and writes down what each took and what the controller used."""

import json
import os
import pathlib
import time

import psutil
import pytest

PLACE = pathlib.Path(__file__).parent
TESTS = int(os.environ.get("TESTS", "1"))
walls, reports, used = [], [], []


def cpu_s():
    """CPU seconds of this process and, while they live, of its own children: our server."""
    children = psutil.Process().children() if "PYTEST_MULTIHOST_SERVER" not in os.environ else []
    times = [child.cpu_times() for child in children]
    return time.process_time(), sum(each.user + each.system for each in times)


@pytest.fixture(params=range(TESTS))
def value(request):
    return request.param + 0.5


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart():
    if len(walls) == 1:  # the first test starts the server, which imports nothing but forks slowly
        used.append(cpu_s())
    walls.append(-time.monotonic())


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish():
    walls[-1] += time.monotonic()
    if len(walls) == TESTS > 1:
        used.append(cpu_s())


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if "CASE" not in os.environ:  # of the hangs alone: it would cost each test milliseconds
        return
    reports.append((report.when, report.outcome, time.time()))
    (PLACE / "reports.json").write_text(json.dumps(reports))


def pytest_sessionfinish():
    file = PLACE / f"walls-{os.getpid()}"  # with some peers every rank comes here
    file.write_text(json.dumps({"walls": walls, "used": used}))
    file.replace(PLACE / "walls.json")
