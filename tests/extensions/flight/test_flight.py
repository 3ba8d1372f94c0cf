"""Worlds told by dumps of torch's flight recorders: who is named, and who only looks guilty."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flight_dumps import WORLD, dump, ended, judged, op, p2p

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.main import main
from pytest_multihost.extensions.flight.recording import is_dump_folder, read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.testing import MultihostError, SourceContext

pytestmark = pytest.mark.unit


def told(judgement: Judgement) -> tuple[str, tuple[int, ...]]:
    """Return kind and culprits; "none" if there is no diagnosis."""
    found = judgement.diagnosis
    return ("none", ()) if found is None else (found.kind, found.culprits)


ALL = {WORLD: (0, 1, 2)}
FIRST = ended("all_reduce", 1)
SECOND = op("all_reduce", 2)


# Who is named


@pytest.mark.parametrize("trace", ["lock_gil_1st", "gpu_error_2nd"])
@pytest.mark.claim("explain dumps of torch's flight recorder")
def test_the_disturbed_ranks_of_a_real_job_are_named_and_no_other(
    tmp_path: Path, trace: str
) -> None:
    """16 ranks of Megatron; flight_recorder/README.md says where they come from."""
    with tarfile.open(Path(__file__).parent / "flight_recorder" / "traces.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = judge_dumps(read_dumps(tmp_path / trace), trace, SourceContext("/")).diagnosis
    assert found is not None
    assert (found.kind, found.culprits) == ("straggler", (9, 14))
    assert found.waiting == tuple(rank for rank in range(16) if rank not in (9, 14))


def test_the_rank_that_did_not_launch_what_others_wait_in_is_late(tmp_path: Path) -> None:
    """The others have launched one more, which has not ended."""
    late, waiting = dump(FIRST, groups=ALL), dump(FIRST, SECOND, groups=ALL)
    found = judged(tmp_path, {0: waiting, 1: waiting, 2: late}).diagnosis
    assert found is not None
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (2,), (0, 1))
    assert found.confidence == "certain"


def test_a_rank_without_entries_is_late_by_its_counts(tmp_path: Path) -> None:
    """Dumps may leave out what has ended, so only the counts tell how far it has come."""
    late = dump(groups=ALL, status={WORLD: (7, 7)})
    waiting = dump(op("all_reduce", 8), groups=ALL, status={WORLD: (8, 7)}, first=900)
    assert told(judged(tmp_path, {0: waiting, 1: late, 2: waiting})) == ("straggler", (1,))


def test_a_rank_whose_device_stopped_is_named_though_its_host_went_on(tmp_path: Path) -> None:
    """It has launched as much as the others, which have seen the end of what it has not."""
    groups = {WORLD: (0, 1, 2, 3), "1": (2, 3)}
    waiting = dump(
        ended("all_gather_base", 1, "1"), SECOND, groups=groups, status={WORLD: (2, 1), "1": (1, 1)}
    )
    held = dump(op("all_gather_base", 1, "1"), SECOND, groups=groups)
    others = dump(SECOND, groups={WORLD: (0, 1, 2, 3)}, status={WORLD: (2, 1)}, first=5)
    assert told(judged(tmp_path, {0: others, 1: others, 2: waiting, 3: held})) == (
        "straggler",
        (3,),
    )


def test_two_late_ranks_are_both_named_where_one_was_waited_for_before(tmp_path: Path) -> None:
    """Rank 0 waits for a message of rank 2 since before the others came to their all_reduce."""
    groups = {WORLD: (0, 1, 2, 3), "1": (1, 2, 3)}
    late = dump(groups=groups, status={WORLD: (0, 0), "1": (3, 3)})
    found = judged(
        tmp_path,
        {
            0: dump(p2p("recv 0<-2", 1), groups={WORLD: (0, 1, 2, 3)}),
            1: dump(op("all_reduce", 4, "1", at_s=5.0), groups=groups, first=9),
            2: late,
            3: late,
        },
    )
    assert told(found) == ("straggler", (2, 3))


def test_a_send_without_a_receive_waits_for_the_peer(tmp_path: Path) -> None:
    """The peer has done nothing at all."""
    idle = dump(FIRST, groups=ALL)
    sends = dump(FIRST, p2p("send 0->1", 1), groups=ALL)
    found = judged(tmp_path, {0: sends, 1: idle, 2: idle}).diagnosis
    assert found is not None
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (1,), (0,))


def test_ends_of_a_transfer_are_ranks_of_the_group(tmp_path: Path) -> None:
    """In a group of ranks 1 and 2, ``0->1`` is rank 1 sending to rank 2."""
    groups = {**ALL, "1": (1, 2)}
    idle = dump(FIRST, groups=groups)
    sends = dump(FIRST, p2p("send 0->1", 1, "1"), groups=groups)
    assert told(judged(tmp_path, {0: idle, 1: sends, 2: idle})) == ("straggler", (2,))


def test_two_sends_at_each_other_are_a_deadlock(tmp_path: Path) -> None:
    """On a device a send ends when it is received."""
    groups = {WORLD: (0, 1)}
    found = judged(
        tmp_path,
        {
            0: dump(p2p("send 0->1", 1), p2p("recv 0<-1", 2), groups=groups),
            1: dump(p2p("send 1->0", 1), p2p("recv 1<-0", 2), groups=groups),
        },
    ).diagnosis
    assert found is not None
    assert (found.kind, found.cycle) == ("deadlock", (0, 1))


def test_two_groups_in_different_orders_are_a_deadlock(tmp_path: Path) -> None:
    """Both have launched both; each device is in the one that the other has behind."""
    groups = {WORLD: (0, 1), "1": (0, 1)}
    one = dump(op("all_reduce", 1), op("all_reduce", 1, "1"), groups=groups)
    two = dump(op("all_reduce", 1, "1"), op("all_reduce", 1), groups=groups)
    assert told(judged(tmp_path, {0: one, 1: two})) == ("deadlock", ())


def test_collectives_of_different_names_are_a_mismatch(tmp_path: Path) -> None:
    """The minority is named."""
    most = dump(FIRST, SECOND, groups=ALL)
    odd = dump(FIRST, op("all_gather_base", 2), groups=ALL)
    assert told(judged(tmp_path, {0: most, 1: odd, 2: most})) == ("mismatch", (1,))


@pytest.mark.parametrize(
    "differs", [{"input_sizes": [[5]]}, {"input_dtypes": ["Double"]}], ids=["size", "dtype"]
)
def test_sizes_and_types_that_differ_are_told(tmp_path: Path, differs: dict[str, Any]) -> None:
    """All have entered it and nothing moves: what differs is where they parted."""
    most = dump(FIRST, SECOND, groups=ALL)
    odd = dump(FIRST, op("all_reduce", 2, **differs), groups=ALL)
    found = judged(tmp_path, {0: most, 1: odd, 2: most}).diagnosis
    assert found is not None
    assert found.divergence is not None
    assert found.divergence.minority == (1,)


def test_a_rank_that_left_no_dump_is_likely_late(tmp_path: Path) -> None:
    """Only if nobody else is: it may as well have lost its disk."""
    waiting = dump(FIRST, SECOND, groups=ALL)
    found = judged(tmp_path, {0: waiting, 1: waiting}).diagnosis
    assert found is not None
    assert (found.culprits, found.confidence) == ((2,), "likely")


def test_a_collective_that_the_processor_gave_up_names_who_never_entered(tmp_path: Path) -> None:
    """Gloo's recorder retires an operation that timed out, as it does one that ended well."""
    gave_up = dump(ended("all_reduce", 1), ended("all_reduce", 2), groups=ALL, backend="gloo")
    late = dump(ended("all_reduce", 1), groups=ALL, backend="gloo")
    found = judged(tmp_path, {0: gave_up, 1: gave_up, 2: late})
    assert told(found) == ("straggler", (2,))
    assert found.diagnosis is not None
    assert found.diagnosis.confidence == "likely"  # the program may have expected it


