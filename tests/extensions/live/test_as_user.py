"""Root reads another user's job with that user's rights, and takes texts from the reader."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from pytest_multihost.extensions.live import as_user as module
from pytest_multihost.extensions.live.as_user import Texts, User, as_user, become, user_of, why_not
from pytest_multihost.extensions.live.command import _printable
from pytest_multihost.extensions.live.reader import Stacks
from pytest_multihost.extensions.live.user_reader import UserReader
from pytest_multihost.testing import KernelSnapshot, MultihostError

ALICE = User(4711, 4711)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root takes the rights of others"),
]


def test_the_reader_has_the_rights_of_the_jobs_user() -> None:
    """For good, in all three of its users and in its groups."""

    def look() -> Texts:
        with pytest.raises(PermissionError):
            os.setuid(0)
        status = Path("/proc/self/status").read_text("utf-8")
        return Texts(page=f"{os.getresuid()} {os.getresgid()} {os.getgroups()}", verdict=status)

    found = as_user(ALICE, look, Texts)
    assert found.page == "(4711, 4711, 4711) (4711, 4711, 4711) [4711]"
    assert "NoNewPrivs:\t1" in found.verdict
    assert "CapEff:\t0000000000000000" in found.verdict or module._SCOPE.exists()


def test_the_reader_reads_nothing_that_is_roots(tmp_path: Path) -> None:
    """Neither a file of root's, nor the memory of a process of root's; and it ends none."""
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    tmp_path.chmod(0o755)
    parent = os.getpid()

    def look() -> Texts:
        for path in (str(secret), f"/proc/{parent}/environ", "/etc/shadow"):
            with pytest.raises(OSError, match="ermission"):
                os.open(path, os.O_RDONLY)
        with pytest.raises(PermissionError):
            os.kill(parent, 0)
        return Texts(page="nothing")

    assert as_user(ALICE, look, Texts).page == "nothing"


def test_this_process_stays_root() -> None:
    """It writes the files that were asked for."""
    as_user(ALICE, Texts, Texts)
    assert os.geteuid() == 0


def test_an_error_of_the_reader_is_that_of_the_command() -> None:
    """With its three parts."""

    def look() -> Texts:
        raise MultihostError("it happened", seen="this", remedy="do that")

    with pytest.raises(MultihostError) as found:
        as_user(ALICE, look, Texts)
    assert found.value.parts == ("it happened", "this", "do that")


def test_a_reader_that_the_job_has_misled_brings_texts_at_most() -> None:
    """One that dies, or that answers with something else, has brought nothing."""
    with pytest.raises(MultihostError, match="could not be read"):
        as_user(ALICE, lambda: os._exit(0), Texts)  # type: ignore[arg-type, return-value]
    with pytest.raises(MultihostError, match="could not be read"):
        as_user(ALICE, lambda: 7, Texts)  # type: ignore[arg-type, return-value]


def test_a_reader_that_its_user_stops_or_delays_is_given_up() -> None:
    """Its user may stop it, or make it wait for memory that never comes."""

    def stopped() -> Texts:
        os.kill(os.getpid(), signal.SIGSTOP)
        return Texts()

    def late() -> Texts:
        time.sleep(600)
        return Texts()

    with pytest.raises(MultihostError, match="stopped by another process"):
        as_user(ALICE, stopped, Texts)
    with pytest.raises(MultihostError, match=r"took over 0\.2 s"):
        as_user(ALICE, late, Texts, limit_s=0.2)


def test_the_reader_does_not_have_roots_terminal() -> None:
    """Who has it could type commands into it; what it says arrives without escape sequences."""

    def look() -> Texts:
        os.write(2, b"says \x1b]0;title\x07\n")
        return Texts(page=f"{[os.isatty(each) for each in range(3)]} {os.getsid(0) == os.getpid()}")

    child, terminal = pty.fork()
    if not child:
        try:
            sys.stderr = sys.__stderr__  # not what captures it
            os.write(1, f"{as_user(ALICE, look, Texts).page}\n".encode())
        finally:
            os._exit(0)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(terminal, 1 << 12):
            shown += part
    os.waitpid(child, 0)
    assert "[False, False, False] True" in shown.decode()
    assert "says \u241b]0;title\u2407" in shown.decode()


def test_the_colours_of_a_page_are_shown_and_nothing_else() -> None:
    """A terminal does what other sequences say."""
    assert _printable("\x1b[1;31mHUNG\x1b[0m  \x1b[2J") == "\x1b[1;31mHUNG\x1b[0m  \u241b[2J"


def test_ranks_that_are_judged_with_those_of_other_machines_are_read_by_their_user() -> None:
    """Each reading is a child with the user's rights, and root gets what it has read."""

    class Reader:
        def shallow_snapshot(self) -> KernelSnapshot:
            return KernelSnapshot(at_s=float(os.geteuid()), processes=())

        deep_snapshot = shallow_snapshot

        def read_stacks(self, *, reads_native: bool) -> Stacks:
            assert reads_native
            return Stacks(now=self.deep_snapshot())

        def turns(self, idle: Collection[int]) -> Mapping[int, int] | None:
            return dict.fromkeys(idle, 0)

    reader = UserReader(Reader(), ALICE)
    assert reader.shallow_snapshot().at_s == ALICE.uid
    assert reader.deep_snapshot().at_s == ALICE.uid
    assert reader.read_stacks(reads_native=True).now.at_s == ALICE.uid
    assert reader.turns([1]) is None
    assert os.geteuid() == 0


def test_the_user_is_that_of_the_processes() -> None:
    """Root's own job is read as root; one of several users is none."""
    with (
        subprocess.Popen(["sleep", "60"], user=4711, group=4711) as alices,
        subprocess.Popen(["sleep", "60"], user=4712, group=4712) as mallorys,
        subprocess.Popen(["sleep", "60"]) as roots,
    ):
        try:
            assert user_of([alices.pid]) == ALICE
            assert user_of([roots.pid]) is None
            with pytest.raises(MultihostError, match="several users"):
                user_of([alices.pid, mallorys.pid])
            with pytest.raises(MultihostError, match="several users"):
                user_of([alices.pid, roots.pid])
        finally:
            for each in (alices, mallorys, roots):
                each.kill()


def test_a_program_that_only_root_may_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Python in root's home: its user could not go on to read modules."""
    python = tmp_path / "python"
    python.touch(mode=0o700)
    monkeypatch.setattr("sys.executable", str(python))
    assert why_not(ALICE).startswith("may not read")


def test_a_user_without_a_name_has_rights_as_well() -> None:
    """As in a container."""
    child = os.fork()
    if not child:
        try:
            become(User(54_321, 54_321))
        finally:
            os._exit(int(os.getresuid() != (54_321,) * 3))
    assert os.waitpid(child, 0)[1] == 0
