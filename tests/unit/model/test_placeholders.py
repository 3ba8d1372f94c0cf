"""Names in braces in the program of a role."""

from __future__ import annotations

import pytest

from pytest_multihost.core.model.placeholders import filled

VALUES, PORTS = {"port": 20001, "rank": 1, "size": 2}, {"driver": 20009}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--port {port} --tp {size}", "--port 20001 --tp 2"),
        ("{ports[driver]}-{rank}", "20009-1"),
        ("no names", "no names"),
        ('{"kv_role": {"a": {}}}', '{"kv_role": {"a": {}}}'),
        ('{"port": {port}}', '{"port": 20001}'),
        ("{{port}} {{any}}", "{port} {any}"),
        ("{} {0} { port }", "{} {0} { port }"),
    ],
)
def test_names_have_values_and_other_braces_stay(text: str, expected: str) -> None:
    """Arguments that are JSON need no escapes."""
    assert filled(text, VALUES, PORTS) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "{prot}",
            "there is no {prot}; there are: port, rank, size, ports[ROLE]. Did you mean port",
        ),
        ("{ports}", "there is no {ports}"),
        ("{rank[driver]}", r"there is no {rank[driver]}"),
        ("{ports[dirver]}", "there is no role 'dirver'; there are: driver. Did you mean driver?"),
    ],
)
def test_an_unknown_name_is_an_error(text: str, why: str) -> None:
    """It says which names there are."""
    with pytest.raises(ValueError) as found:  # noqa: PT011 - the text is checked below
        filled(text, VALUES, PORTS)
    assert why in str(found.value)