# Innocents that look guilty


def test_stages_of_a_pipeline_are_not_late_in_what_they_have_launched_ahead(
    tmp_path: Path,
) -> None:
    """Rank 2 computes; rank 1 waits for it, rank 0 for rank 1, each with more launched behind."""
    groups = {WORLD: (0, 1, 2), "1": (0, 1)}
    found = judged(
        tmp_path,
        {
            0: dump(p2p("recv 0<-1", 1), op("all_reduce", 1, "1"), SECOND, groups=groups),
            1: dump(p2p("recv 1<-2", 1), p2p("send 1->0", 2), groups=groups),
            2: dump(groups=ALL),
        },
    )
    assert told(found) == ("straggler", (2,))


def test_the_default_group_whose_last_operations_are_transfers_accuses_nobody(
    tmp_path: Path,
) -> None:
    """Its counts are those of each rank's own transfers: 9 of rank 0 against 4 of rank 1."""
    groups = {WORLD: (0, 1, 2), "1": (0, 2)}
    found = judged(
        tmp_path,
        {
            0: dump(
                op("all_reduce", 6, "1"),
                p2p("recv 0<-1", 9),
                groups=groups,
                status={WORLD: (9, 8), "1": (6, 5)},
                first=70,
            ),
            1: dump(p2p("send 1->0", 4), groups=ALL, status={WORLD: (4, 3)}, first=70),
            2: dump(groups=groups, status={WORLD: (5, 5), "1": (5, 5)}),
        },
    )
    assert told(found) == ("straggler", (2,))


