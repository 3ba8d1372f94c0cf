"""Numbers and names on pages of the guide that were once wrong are those of the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import pytest_multihost
from pytest_multihost import faults
from pytest_multihost.core.backends import Backend
from pytest_multihost.faults.kind import FaultKind
from pytest_multihost.testing import Kind

ROOT = Path(__file__).resolve().parents[2]


def read(page: str) -> str:
    """Return the text of a page, without line breaks."""
    return " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


def test_the_guide_says_which_faults_need_a_point_and_which_have_none() -> None:
    """All others strike at the start unless a point is named."""
    functions = {
        name: inspect.signature(each).parameters
        for name, each in vars(faults).items()
        if inspect.isfunction(each) and each.__module__ == faults.__name__ and name[0] != "_"
    }
    points = {name: given["at"] for name, given in functions.items() if "at" in given}
    needs = {name for name, point in points.items() if point.default is point.empty}
    lacks = functions.keys() - points.keys()
    said = re.findall(r"by default the start\. (.*?) need one; (.*?) have none", read("faults.md"))[
        0
    ]
    assert set(re.findall(r"`(\w+)`", said[0])) == needs
    assert set(re.findall(r"`(\w+)`", said[1])) == lacks


@pytest.mark.parametrize("kind", [Backend, FaultKind])
def test_the_guide_describes_each_field_of_what_a_plugin_offers(kind: type) -> None:
    """An author of a plugin looks there, not into the code."""
    page = read("extending.md")
    assert [each.name for each in fields(kind) if f"`{each.name}" not in page] == []


def test_the_guide_describes_each_kind_of_hang() -> None:
    """In the table that a reader of a report looks into."""
    page = read("reading.md")
    assert [kind for kind in get_args(Kind) if f"| `{kind}` |" not in page] == []


def test_the_guide_describes_each_key_of_the_marker(pytestconfig: pytest.Config) -> None:
    """With its default."""
    [marker] = [each for each in pytestconfig.getini("markers") if each.startswith("multihost(")]
    keys = re.findall(r"(\w+)=", marker.partition("): ")[0])
    assert len(keys) > 8
    assert [key for key in keys if f"| `{key}` |" not in read("settings.md")] == []


def test_the_reference_names_all_that_users_import() -> None:
    """The rest is internal."""
    page = read("api.md")
    assert [name for name in pytest_multihost.__all__ if name not in page] == []


def test_the_guide_says_which_dumps_are_too_large() -> None:
    """They are left out, which would surprise a user who has not read it."""
    source = (ROOT / "pytest_multihost/extensions/flight/plain_pickle.py").read_text("utf-8")
    limits = dict(re.findall(r"(?m)^_MAX_(CODES|VALUES) = ([\d_]+)$", source))
    codes, values = int(limits["CODES"]), int(limits["VALUES"])
    assert f"more than {codes:,} codes or {values:,} values" in read("explain.md")


def test_each_variable_that_a_user_sets_is_one_of_the_package() -> None:
    """A variable of the guide that nothing reads would be set in vain."""
    texts = "\n".join(path.read_text("utf-8") for path in (ROOT / "pytest_multihost").rglob("*.py"))
    page = read("settings.md").partition("## Environment variables that you set")[2]
    named = set(re.findall(r"`(PYTEST_MULTIHOST_\w+)", page.partition("## skip")[0]))
    assert len(named) >= 6
    assert [name for name in named if name not in texts] == []


def test_the_changelog_has_the_version() -> None:
    """The workflow of a release refuses a tag without it."""
    version = re.findall(r'(?m)^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert f"\n## {version[0]} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


OUTSIDE = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "docker").glob("*.md"),
    *(ROOT / "conftest_examples").rglob("*.md"),
    *(ROOT / "changelog").glob("README.md"),
]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"<[^>]+>|[^\w\s-]", "", each).strip().lower() for each in headings)
    return {re.sub(r"[\s-]+", "-", each) for each in plain}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_outside_of_the_guide_leads_somewhere(page: Path) -> None:
    """`make docs` checks those of the guide."""
    lost = []
    for target in re.findall(r"\]\(([^)#:]*(?:#[\w-]+)?)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []
