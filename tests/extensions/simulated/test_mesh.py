"""The names of ranks by their coordinates in a device mesh."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.simulated.mesh import Mesh, named_sets

pytestmark = pytest.mark.unit

MESH = Mesh(("pp", "dp", "tp"), (4, 128, 2), tuple(range(1024)))


def test_a_part_of_the_mesh_is_named_by_the_coordinates_that_it_has() -> None:
    """Two stages of four, all their data-parallel and tensor-parallel ranks."""
    assert MESH.name_of(range(256, 768)) == "pp=1-2" or MESH.name_of(range(256, 768)) == "pp=1,2"


def test_one_coordinate_of_each_dimension_is_one_rank() -> None:
    """The last rank."""
    assert MESH.name_of([1023]) == "pp=3 dp=127 tp=1"


def test_all_ranks_have_no_name() -> None:
    """No coordinate sets them apart."""
    assert MESH.name_of(range(1024)) == ""


def test_ranks_that_no_coordinates_describe_have_no_name() -> None:
    """Two corners are no part of the mesh: a name would claim two more ranks."""
    assert MESH.name_of([0, 1023]) == ""


def test_a_mesh_may_list_the_ranks_in_another_order() -> None:
    """Coordinates follow the mesh, not the numbers."""
    assert Mesh(("a", "b"), (2, 2), (0, 2, 1, 3)).name_of([0, 2]) == "a=0"


def test_each_set_of_ranks_is_named_once() -> None:
    """Culprits may also be a side of the parting."""
    sets = [range(512), range(512), [7]]
    assert list(named_sets(MESH, sets)) == ["pp=0,1: 512 ranks, 0-511"]
