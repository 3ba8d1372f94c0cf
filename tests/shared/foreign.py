"""Hostile files, environments and stacks of somebody else, and what must hold for them.

Each target makes an input from a number, reads it as the product does, and fails if anything but a
refusal follows: another exception, a control character on the terminal or in a page, a line of a
file outside the roots, or a text that CI takes for a command. The test suite runs a few hundred
inputs, `make fuzz` many.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from sweeps import SOUND, SWEEP, UNSURE

from pytest_multihost.core.attempt import rejudge
from pytest_multihost.core.command import page_of
from pytest_multihost.core.launch import read_membership
from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.option import ACCEPTED_NAME, Settings
from pytest_multihost.core.pytest_plugin.acceptances import read_acceptances
from pytest_multihost.core.report import Attempt, build_verdict
from pytest_multihost.core.report.html import PageModel, write_page
from pytest_multihost.core.slots import (
    SlotPage,
    check_page,
    history_path,
    move_files,
    read_histories,
    read_open_operations,
    read_slots,
    shift_times,
    slots_path,
)
from pytest_multihost.core.slots.page import SIZE, TEXT_BYTES
from pytest_multihost.core.slots.waiting import read_waiting
from pytest_multihost.core.watch.kernel import elf
from pytest_multihost.core.watch.probes import parse_dump
from pytest_multihost.extensions.engines.attach.archives import write_files
from pytest_multihost.extensions.flight.recording import read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.extensions.github.annotations import Checkout, annotation_commands
from pytest_multihost.extensions.hazards.read_record import read_record
from pytest_multihost.extensions.live.waits import seen_wait
from pytest_multihost.extensions.logs.command import judge_paths
from pytest_multihost.extensions.sweep.annotations import sweep_annotations
from pytest_multihost.extensions.sweep.html import sweep_page
from pytest_multihost.extensions.sweep.record import read_sweep, sweep_record
from pytest_multihost.extensions.sweep.report import sweep_section
from pytest_multihost.extensions.sweep.saved.formats import Format, problem_of
from pytest_multihost.extensions.sweep.summary import sweep_summary
from pytest_multihost.testing import (
    MultihostError,
    SettingError,
    context_of,
    files_below,
    read_token,
)

ROOT = Path(__file__).parents[2]
START_NS = 1_795_000_000_000_000_000
SECRET_LINE = "root:$6$the-line-of-another-users-file"  # noqa: S105 - no password
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COMMAND = re.compile(r"^\s*::\w|##\w*\[", re.MULTILINE)

TEXTS = (
    "\x1b[31m\x1b]0;title\x07",
    "a\rb",
    "x\n::error file=a::owned\ny",
    "::add-mask::x",
    "\t::stop-commands::x",
    "##[error]x",
    "##vso[task.complete]x",
    "\x9b31m\x85",
    "\u202eevil\u2066",
    "\udcff\ud800",
    "nul\0nul",
    "<script>alert(1)</script>",
    "A" * 5000,
    "%s%n{0}{{",
    "../../../etc/passwd",
    "\U000e0041\u200b\ufeff",
)
NUMBERS = (0, -1, 1 << 31, (1 << 31) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**5000, 10_000, 2.5)
OTHERS = (None, True, [], {}, float("nan"), float("inf"), "", [[]], {"": {}}, "7" * 5000, "٣")


def job_dumps(folder: Path, ranks: int, operations: int, *, late: int = 7) -> None:
    """Write the dumps of an honest job: groups of eight, and a rank late in the last operation."""
    frames = [{"name": f"step_{n}", "filename": "/app/train.py", "line": n + 1} for n in range(4)]
    everybody = str([*range(ranks)])
    for rank in range(ranks):
        first = rank - rank % 8
        group = str(1 + first // 8)
        members = str([*range(first, min(ranks, first + 8))])
        entries = [
            {
                "frames": frames,
                "record_id": n,
                "op_id": n,
                "pg_id": n % 2,
                "is_p2p": False,
                "process_group": (group, "tp") if n % 2 else ("0", "default_pg"),
                "collective_seq_id": n // 2 + 1,
                "p2p_seq_id": 0,
                "profiling_name": "nccl:all_reduce",
                "timeout_ms": 600_000,
                "input_sizes": [[1024, 1024]],
                "output_sizes": [[1024, 1024]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "time_created_ns": START_NS + n * 1_000_000,
                "state": "completed" if n < operations - 2 else "scheduled",
                "retired": n < operations - 2,
            }
            for n in range(operations - 2 * (rank == late))
        ]
        content = {
            "version": "2.10",
            "entries": entries,
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": everybody},
                group: {"name": group, "desc": "tp", "ranks": members},
            },
            "pg_status": {},
        }
        path = folder / f"trace_rank_{rank}"
        path.write_bytes(pickle.dumps(content, protocol=2))
        os.utime(path, ns=(START_NS + 10**11, START_NS + 10**11))


def _places(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - JSON
    """Return every container of a JSON value with one of its keys or indices."""
    found, todo = [], [value]
    while todo:
        each = todo.pop()
        inner = each.items() if isinstance(each, dict) else enumerate(each)
        for key, one in inner:
            found.append((each, key))
            if isinstance(one, dict | list):
                todo.append(one)
    return found


def damaged(value: Any, draw: random.Random) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value in which some parts are hostile."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 5))):
        container, key = draw.choice(_places(value))
        what = draw.randrange(6)
        old = container[key]
        if what == 0:
            container[key] = draw.choice(TEXTS)
        elif what == 1:
            container[key] = draw.choice(NUMBERS)
        elif what == 2:
            container[key] = copy.deepcopy(draw.choice(OTHERS))
        elif what == 3 and isinstance(container, dict):
            del container[key]
            container[draw.choice(TEXTS)] = old
        elif what == 4 and isinstance(old, list):
            container[key] = old * draw.choice((0, 2, 40))
        elif isinstance(old, str):
            container[key] = old[: len(old) // 2] + draw.choice(TEXTS) + old[len(old) // 2 :]
        elif isinstance(old, int):
            container[key] = old + draw.choice((-1, 1, 7, 1 << 40))
        if not _places(value):
            break
    return value


def deep(draw: random.Random, opening: str, closing: str) -> bytes:
    """Return a text that is nested deep."""
    depth = draw.choice((13, 99, 101, 900, 50_000))
    return (opening * depth + "1" + closing * depth).encode()


HOSTILE_PICKLES: tuple[bytes, ...] = (
    b"\x80\x02Nr\xff\xff\xff\x7f.",  # four gigabytes of memo
    b"\x80\x02]r\xff\xff\xff\xff.",
    b"\x80\x04" + b")" + b"\x85" * 100_000 + b"K\x01\x86}\x94h\x00.",
    b"\x80\x04}" + b")" + b"\x85" * 200_000 + b"K\x01s.",  # the hash of a nested tuple
    b"\x80\x04" + b"(" * 200_000 + b".",
    b"\x80\x04]" + b"\x94" * 200_000 + b".",
    # Lists of 99 times the same list, nested: 99 ** 9 values.
    b"\x80\x02(]q\x00"
    + b"".join(b"]q%c(" % n + b"h%c" % (n - 1) * 99 + b"e" for n in range(1, 10))
    + b"t.",
    b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
    b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a bytearray of a terabyte
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    b"\x80\x02\x8b" + struct.pack("<I", 1 << 20) + b"\x7f" * (1 << 20) + b".",  # a huge number
    b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
    b"I" + b"9" * 5000 + b"\n.",
    b"L" + b"9" * 5000 + b"L\n.",
    b"cos\nsystem\n(S'id'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    b"(ios\nsystem\n.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02Pabc\n.",
    b"\x80\x04NQ.",
    b"\x80\x02h\x05.",
    b"\x80\x02u.",
    b"\x80\x02a.",
    b"\x80\x02e.",
    b"\x80\x02(t",
    b"\x80\x02\x87.",
    b".",
    b"",
    b"\x80",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
    b"\x80\x02}(K\x01K\x02u.",
    b"\x80\x02(K\x01K\x02K\x03d.",
    b"\x80\x02]K\x01K\x02s.",
    b"\x80\x02X\x02\x00\x00\x00\xed\xa0.",
    b"\x80\x02G\x7f\xf8\x00\x00\x00\x00\x00\x00.",
)


def special_file(path: Path, draw: random.Random, elsewhere: Path) -> None:
    """Make something at a path that is no ordinary file, or leads to none."""
    kinds: list[Callable[[], object]] = [
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/dev/full"),
        lambda: path.symlink_to("/proc/kmsg"),
        lambda: path.symlink_to("/proc/self/environ"),
        lambda: path.symlink_to("/etc/shadow"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/nonexistent"),
        lambda: path.symlink_to(elsewhere),
        lambda: path.symlink_to("/proc/self/fd"),
        lambda: _sparse(path),
    ]
    draw.choice(kinds)()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def require_printable(text: str) -> None:
    """Fail if a text may do more in a terminal or in a CI log than be read."""
    assert not CONTROL.search(text), ascii(CONTROL.search(text))
    assert not COMMAND.search(text), ascii(text)


class _Foreign:
    """What the targets have in common: inputs that are made from a number, in a folder."""

    name: str
    strategy = st.integers(0, 2**64 - 1)

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="foreign-"))
        self.secret = self.folder / "elsewhere.py"
        self.secret.write_text(f"{SECRET_LINE}\n" * 40, "utf-8")
        self.inside = self.folder / "inside"
        self.sources = files_below([self.inside])
        self.counts: Counter[str] = Counter()

    def check(self, number: int) -> None:
        """Make an input from a number, and read it."""
        self.inside.mkdir()
        try:
            self.counts[self.read(random.Random(number))] += 1
        finally:
            shutil.rmtree(self.inside)

    def read(self, draw: random.Random) -> str:
        """Make an input and read it; return what became of it."""
        raise NotImplementedError

    def refused(self, error: Exception) -> str:
        """Check a refusal: it is short, and does not repaint the terminal."""
        text = str(error)
        assert len(text) < 20_000, len(text)
        assert SECRET_LINE not in text
        return "refused"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


class DumpTarget(_Foreign):
    """A folder of dumps of flight recorders."""

    name = "dumps of flight recorders"

    def __init__(self) -> None:
        super().__init__()
        honest = self.folder / "honest"
        honest.mkdir()
        job_dumps(honest, 3, 6, late=1)
        self.honest = [pickle.loads(p.read_bytes()) for p in sorted(honest.iterdir())]  # noqa: S301
        self.honest = json.loads(json.dumps(self.honest))

    def read(self, draw: random.Random) -> str:
        """Explain a folder, some of whose files are hostile."""
        dumps = self.inside / "dumps"
        dumps.mkdir()
        for rank, content in enumerate(self.honest):
            path = dumps / draw.choice(("trace_{}", "trace_{}", "\x1b[1mrank_{}\r")).format(rank)
            kind = draw.randrange(10)
            if kind < 1:
                special_file(path, draw, self.secret)
            else:
                path.write_bytes(self._data(content, kind, draw))
                os.utime(path, ns=(START_NS + 10**11, START_NS + draw.choice((0, 1, 10**11))))
        try:
            judged = judge_dumps(
                read_dumps(dumps), draw.choice(TEXTS), context_of(str(self.inside), self.sources)
            )
        except MultihostError as error:
            return self.refused(error)
        text = page_of(judged, draw.choice(TEXTS))
        require_printable(text)
        assert SECRET_LINE not in text
        if draw.randrange(20) == 0:
            verdict = build_verdict(judged, Attempt("run", "dir", None, {}))
            page = write_page(self.inside, PageModel(judged=judged, verdict=verdict))
            html = page.read_text("utf-8")
            assert not CONTROL.search(html)
            assert SECRET_LINE not in html
            assert "<script>alert" not in html
        return "judged" if judged.diagnosis is not None else "nothing follows"

    def _data(self, content: Any, kind: int, draw: random.Random) -> bytes:  # noqa: ANN401 - JSON
        if kind < 2:
            return draw.choice(HOSTILE_PICKLES)
        if kind < 3:
            return draw.choice((deep(draw, "[", "]"), b"{" + deep(draw, '"a":{', "}")[5:]))
        if kind == 3:
            for entry in (content := copy.deepcopy(content))["entries"]:
                entry["frames"][0]["filename"] = draw.choice(
                    (str(self.secret), "/proc/kmsg", "/dev/zero", "/etc/shadow", "x/../a\0.py")
                )
        value = content if kind > 7 else damaged(content, draw)
        if draw.randrange(2):
            data = _json(value)
        else:
            data = pickle.dumps(value, protocol=draw.choice((2, 4, 5)))
        if draw.randrange(8) == 0:
            at = draw.randrange(len(data) + 1)
            data = draw.choice((data[:at], data[:at] + draw.randbytes(3) + data[at + 3 :]))
        return data


def _json(value: Any) -> bytes:  # noqa: ANN401 - JSON
    """Return a value as JSON, with numbers of any length."""

    def kept(each: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(each, dict):
            return {key: kept(one) for key, one in each.items()}
        if isinstance(each, list):
            return [kept(one) for one in each]
        if isinstance(each, int) and not isinstance(each, bool) and each >= 10**4000:
            return "<long>"
        return each

    text = json.dumps(kept(value))
    return text.replace('"<long>"', "1" + "0" * 5000).encode()


class SweepTarget(_Foreign):
    """A sweep.json, as the page, the terminal, annotations and the summary show it."""

    name = "sweep.json"
    records = tuple(json.loads(json.dumps(sweep_record(each))) for each in (SWEEP, UNSURE, SOUND))

    def read(self, draw: random.Random) -> str:
        """Read a hostile sweep.json and show it everywhere."""
        path = self.inside / "sweep.json"
        kind = draw.randrange(12)
        if kind == 0:
            special_file(path, draw, self.secret)
        elif kind == 1:
            path.write_bytes(draw.choice((deep(draw, "[", "]"), draw.randbytes(50), b"")))
        else:
            path.write_bytes(_json(damaged(draw.choice(self.records), draw)))
        try:
            result = read_sweep(path)
        except MultihostError as error:
            if "sweep.json" not in str(error):
                raise
            return self.refused(error)
        text = sweep_section(result, columns=draw.choice((None, 80))).text
        require_printable(text)
        html = sweep_page(result)
        assert not CONTROL.search(html)
        assert "<script>alert" not in html
        checkout = Checkout(str(self.inside), str(self.inside))
        for each in annotation_commands(sweep_annotations([result]), checkout):
            assert "\n" not in each
            assert not CONTROL.search(each)
        assert not CONTROL.search(sweep_summary([result], max_bytes=100_000))
        return "shown"


class AcceptTarget(_Foreign):
    """A file of accepted weaknesses."""

    name = "accept files"
    honest = (
        '[[accepted]]\ntest = "tests/test_a.py::*"\nculprit = "src/a.py:f"\nreason = "known"\n\n'
        '[[accepted]]\ntest = "*"\nculprit = "a.py:x = 1"\nwaiting = "b.py:g"\nreason = "r"\n'
    )

    def read(self, draw: random.Random) -> str:
        """Read a hostile accept file."""
        path = self.inside / ACCEPTED_NAME
        kind, text = draw.randrange(8), self.honest
        if kind == 0:
            special_file(path, draw, self.secret)
        elif kind == 1:
            hostile = ("a = " + "[" * 5000, "a = " + "{a=" * 5000, "a." * 5000 + "b = 1")
            more = ("[" + "a." * 4000 + "b]", "a = " + "9" * 5000, "'" * 5000, "\0", "a = 1e999999")
            path.write_text(draw.choice((*hostile, *more)), "utf-8")
        else:
            for _ in range(draw.choice((0, 1, 3))):
                at = draw.randrange(len(text) + 1)
                cut = draw.choice((0, 1, 10))
                text = text[:at] + draw.choice((*TEXTS, "=", '"', "[", "\n")) + text[at + cut :]
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            for each in read_acceptances(self.inside, Settings({})):
                assert isinstance(each.is_for("tests/test_a.py::test_b[1]"), bool)
        except pytest.UsageError as error:
            require_printable(str(error).partition("\nEach entry")[0].replace("\n", " "))
            return self.refused(error)
        return "read"


SPIED = [
    {
        "pid": 10,
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": 10,
        "active": True,
        "owns_gil": False,
        "frames": [
            {
                "name": "new_group",
                "line": 3,
                "short_filename": "t.py",
                "module": None,
                "filename": "/x/torch/distributed/distributed_c10d.py",
                "locals": [{"name": "ranks", "addr": 1, "arg": True, "repr": "[0, 1]"}],
            },
            {
                "name": "main",
                "line": 30,
                "short_filename": "t.py",
                "module": None,
                "filename": "/app/train.py",
                "locals": None,
            },
        ],
    }
]
ENVIRONMENTS: tuple[Mapping[str, str], ...] = (
    {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "h:1"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "gpu[07-09],x"},
    {"PYTEST_MULTIHOST_RANK": "0", "PYTEST_MULTIHOST_SIZE": "2", "PYTEST_MULTIHOST_ADDRESS": "h:1"},
)
VALUES: Sequence[str] = ("2147483647", "9" * 5000, "-1", "", "٣", "1e9", "0x1", "1 ", *TEXTS)


class ProcessTarget(_Foreign):
    """The environment of a process, and what py-spy says of its stacks."""

    name = "environments and stacks of processes"

    def read(self, draw: random.Random) -> str:
        """Read an environment, or the stacks of a process."""
        if draw.randrange(2):
            variables = dict(draw.choice(ENVIRONMENTS))
            for _ in range(draw.choice((1, 2))):
                variables[draw.choice([*variables])] = draw.choice(VALUES)
            try:
                found = read_membership(variables)
            except SettingError as error:
                return self.refused(error)
            assert 0 <= found.rank < found.size <= 10_000
            return "a rank"
        try:
            threads = parse_dump(_json(damaged(SPIED, draw)))
        except ValueError:
            return "refused"
        for each in threads:
            wait = seen_wait(each.frames, "", size=4, at_s=1.0, is_blocked=True, values=each.values)
            context = context_of(str(self.inside), self.sources)
            for frame in each.frames:
                assert SECRET_LINE not in context.place(frame).source
            assert wait is not None
        return "stacks"


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """Return bytes some of which are others: single ones, words, or a part that is gone."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(found) + 1)
        kind = draw.randrange(6)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            del found[at : at + draw.choice((1, 4, 100))]
        elif kind == 2:
            found[at:at] = draw.randbytes(draw.choice((1, 8, 100)))
        elif kind == 3:
            word = draw.choice((0, 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1))
            at = at // 4 * 4
            found[at : at + 8] = struct.pack("<Q", word)
        else:
            found[at : at + 1] = draw.randbytes(1)
    return bytes(found)