def test_a_rank_that_was_dumped_before_others_went_on_is_not_named(tmp_path: Path) -> None:
    """They entered the next collective after its dump, so it may be in that, too."""
    early, late = dump(FIRST, groups=ALL), dump(FIRST, op("all_reduce", 2, at_s=50.0), groups=ALL)
    found = judged(tmp_path, {0: late, 1: late, 2: early}, dumped_s={2: 40.0})
    assert told(found)[1] == ()


def test_a_rank_behind_by_what_others_have_ended_with_it_is_not_named(tmp_path: Path) -> None:
    """They cannot have ended it without the rank, so its dump is older."""
    early = dump(FIRST, groups=ALL)
    late = dump(FIRST, ended("all_reduce", 2), op("all_reduce", 3), groups=ALL)
    assert told(judged(tmp_path, {0: late, 1: late, 2: early}))[1] == ()


def test_nobody_is_named_while_ranks_move(tmp_path: Path) -> None:
    """The collective began a moment before the dumps."""
    running = dump(FIRST, op("all_reduce", 2, at_s=599.9), groups=ALL)
    late = dump(FIRST, groups=ALL)
    assert judged(tmp_path, {0: running, 1: running, 2: late}).diagnosis is None


def test_a_world_in_which_nothing_is_open_is_not_said_to_hang(tmp_path: Path) -> None:
    """What its ranks do besides is not recorded."""
    idle = dump(FIRST, groups=ALL)
    found = judged(tmp_path, {0: idle, 1: idle, 2: idle})
    assert (found.diagnosis, found.finding.outcome) == (None, "passed")


def test_a_rank_that_left_no_dump_is_not_named_beside_one_that_is_late(tmp_path: Path) -> None:
    """Of rank 2 it is known that it is late, of rank 1 nothing."""
    waiting, late = dump(FIRST, SECOND, groups=ALL), dump(FIRST, groups=ALL)
    assert told(judged(tmp_path, {0: waiting, 2: late})) == ("straggler", (2,))


def test_a_rank_whose_entries_were_overwritten_is_not_late_in_their_group(tmp_path: Path) -> None:
    """Without counts nothing is known of it there: it waits for rank 2 in another group."""
    groups = {WORLD: (0, 1, 2), "1": (0, 1), "2": (1, 2)}
    found = judged(
        tmp_path,
        {
            0: dump(op("all_reduce", 3, "1"), groups=groups, first=50),
            1: dump(op("all_reduce", 9, "2"), groups=groups, first=50),
            2: dump(ended("all_reduce", 8, "2"), groups=groups, first=50),
        },
    )
    assert told(found) == ("straggler", (2,))


def test_parts_of_a_coalesced_operation_have_ended_with_it(tmp_path: Path) -> None:
    """Torch follows only the operation that closes them; they stay scheduled for ever."""
    groups = {WORLD: (0, 1)}

    def exchanges(me: int, other: int) -> Mapping[str, Any]:
        return dump(
            p2p(f"send {me}->{other}", 1),
            p2p(f"recv {me}<-{other}", 1),
            p2p("coalesced", 1, state="completed"),
            groups=groups,
        )

    assert judged(tmp_path, {0: exchanges(0, 1), 1: exchanges(1, 0)}).diagnosis is None


def test_parts_of_a_coalesced_operation_are_waited_for_together(tmp_path: Path) -> None:
    """The send of a batch has its partner, the receive has none."""
    found = judged(
        tmp_path,
        {
            0: dump(p2p("send 0->1", 1), p2p("recv 0<-2", 1), p2p("coalesced", 1), groups=ALL),
            1: dump(p2p("recv 1<-0", 1), groups=ALL),
            2: dump(groups=ALL),
        },
    )
    assert told(found) == ("straggler", (2,))


