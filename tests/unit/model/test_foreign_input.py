"""Whatever a dump, sweep.json, an accept file or a process holds, it is read, or refused."""

from __future__ import annotations

import pytest
from foreign import FOREIGN
from hostile import fuzz

from pytest_multihost.core.launch import read_membership
from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.json_values import JsonError, parse_foreign

INPUTS = 150
"""As many as the suite has time for; `make fuzz` takes more."""


@pytest.mark.parametrize("target", FOREIGN, ids=lambda target: target.__name__)
def test_hostile_input_is_read_or_refused(target) -> None:
    """No other exception, no control character, and no line of a file outside the roots."""
    assert fuzz(target, INPUTS).inputs >= INPUTS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 102 + b"]" * 102, "nested"),
        (b"[" * 100_000, "not a JSON text"),
        (b"[" + b"[]," * 2_000_001 + b"1]", "values"),
        (b"[" + b"9" * 30 + b"]", "too large"),
        (b"9" * 5000, "not a JSON text"),
        (b"\xff", "not a JSON text"),
    ],
)
def test_json_without_bounds_is_refused(text: bytes, why: str) -> None:
    """Depth, count and digits are bounded."""
    with pytest.raises(JsonError, match=why):
        parse_foreign(text)


def test_honest_json_is_within_the_bounds() -> None:
    """So is a text that is nested as deep as allowed."""
    assert parse_foreign(b"[" * 100 + b"1" + b"]" * 100)
    assert parse_foreign(b'{"a": [1, 2.5, null, -9223372036854775808]}')


@pytest.mark.parametrize("size", ["2147483647", "10001", "9" * 5000, "٣", "-1", "1_0", " 2"])
def test_a_size_that_cannot_be_is_no_membership(size: str) -> None:
    """Any process on the machine may have it in its environment."""
    with pytest.raises(SettingError, match="WORLD_SIZE must be") as error:
        read_membership({"RANK": "0", "WORLD_SIZE": size})
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "٣", "-1"])
def test_a_port_that_cannot_be_is_no_membership(port: str) -> None:
    """Numbers without bounds are refused as other texts are."""
    with pytest.raises(SettingError, match="must be HOST:PORT"):
        read_membership(
            {
                "PYTEST_MULTIHOST_RANK": "0",
                "PYTEST_MULTIHOST_SIZE": "2",
                "PYTEST_MULTIHOST_ADDRESS": f"h:{port}",
            }
        )
