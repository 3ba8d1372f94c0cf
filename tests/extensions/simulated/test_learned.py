"""What a small world teaches about a large one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_multihost.extensions.simulated.learned import (
    Learned,
    Lessons,
    check_memory,
    forecast,
    import_safely,
    learn,
    name_of_test,
    write_learned,
)
from pytest_multihost.testing import LaunchError

pytestmark = pytest.mark.unit


def test_a_world_that_does_not_fit_is_refused_with_the_number_that_does() -> None:
    """1024 ranks of 20 MB, and 12 GB are free."""
    with pytest.raises(LaunchError) as refused:
        check_memory(1024, 20_000_000, 12_000_000_000)
    assert "1024 ranks would need 20.5 GB, and 12.0 GB are free" in str(refused.value)
    assert "540 ranks fit" in str(refused.value)


def test_a_world_that_fits_is_not_refused() -> None:
    """512 of them."""
    check_memory(512, 20_000_000, 12_000_000_000)


def test_the_rank_with_the_most_memory_counts(tmp_path: Path) -> None:
    """The last stage of a pipeline may hold more than the first."""
    write_learned(tmp_path, 0, Learned((), 5))
    write_learned(tmp_path, 7, Learned((), 9))
    lessons = Lessons()
    lessons.add("test", 8, tmp_path)
    assert lessons.private_bytes == {"test": {8: 9}}


def test_a_rank_of_a_larger_world_takes_as_much_more_as_between_two_small_ones() -> None:
    """Each rank makes a group for each pipeline of the world."""
    assert forecast({8: 10}, 256) == 10
    assert forecast({8: 10, 64: 38}, 128) == 70
    assert forecast({2: 90, 8: 10, 64: 10}, 1024) == 10
    assert forecast({8: 12, 64: 10}, 1024) == 10


def test_modules_that_ranks_share_are_no_memory_of_those_that_had_imported_them(
    tmp_path: Path,
) -> None:
    """Whichever test has made the server import them; another test's ranks take what they took."""
    lessons = Lessons()
    for test, modules in (("trains", ("torch._dynamo", "sympy")), ("saves", ("sympy",)), ("", ())):
        write_learned(tmp_path, 0, Learned(modules, 100_000_000))
        lessons.add(test, 8, tmp_path)
    lessons.share({"torch._dynamo", "sympy"}, 60_000_000)
    shares = {test: found[8] // 1_000_000 for test, found in lessons.private_bytes.items()}
    assert shares == {"trains": 40, "saves": 70, "": 100}


@pytest.mark.parametrize(
    ("nodeid", "size", "name"),
    [
        ("test_x.py::test_a[64]", 64, "test_x.py::test_a["),
        ("test_x.py::test_a[simulated-64-adam]", 64, "test_x.py::test_a[simulated-adam"),
        ("test_x.py::test_a[adam]", 64, "test_x.py::test_a[adam"),
        ("test_x.py::test_a[8-64]", 64, "test_x.py::test_a[8"),
        ("test_x.py::test_a", 64, "test_x.py::test_a"),
    ],
)
def test_a_test_has_one_name_at_all_sizes(nodeid: str, size: int, name: str) -> None:
    """Its own parameters make it another test."""
    assert name_of_test(nodeid, size) == name


def test_ranks_of_a_huge_world_share_what_trainers_import() -> None:
    """Unless a smaller world has shown what they need; 256 that import it take 20 GB."""
    lessons = Lessons(private_bytes={"small before": {8: 1}})
    found = {
        (test, size): {*lessons.missing(test, size, ["torch"])}
        for test, size in (("small before", 256), ("alone", 64), ("alone", 1024), ("alone", 256))
    }
    assert found == {
        ("small before", 256): set(),
        ("alone", 64): set(),
        ("alone", 1024): set(),
        ("alone", 256): {"torch._dynamo"},
    }
    assert Lessons().missing("without torch", 256, []) == set()


def test_a_damaged_file_teaches_nothing(tmp_path: Path) -> None:
    """A rank may be killed while it writes."""
    (tmp_path / "service-simulated-learned-0.json").write_text('{"modules": ')
    lessons = Lessons()
    lessons.add("test", 8, tmp_path)
    assert lessons.private_bytes == {}


def test_only_modules_of_libraries_are_learned() -> None:
    """A module of the project may do anything when it is imported."""
    found = learn(before=0)
    assert "_pytest.config" not in found.modules
    assert __name__ not in found.modules
    assert found.private_bytes > 0


def test_a_module_that_is_missing_is_no_error() -> None:
    """A rank that needs it sees the error itself."""
    sys.modules.pop("wave", None)
    import_safely(["wave", "no_such_module_of_anyone"])
    assert "wave" in sys.modules