def test_clocks_that_differ_do_not_make_a_dump_older(tmp_path: Path) -> None:
    """Rank 2's clock is an hour behind, and so is its file's time."""
    common = [ended("all_reduce", each, at_s=float(each)) for each in range(1, 8)]
    waiting = dump(*common, op("all_reduce", 8, at_s=9.0), groups=ALL)
    late = dump(*common, groups=ALL, ahead_s=-3600.0)
    found = judged(tmp_path, {0: waiting, 1: waiting, 2: late}, dumped_s={2: 600.0 - 3600.0})
    assert told(found) == ("straggler", (2,))
    assert found.diagnosis is not None
    assert any("3600" in each and "clock" in each for each in found.diagnosis.notes)


def test_sizes_of_an_all_to_all_may_differ(tmp_path: Path) -> None:
    """Each rank sends as much as it likes, to whom it likes."""
    most = dump(FIRST, op("all_to_all", 2), groups=ALL)
    other = dump(FIRST, op("all_to_all", 2, input_sizes=[[9]]), groups=ALL)
    found = judged(tmp_path, {0: most, 1: other, 2: most}).diagnosis
    assert found is not None
    assert found.divergence is None


def test_two_names_of_one_collective_match(tmp_path: Path) -> None:
    """all_gather and its form for one tensor are one operation of NCCL."""
    one = dump(FIRST, op("all_gather", 2), groups=ALL)
    two = dump(FIRST, op("_all_gather_base", 2), groups=ALL)
    late = dump(FIRST, groups=ALL)
    assert told(judged(tmp_path, {0: one, 1: two, 2: late})) == ("straggler", (2,))


def test_dumps_whose_times_were_lost_make_nothing_certain(tmp_path: Path) -> None:
    """Of copies made a year later nobody knows in which order they were taken."""
    waiting, late = dump(FIRST, SECOND, groups=ALL), dump(FIRST, groups=ALL)
    year_s = dict.fromkeys(range(3), 3.2e7)
    found = judged(tmp_path, {0: waiting, 1: waiting, 2: late}, dumped_s=year_s).diagnosis
    assert found is not None
    assert (found.culprits, found.confidence) == ((2,), "likely")


# Groups


def test_groups_are_the_same_whatever_number_a_rank_gives_them(tmp_path: Path) -> None:
    """`pg_id` counts a rank's own groups: 1 on rank 2 is another group than 1 on rank 0."""
    found = judged(
        tmp_path,
        {
            0: dump(op("all_reduce", 2, "5"), groups={WORLD: (0, 1, 2), "3": (0, 1), "5": (0, 2)}),
            1: dump(groups={WORLD: (0, 1, 2), "3": (0, 1)}),
            2: dump(ended("all_reduce", 1, "5"), groups={WORLD: (0, 1, 2), "5": (0, 2)}),
        },
    )
    assert told(found) == ("straggler", (2,))


def test_what_the_program_calls_a_group_is_shown(tmp_path: Path) -> None:
    """A job has a hundred groups; their members alone say little."""
    waiting = dump(
        op("all_reduce", 1, "4", process_group=("4", "TENSOR_PARALLEL")), groups={"4": (0, 1)}
    )
    waiting["pg_config"]["4"]["desc"] = "TENSOR_PARALLEL"
    found = judged(tmp_path, {0: waiting, 1: dump(groups={"4": (0, 1)})}).diagnosis
    assert found is not None
    assert "TENSOR_PARALLEL 0,1" in found.summary


def test_members_that_dumps_do_not_list_are_all_ranks_of_the_default_group(tmp_path: Path) -> None:
    """Gloo's recorder lists the members of no group (torch 2.13)."""
    dumps = {
        0: dump(op("barrier", 1), groups=ALL, backend="gloo"),
        1: dump(op("barrier", 1), groups=ALL, backend="gloo"),
        2: dump(groups=ALL, backend="gloo"),
    }
    for each in dumps.values():
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    assert told(judged(tmp_path, dumps)) == ("straggler", (2,))


# Files


def test_a_pickle_that_names_a_function_is_refused(tmp_path: Path) -> None:
    """To read it would be to run it."""

    class Command:
        def __reduce__(self) -> object:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "trace_0").write_bytes(pickle.dumps({"version": "2.10", "entries": [Command()]}))
    with pytest.raises(MultihostError, match="no dump"):
        read_dumps(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x02}", b"{", b"[1]", b'{"version": "9.0"}', b'{"version": "2.4", "entries": 3}'],
)
def test_a_damaged_dump_is_left_out_and_told(tmp_path: Path, data: bytes) -> None:
    """The others are judged without it."""
    (tmp_path / "trace_1").write_bytes(data)
    (tmp_path / "trace_0").write_bytes(pickle.dumps(dump(groups=ALL)))
    found = read_dumps(tmp_path)
    assert [each.rank for each in found.recordings] == [0]
    assert "trace_1" in found.problems[0]
    page = judge_dumps(found, "dumps", SourceContext("/"))
    assert "trace_1" in page.finding.reason
    assert page.result.spec.size == len(ALL[next(iter(ALL))])


