"""What XLA's text of a compiled program says of its collectives; recorded from jax 0.10.2."""

from __future__ import annotations

import pytest

from pytest_multihost.core.rank.recorder.hlo import collectives_of, described, members

OF_MESH = (
    "  ROOT %all-reduce.1 = f32[] all-reduce(%all-reduce), channel_id=2,"
    " replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, use_global_device_ids=true"
)
LISTED = "  %psum.7 = f32[3]{0} all-reduce(%bitcast), replica_groups={{0,1},{2,3}}, to_apply=%add"
STRIDED = "  %x = (f32[3,4]{1,0}, s32[]) all-gather(%a, %b), replica_groups=[2,2]<=[2,2]T(1,0), x"
ROWS = "  %x = f32[8] all-gather-start(%a), replica_groups=[2,2]<=[4], dimensions={0}"
PERMUTED = "  %p.3 = f32[2,2]{1,0} collective-permute(%b), source_target_pairs={{0,1},{1,0}}, m"
OF_ALL = "  %psum.7 = f32[3]{0} all-reduce(%bitcast), replica_groups={}, to_apply=%add"
NONE = '  ROOT %bitcast.1 = f32[4] bitcast(%p.3), metadata={op_name="jit(f)/all-reduce(x)"}'


@pytest.mark.parametrize(
    ("line", "text", "theirs"),
    [
        (OF_MESH, "all_reduce f32[]", {0, 2}),
        (LISTED, "all_reduce f32[3]", {0, 1}),
        (STRIDED, "all_gather f32[3,4] +1", {0, 2}),
        (ROWS, "all_gather f32[8]", {0, 1}),
        (PERMUTED, "collective_permute f32[2,2]", {0, 1}),
        (OF_ALL, "all_reduce f32[3]", {0, 1, 2, 3}),
    ],
    ids=["of a mesh", "listed", "strided", "rows", "permuted", "of all"],
)
def test_a_collective_is_known_with_its_size_and_devices(
    line: str, text: str, theirs: set[int]
) -> None:
    """In each form in which XLA writes groups of devices."""
    (found,) = collectives_of(line)
    assert str(found) == text
    assert members([found], 0, 4) == theirs


def test_devices_that_communicate_through_others_are_members_too() -> None:
    """Rows and columns of a mesh reach all devices."""
    assert members(collectives_of(f"{OF_MESH}\n{LISTED}"), 0, 4) == {0, 1, 2, 3}


def test_what_is_no_collective_is_none() -> None:
    """A name in metadata is not one."""
    assert collectives_of(NONE) == ()


def test_of_many_collectives_the_first_are_named() -> None:
    """The text has little room."""
    found = collectives_of(f"{LISTED}\n{OF_ALL}\n{ROWS}\n{ROWS}")
    assert described(found) == "all_reduce f32[3], all_reduce f32[3] and 2 more"