class ArrayTarget(_Foreign):
    """Arrays, archives and headers of tensors that a test saved."""

    name = "saved arrays and archives"

    def __init__(self) -> None:
        super().__init__()
        text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }".ljust(117) + b"\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(48)
        header = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
        tensors = struct.pack("<Q", len(header)) + header + bytes(8)
        pickled = pickle.dumps({"a": [1, 2], "b": "x" * 50}, protocol=2)
        torch = {"archive/data.pkl": pickled, "archive/version": b"3", "archive/data/0": bytes(64)}
        self.honest: tuple[tuple[Format, bytes], ...] = (
            ("npy", array),
            ("safetensors", tensors),
            ("zip", archive_of({"a.npy": array, "b.npy": array})),
            ("zip", archive_of(torch)),
            ("json", b'{"a": [1, 2, {"b": null}]}'),
        )
        self.file = (self.folder / "saved").open("w+b")

    def read(self, draw: random.Random) -> str:
        """Say whether a hostile file can be loaded."""
        form, data = draw.choice(self.honest)
        if draw.randrange(20) == 0:
            deep = draw.choice((b"-", b"(", b"[", b"{'a':", b"9")) * draw.choice((300, 70_000))
            data = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(deep)) + deep
            form = "npy"
        self.file.seek(0)
        self.file.truncate()
        self.file.write(spoilt(data, draw))
        self.file.flush()
        return "cannot be loaded" if problem_of(self.file, form) else "can be loaded"

    def close(self) -> None:
        """Remove the folder."""
        self.file.close()
        super().close()


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return held.getvalue()


