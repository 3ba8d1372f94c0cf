"""The slot page of a rank whose project lies below another folder."""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.core.slots.page import SIZE, SlotPage, move_files, texts_of


def page_with(tmp_path: Path, *texts: str) -> bytes:
    """Return a page with these texts."""
    file = tmp_path / "page"
    page = SlotPage.create(file)
    for each in texts:
        page.text(each)
    return file.read_bytes()


def test_files_below_the_folder_are_moved(tmp_path: Path) -> None:
    """All other texts stay, and every text keeps its number."""
    page = page_with(tmp_path, "/there/a.py", "/therein/b.py", "f", "/there/c/d.py")
    before, after = texts_of(page), texts_of(move_files(page, "/there", "/much/longer/here"))
    moved = {
        "/there/a.py": "/much/longer/here/a.py",
        "/there/c/d.py": "/much/longer/here/c/d.py",
    }
    assert {n: moved.get(text, text) for n, text in before.items()} == dict(after)
    assert "/therein/b.py" in after.values()


def test_a_page_keeps_its_size(tmp_path: Path) -> None:
    """Texts for which there is no room any more are empty."""
    page = page_with(tmp_path, *(f"/t/{'x' * 900}{n}.py" for n in range(100)))
    moved = move_files(page, "/t", "/" + "y" * 5000)
    assert len(moved) == SIZE
    assert len(texts_of(moved)) == len(texts_of(page))


def test_a_history_has_no_texts(tmp_path: Path) -> None:
    """It stays as it is."""
    assert move_files(b"\0" * 100, "/there", "/here") == b"\0" * 100
