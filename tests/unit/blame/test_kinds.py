"""The kinds of hangs: each is complete, and the contract of verdict.json names all of them."""

from typing import get_args

from pytest_multihost.core.blame.kinds import KINDS, kind_of
from pytest_multihost.testing import Kind


def test_each_kind_of_the_contract_is_an_object_in_the_same_order() -> None:
    """A kind that `Kind` or `KINDS` lacks, or has at another place, fails here."""
    assert tuple(each.name for each in KINDS) == get_args(Kind)


def test_each_kind_explains_itself_and_says_what_to_do_next() -> None:
    """A page never lacks a sentence, and none ends without a full stop."""
    texts = [text for each in KINDS for text in (each.meaning, each.next_step)]
    assert all(text.endswith(".") for text in texts)
    assert len({*texts}) == 2 * len(KINDS)


def test_the_kind_of_a_name_is_its_object() -> None:
    """The name of a diagnosis leads to its kind."""
    assert [kind_of(each.name) for each in KINDS] == [*KINDS]