class ArchiveTarget(_Foreign):
    """Archives that another process of a run sends."""

    name = "archives of nodes"
    names = ("rank-1.log", "rank-1.stacks", "rank-2.log", "rank-0.log", "../rank-1.log", "a", "..")

    def read(self, draw: random.Random) -> str:
        """Write the files of a hostile archive."""
        names = draw.sample(self.names[:3], 2) if draw.randrange(3) else draw.sample(self.names, 3)
        sizes = (0, 10, 1000, 100_000)
        content = {each: draw.choice((b"x", b"\0")) * draw.choice(sizes) for each in names}
        payload = archive_of(content)
        if draw.randrange(4):
            payload = spoilt(payload, draw)
        victim = self.inside / "victim"
        victim.write_text("precious")
        run = self.inside / "run"
        run.mkdir()
        (run / "rank-2.log").symlink_to(victim)
        try:
            write_files(payload, run, [1, 2])
        except UnreadableError as error:
            return self.refused(error)
        finally:
            assert victim.read_text() == "precious"
            assert {each.name for each in self.inside.iterdir()} == {"run", "victim"}
            assert {each.name.partition(".")[0] for each in run.iterdir()} <= {"rank-1", "rank-2"}
        return "written"


class PageTarget(_Foreign):
    """Slot pages and histories that a rank, or another process of a run, has spoilt."""

    name = "slot pages"

    def __init__(self) -> None:
        super().__init__()
        made = SlotPage.create(slots_path(self.folder, 0))
        for ranks in ((0, 1, 2), (0, 2)):
            call = made.call("all_reduce", "collective", made.group(ranks), root=0)
            for number in range(5):
                at = made.begin(call, 1_000_000_000 + number, 7, (made.text("a.py"), 3, 0))
                if number % 2:
                    made.end(at, 2_000_000_000)
        self.page = made.path.read_bytes()
        self.history = history_path(made.path).read_bytes()[:100_000]
        self.used = (*range(20), *range(8208, 8208 + 104 * 12), *range(SIZE - TEXT_BYTES, SIZE))

    def read(self, draw: random.Random) -> str:
        """Read a hostile page as the watchdog does."""
        page, history = bytearray(self.page), bytearray(self.history)
        for _ in range(draw.choice((1, 3, 20))):
            at = draw.choice(self.used) if draw.randrange(3) else len(self.page) - TEXT_BYTES
            at += 0 if draw.randrange(3) else draw.randrange(80)
            at = min(at, len(page) - 8)
            if draw.randrange(2):
                page[at] = draw.randrange(256)
            else:
                page[at : at + 4] = draw.choice(
                    (b"\xff\xff\xff\xff", b"[[[0", b"\0\0\0\0", b"1e99")
                )
            history[draw.randrange(500)] = draw.randrange(256)
        found = bytes(page[: draw.choice((0, 7, 5000))] if draw.randrange(20) == 0 else page)
        if draw.randrange(4) == 0:
            found, history = spoilt(found, draw), bytearray(spoilt(bytes(history), draw))
        path = slots_path(self.inside, 0)
        path.write_bytes(found)
        history_path(path).write_bytes(history)
        try:
            with parsing("its snapshot"):  # as `Peer.reading`
                check_page(found)
                shift_times(move_files(found, "/a", "/b"), draw.choice((0, 1, -(10**12), 10**18)))
            end = "sound"
        except UnreadableError as error:
            end = self.refused(error)
        read_slots(path, rank=0)
        read_open_operations(path, rank=0)
        read_histories(path, rank=0)
        read_record(path, rank=0)
        read_waiting(path)
        return end


