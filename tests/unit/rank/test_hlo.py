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
        (PERMUTED, "collective_permute f32[2,2] 0>1 1>0", {0, 1}),
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


SUM = "  %psum = f32[1]{0} all-reduce(%x), replica_groups={{0,1,2}}, to_apply=%add"
ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  ROOT %sum = f32[] add(%a, %b)\n}\n"
WHILE = "  %while.9 = (s32[], f32[1]{0}) while(%tuple.7), condition=%region_2.3, body=%region_0.2"
TRIPS = ', backend_config={"known_trip_count":{"n":"3"},"dynamic_variables":[]}'
CONDITIONAL = (
    "  %c = (f32[1]{0}) conditional(%i, %t, %u), branch_computations={%region_1, %region_0.2}"
)
CALL = "  %call = f32[1]{0} call(%x), to_apply=%region_0.2"


def program(*parts: tuple[str, str]) -> str:
    """Return XLA's text of a program of these computations, each with its one instruction."""
    texts = [f"{name} (p: f32[1]) -> f32[1] {{\n{line}\n}}\n" for name, line in parts]
    return f"HloModule jit_f, is_scheduled=true\n\n{ADD}\n{chr(10).join(texts)}"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([("%region_0.2", SUM), ("ENTRY %main", WHILE)], "all_reduce f32[1] in a loop"),
        ([("%region_2.3", SUM), ("ENTRY %main", WHILE)], "all_reduce f32[1] in a loop"),
        ([("%region_0.2", SUM), ("ENTRY %main", WHILE + TRIPS)], "all_reduce f32[1] 3 times"),
        ([("%region_0.2", SUM), ("ENTRY %main", CONDITIONAL)], "all_reduce f32[1] in a branch"),
        ([("%region_0.2", SUM), ("ENTRY %main", CALL)], "all_reduce f32[1]"),
        ([("%region_0.2", WHILE), ("ENTRY %main", SUM)], "all_reduce f32[1]"),
        (
            [
                ("%region_0.2", SUM),
                ("%outer", WHILE + TRIPS),
                ("ENTRY %main", f"{WHILE.replace('region_0.2', 'outer')}{TRIPS}"),
            ],
            "all_reduce f32[1] 9 times",
        ),
        (
            [
                ("%region_0.2", SUM),
                ("%outer", WHILE + TRIPS),
                ("ENTRY %main", WHILE.replace("region_0.2", "outer")),
            ],
            "all_reduce f32[1] in a loop",
        ),
    ],
    ids=["loop", "condition", "length", "branch", "call", "beside", "nested", "in another loop"],
)
def test_a_collective_says_how_often_it_runs_unless_it_is_once(
    parts: list[tuple[str, str]], text: str
) -> None:
    """A loop of known length is told apart from one that values of the process control."""
    assert described(collectives_of(program(*parts))) == text


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ("{2,0},{0,1},{1,2}", "0>1 1>2 2>0"),
        ("{0,2},{1,0},{2,1}", "0>2 1>0 2>1"),
        ("{0,1},{1,2},{2,3},{3,4},{4,5},{5,0}", "0>1 1>2 2>3 3>4 +2"),
    ],
)
def test_a_permutation_says_who_sends_to_whom(pairs: str, text: str) -> None:
    """In the order of the senders, as the same permutation may be written in any."""
    line = PERMUTED.replace("{0,1},{1,0}", pairs)
    assert described(collectives_of(line)) == f"collective_permute f32[2,2] {text}"


def test_a_loop_is_told_although_its_collective_is_not_named() -> None:
    """Its ranks need not run the same number of collectives."""
    text = program(("%region_0.2", SUM), ("ENTRY %main", f"{ROWS}\n{ROWS}\n{WHILE}"))
    *_, looping = sorted(collectives_of(text), key=lambda each: each.inside)
    (once,) = collectives_of(ROWS)
    assert described([once, once, looping]).endswith(" and 1 more, one of them in a loop")


def test_of_many_collectives_the_first_are_named() -> None:
    """The text has little room."""
    found = collectives_of(f"{LISTED}\n{OF_ALL}\n{ROWS}\n{ROWS}")
    assert described(found) == "all_reduce f32[3], all_reduce f32[3] and 2 more"
