"""The parts of the guide that the code knows are as the code is now: `make made`."""

from __future__ import annotations

import json
from pathlib import Path

import made
import pytest
import schemas

from pytest_multihost import World

DOCS = Path(made.__file__).parent
PARTS = [
    pytest.param(each["name"], each["text"], id=f"{path.name}-{each['name']}")
    for path in sorted(DOCS.rglob("*.md"))
    for each in made.PART.finditer(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("name", "text"), PARTS)
def test_a_made_part_of_a_page_is_as_the_code_is_now(name: str, text: str) -> None:
    """An option that nobody has written about is in the guide, and one that is gone is not."""
    assert made.part(name) == text


def test_every_part_that_can_be_made_is_on_a_page() -> None:
    """Else it is made for nobody."""
    assert {each.values[0] for each in PARTS} >= made.PARTS.keys()


def test_each_member_of_a_world_has_an_example() -> None:
    """And no example is of a member that is gone."""
    assert made.EXAMPLES.keys() == {name for name in vars(World) if not name.startswith("_")}


@pytest.mark.parametrize("name", schemas.FILES)
def test_a_schema_is_that_of_the_classes(name: str) -> None:
    """A field that is added to a class is added to the schema."""
    text = (schemas.FOLDER / name).read_text(encoding="utf-8")
    assert text == schemas.text_of(schemas.FILES[name]())


def test_the_example_of_verdict_json_has_its_schema() -> None:
    """The guide shows a whole one. What runs write is held against it in other tests."""
    jsonschema = pytest.importorskip("jsonschema")
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    text = page.partition("<!-- example: verdict -->\n```json\n")[2].partition("\n```")[0]
    jsonschema.validate(json.loads(text), schemas.verdict_schema())