class ElfTarget(_Foreign):
    """Libraries that another user's process has mapped."""

    name = "mapped libraries"

    def __init__(self) -> None:
        super().__init__()
        source = next(Path(each) for each in ("/lib", "/lib64", "/usr/lib") if Path(each).exists())
        small = min(source.rglob("lib*.so.*"), key=lambda e: abs(e.stat().st_size - 30_000))
        self.library = small.read_bytes()

    def read(self, draw: random.Random) -> str:
        """Look for the names of functions in a hostile library."""
        data = bytearray(self.library)
        tables = (range(64), range(64, 1000), range(len(data) - 3000, len(data)))
        for _ in range(draw.choice((1, 2, 6))):
            at = draw.choice(draw.choice(tables))
            size = draw.choice((1, 2, 4, 8))
            word = draw.choice((0, 1, 255, 1 << 31, (1 << 40) - 1, 1 << 62, (1 << 64) - 1))
            data[at : at + size] = word.to_bytes(8, "little")[:size]
        path = self.inside / "lib.so"
        path.write_bytes(spoilt(bytes(data), draw) if draw.randrange(5) == 0 else data)
        if draw.randrange(5) == 0:
            os.truncate(path, 20 << 30)
        elf.exported_function.cache_clear()
        elf.exported_function(str(path), "main")
        known = dict(elf._known)
        table = elf.symbol_table(str(path))
        try:
            names = [table.name_at_offset(at) for at in (0, 5000, 20_000, 1 << 40)]
        finally:
            elf._known.clear()
            elf._known.update(known)
            if table.file >= 0:
                os.close(table.file)
        return "names" if any(names) else "no names"