@pytest.mark.parametrize(
    "name",
    ["nccl_trace_rank_{}", "_dump_{}", "{}.json", "job17_rank{}.pickle", "comm_lib_trace_rank_{}"],
)
def test_any_prefix_is_understood(tmp_path: Path, name: str) -> None:
    """Only the number of the rank matters."""
    for rank in (0, 11):
        (tmp_path / name.format(rank)).write_bytes(pickle.dumps(dump(groups=ALL)))
    assert [each.rank for each in read_dumps(tmp_path).recordings] == [0, 11]


def test_json_says_the_same_as_a_pickle(tmp_path: Path) -> None:
    """There counts are texts, and a time that is unknown is 0."""
    for rank, entries in ((0, [FIRST, SECOND]), (1, [FIRST])):
        data = dump(*entries, groups={WORLD: (0, 1)}, status={WORLD: (len(entries), 1)})
        for status in data["pg_status"].values():
            status.update({key: str(value) for key, value in status.items()})
        for each in data["entries"]:
            each["time_discovered_completed_ns"] = 0
        (tmp_path / f"fr_{rank}.json").write_text(json.dumps(data))
    found = judge_dumps(read_dumps(tmp_path), "dumps", SourceContext("/"))
    assert told(found) == ("straggler", (1,))


def test_of_two_kinds_of_files_one_must_be_chosen(tmp_path: Path) -> None:
    """To mix them would be to judge two instants as one."""
    for rank in range(2):
        for kind in ("early", "late"):
            (tmp_path / f"{kind}_{rank}").write_bytes(pickle.dumps(dump(groups=ALL)))
    with pytest.raises(MultihostError, match="several kinds"):
        read_dumps(tmp_path)
    assert len(read_dumps(tmp_path, prefix="late").recordings) == 2


def test_an_attempt_of_our_own_is_no_folder_of_dumps(tmp_path: Path) -> None:
    """Its files have numbers of ranks, too."""
    (tmp_path / "rank-0.slots").touch()
    assert is_dump_folder(tmp_path)
    (tmp_path / "facts.json").touch()
    assert not is_dump_folder(tmp_path)


def test_older_dumps_lack_what_was_added_since(tmp_path: Path) -> None:
    """Version 2.0 has no counts, no time of an end and no p2p numbers."""
    dumps = {}
    for rank, entries in ((0, [FIRST, SECOND]), (1, [FIRST])):
        data = dump(*entries, groups={WORLD: (0, 1)}, version="2.0")
        del data["pg_status"]
        for each in data["entries"]:
            del each["p2p_seq_id"], each["is_p2p"], each["op_id"], each["output_dtypes"]
        dumps[rank] = data
    assert told(judged(tmp_path, dumps)) == ("straggler", (1,))


# The command


def test_the_command_prints_the_page_of_a_folder_of_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it does for an attempt of a test."""
    judged(tmp_path, {0: dump(FIRST, SECOND, groups=ALL), 1: dump(FIRST, groups=ALL)})
    monkeypatch.setattr("sys.argv", ["multihost", "explain", str(tmp_path)])
    assert main() == 0
    assert "rank 1 never reached all_reduce #2" in capsys.readouterr().out


def test_the_command_prints_and_writes_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its form is that of a test's verdict."""
    folder, into = tmp_path / "dumps", tmp_path / "into"
    folder.mkdir()
    judged(folder, {0: dump(FIRST, SECOND, groups=ALL), 1: dump(FIRST, groups=ALL)})
    monkeypatch.setattr(
        "sys.argv", ["multihost", "explain", str(folder), "--json", "--into", str(into)]
    )
    assert main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((into / "verdict.json").read_text())
    assert (printed["outcome"], printed["diagnosis"]["detected_by"]) == ("hung", "dumps")
    assert (into / "report.html").exists()


def test_the_command_fails_where_nothing_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No rank waits: the exit code says that nobody was found."""
    judged(tmp_path, dict.fromkeys(range(3), dump(FIRST, groups=ALL)))
    monkeypatch.setattr("sys.argv", ["multihost", "explain", str(tmp_path)])
    assert main() == 1
    assert "NOT KNOWN TO HANG" in capsys.readouterr().out