class TokenTarget(_Foreign):
    """A replay token, as the options of a run and the command `reproduce` read it."""

    name = "replay tokens"
    fault = ("raise_at", [1], {"point": "collective", "name": "barrier"}, {"error": "OSError"}, 1)
    options = (["ranks", "2"], ["backend", "gloo"], ["timeout", "7"])
    honest: Mapping[str, Any] = {
        "v": 1,
        "t": 7,
        "n": 2,
        "s": 5,
        "c": ["clock"],
        "f": [[*fault]],
        "o": [*options],
    }

    def read(self, draw: random.Random) -> str:
        """Read a hostile token, whose checksum mostly fits."""
        kind = draw.randrange(10)
        if kind == 0:
            data = draw.choice((deep(draw, "[", "]"), deep(draw, '{"a":', "}"), draw.randbytes(40)))
        else:
            data = _json(damaged(self.honest, draw))
        sealed = data + zlib.crc32(data).to_bytes(4, "big")
        text = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        if kind == 1:
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(TEXTS) + text[at:]
        try:
            found = read_token(text)
        except SettingError as error:
            require_printable(str(error))
            return self.refused(error)
        assert 0 <= found.size <= 10_000
        problems = [each for fault in found.faults for each in fault.problems()]
        return "a token with faults that are refused" if problems else "a token"


class FactsTarget(_Foreign):
    """A facts.json, as `multihost explain` and `multihost report` judge it again."""

    name = "facts.json"

    def __init__(self) -> None:
        super().__init__()
        recorded = Path(__file__).parents[1].joinpath("recorded").glob("*.json.gz")
        chosen = sorted(recorded, key=lambda path: path.stat().st_size)[:6]
        self.records = [json.loads(gzip.decompress(path.read_bytes())) for path in chosen]

    def read(self, draw: random.Random) -> str:
        """Judge a hostile facts.json again."""
        record = draw.choice(self.records)
        data, kind = _json(damaged(record["facts"], draw)), draw.randrange(12)
        path = self.inside / "facts.json"
        if kind == 0:
            special_file(path, draw, self.secret)
        else:
            path.write_bytes(deep(draw, "[", "]") if kind == 1 else data)
        (self.inside / "verdict.json").write_bytes(_json(record["verdict"]))
        try:
            again = rejudge(self.inside, self.sources)
        except MultihostError as error:
            require_printable(str(error))
            return self.refused(error)
        assert SECRET_LINE not in json.dumps(again.verdict.record(), default=repr)
        return "judged"


class LogTarget(_Foreign):
    """A log of a job, some of whose lines are changed, lost, repeated or mixed."""

    name = "logs"

    def __init__(self) -> None:
        super().__init__()
        self.lines = [
            line
            for path in sorted((ROOT / "tests/extensions/logs/real").rglob("*.*"))
            for line in path.read_bytes().splitlines(keepends=True)
        ]
        self.lines += [
            b"[rank1]: [PG ID 2 PG GUID 9 Rank 1] WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n",
            b"[rank1]: [PG ID 2 PG GUID 9 Rank 1] last enqueued work: 9, last completed work: 6\n",
            b"  Communicator ranks have different AllGather operation counts\n",
            b"  3 ranks have launched up to operation 640\n",
            b"  Rank 2 -- GPU 4 managed by process 3 on node N\n",
            b"srun: error: n1: tasks 0-9999999,3: Killed\n",
            b'Process 7: python x\n\nThread 7 (idle): "MainThread"\n    f (a.py:3)\n',
            b"TP0-99999: x\n  f (torch/distributed/distributed_c10d.py:3)\n",
            b"[rank0]:[E CCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0]\n",
            b"\t - [0] Timeout at collective: ALLREDUCE, #7\n\t   #6 finished ranks:\n",
            b"\t     [1, 99999999] finished collective #6, but didn't join collective #7\n",
            b"[rank1]:[E CCL.cpp:1] Stack trace of the failed collective: \n#0 f from /a.py:3\n",
            b"  Missing communicator data from 1 rank\n  Process 7 on node N managing GPU 0\n",
            b"Process 7: x\n\nError: Failed to get stack traces\n",
        ]

    def read(self, draw: random.Random) -> str:
        """Explain a log of lines that belong together, and of others."""
        start = draw.randrange(len(self.lines))
        lines = self.lines[start : start + draw.choice((3, 30, 80))]
        for _ in range(draw.randrange(6)):
            lines.insert(draw.randrange(len(lines) + 1), draw.choice(self.lines))
        data = bytearray(b"".join(lines))
        for _ in range(draw.choice((0, 1, 5, 50))):
            at = draw.randrange(len(data) + 1)
            piece = draw.choice((*TEXTS, *map(str, NUMBERS[:6]), SECRET_LINE[:5]))
            data[at : at + draw.choice((0, 1, 20))] = piece.encode("utf-8", "surrogatepass")
        path = self.inside / draw.choice(("job.log", "rank3.log", "a::error::.log"))
        path.write_bytes(gzip.compress(data) if draw.randrange(9) == 0 else data)
        context = context_of(str(self.inside), self.sources)
        judged = judge_paths([path], path.name, context)
        require_printable(page_of(judged, path.name))
        if draw.randrange(20) == 0:
            verdict = build_verdict(judged, Attempt("run", "dir", None, {}))
            page = write_page(self.inside, PageModel(judged=judged, verdict=verdict))
            assert not CONTROL.search(page.read_text("utf-8"))
        return "judged" if judged.diagnosis is not None else "nothing follows"


FOREIGN = (
    TokenTarget,
    FactsTarget,
    DumpTarget,
    LogTarget,
    SweepTarget,
    AcceptTarget,
    ProcessTarget,
    ArrayTarget,
    ArchiveTarget,
    PageTarget,
    ElfTarget,
)
