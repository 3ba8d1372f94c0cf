"""report.html in a real browser: it works by hand, by keyboard, and without a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

Pages = dict[str, Path]
GENEROUS_MS = 5000
"""What is promised is a second, on a machine that is idle: `python benchmarks/report.py` tells."""


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("small", 1280, "light"),
        ("small", 420, "dark"),
        ("hostile", 1280, "dark"),
        ("hostile", 420, "light"),
        ("small run", 1280, "dark"),
        ("hostile run", 420, "light"),
        ("sweep", 1280, "light"),
        ("sweep", 390, "dark"),
        ("sweep", 390, "light"),
        ("passed sweep", 390, "light"),
        ("passed sweep", 1280, "dark"),
    ],
)
def test_a_page_is_sound(open_page, pages: Pages, name: str, width: int, scheme: str) -> None:
    """Nothing in the console, nothing asked for, nothing too wide, nothing that axe minds."""
    opened = open_page(pages[name], width=width, scheme=scheme)
    assert opened.said == []
    assert opened.asked == [pages[name].as_uri()]
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert serious(opened.tab) == []


def serious(tab: Any) -> list[str]:  # noqa: ANN401 - playwright's page
    """Return what axe finds that keeps people out."""
    reason = "axe-playwright-python is not installed: pip install --group browser"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason)
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = axe.Axe().run(tab).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_no_word_of_a_test_becomes_part_of_the_page(open_page, pages: Pages) -> None:
    """Neither does its script run, nor does its picture load."""
    opened = open_page(pages["hostile"])
    assert opened.tab.title() != "caught"
    assert opened.tab.evaluate("[document.scripts.length, document.images.length]") == [2, 0]
    assert "onerror=alert(1)" in opened.tab.inner_text("main")


def test_64_ranks_and_10000_operations_open_soon(open_page, pages: Pages) -> None:
    """The browser's own clock, from the start of the navigation until the lanes are drawn."""
    opened = open_page(pages["big"])
    drawn_ms = opened.tab.evaluate("performance.getEntriesByName('lanes drawn')[0].startTime")
    assert drawn_ms < GENEROUS_MS
    count = opened.tab.evaluate("lanes.reduce((sum, each) => sum + each.operations.length, 0)")
    assert count > 9_900
    assert opened.said == []


def test_the_summary_and_the_culprit_are_on_the_first_screen(open_page, pages: Pages) -> None:
    """Without scrolling, on a desk and on a telephone."""
    for width in (1280, 420):
        tab = open_page(pages["big"], width=width).tab
        for what in ("h1", "li.culprit"):
            area = tab.locator(what).first.bounding_box()
            assert area["y"] + area["height"] < 900


# By hand


def test_a_click_chooses_an_operation_and_says_who_entered_it(open_page, pages: Pages) -> None:
    """All that met there, and who did not."""
    opened = open_page(pages["small"])
    assert "not by rank 1" in opened.chosen()  # what the verdict is about is chosen at first
    opened.tab.locator("#lanes").scroll_into_view_if_needed()
    opened.tab.mouse.click(*opened.center_of(2, 4))
    assert "rank 2 entered it at +" in opened.chosen()
    assert "#5" in opened.chosen()
    assert "Entered by ranks 0-3" in opened.chosen()


def test_of_a_mismatch_the_other_operation_is_named(open_page, pages: Pages) -> None:
    """The arrows lead to the odd one out, although it waits for the others as well."""
    opened = open_page(pages["mismatch"])
    assert "by rank 1 as broadcast" in opened.chosen()
    assert opened.tab.evaluate("targets") == [1]


def test_a_click_on_a_rank_tells_of_it(open_page, pages: Pages) -> None:
    """What it did, and how much."""
    opened = open_page(pages["small"])
    opened.tab.click(".names >> text=rank 1")
    assert "rank 1 io" in opened.chosen()
    assert "19 operations" in opened.chosen()


def test_a_part_of_the_time_can_be_drawn_out(open_page, pages: Pages) -> None:
    """By dragging across it; a button shows all again."""
    opened = open_page(pages["small"])
    opened.tab.locator("#lanes").scroll_into_view_if_needed()
    left, y = opened.center_of(0, 2)
    right, _ = opened.center_of(0, 6)
    opened.tab.mouse.move(left, y)
    opened.tab.mouse.down()
    opened.tab.mouse.move(right, y, steps=4)
    opened.tab.mouse.up()
    wider = opened.center_of(0, 6)[0] - opened.center_of(0, 2)[0]
    assert wider > 2 * (right - left)
    opened.tab.click("[data-zoom=all]")
    again = opened.center_of(0, 6)[0] - opened.center_of(0, 2)[0]
    assert again == pytest.approx(right - left)


def test_the_line_that_runs_it_again_is_copied(open_page, pages: Pages) -> None:
    """As it stands there."""
    opened = open_page(pages["small"], permissions=["clipboard-read", "clipboard-write"])
    opened.tab.click("text=Copy")
    opened.tab.locator("text=Copied").wait_for()
    copied = opened.tab.evaluate("navigator.clipboard.readText()")
    assert copied == opened.tab.inner_text("#command")
    assert copied.startswith("pytest ")


def test_where_there_is_no_clipboard_the_line_is_selected(open_page, pages: Pages) -> None:
    """So that Ctrl+C takes it."""
    opened = open_page(pages["small"])
    opened.tab.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    opened.tab.click("text=Copy")
    selected = opened.tab.evaluate("getSelection().toString()")
    assert selected == opened.tab.inner_text("#command")


def test_the_page_follows_the_system_from_light_to_dark(open_page, pages: Pages) -> None:
    """The lanes as well, which no style sheet paints."""
    tab = open_page(pages["small"]).tab
    pixel = "[...canvas.getContext('2d').getImageData(3, canvas.height - 3, 1, 1).data].join()"
    corner = f"(() => {{ draw(); return colors.card + {pixel}; }})()"
    light = tab.evaluate(corner)
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function(f"light => {corner} !== light", arg=light)


def test_the_run_and_its_tests_lead_to_each_other(open_page, pages: Pages) -> None:
    """From disk, by relative links."""
    tab = open_page(pages["small run"]).tab
    tab.click("td a")
    assert "never reached" in tab.inner_text("h1")
    tab.click("text=All tests of this run")
    assert tab.inner_text("h1") == "1 hung"


# By keyboard


def test_lanes_are_read_by_keyboard(open_page, pages: Pages) -> None:
    """Up and down choose a rank, left and right one of its operations, Escape none."""
    opened = open_page(pages["small"])
    tab = opened.tab
    while tab.evaluate("document.activeElement.id") != "lanes":
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement !== document.body")
    tab.keyboard.press("Escape")
    assert opened.chosen() == ""
    tab.keyboard.press("ArrowDown")
    assert opened.chosen().startswith("rank 1 ")  # the culprit's lane is the first
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert "rank 0 entered it" in opened.chosen()
    tab.keyboard.press("ArrowRight")
    assert "#2" in opened.chosen()
    before = opened.center_of(0, 2)[0] - opened.center_of(0, 1)[0]
    tab.keyboard.press("+")
    assert opened.center_of(0, 2)[0] - opened.center_of(0, 1)[0] == pytest.approx(2 * before)
    tab.keyboard.press("0")
    assert opened.center_of(0, 2)[0] - opened.center_of(0, 1)[0] == pytest.approx(before)


def test_a_screen_reader_is_told_what_is_chosen(open_page, pages: Pages) -> None:
    """The drawing itself is hidden from it."""
    tab = open_page(pages["small"]).tab
    assert tab.get_attribute("#selection", "aria-live") == "polite"
    assert tab.get_attribute("canvas", "aria-hidden") == "true"
    assert "Arrow keys" in tab.get_attribute("#lanes", "aria-label")


# Without a script


def test_without_a_script_all_but_the_lanes_can_be_read(open_page, pages: Pages) -> None:
    """And that something is missing is said."""
    tab = open_page(pages["small"], java_script_enabled=False).tab
    words = tab.locator("body").inner_text()
    assert "never reached" in words
    assert "return handle.read()" in words
    assert "A script draws the lanes" in words


# The page of a sweep


def test_a_cell_of_a_sweep_opens_its_runs_by_keyboard(open_page, pages: Pages) -> None:
    """Enter opens and closes; arrows go from cell to cell."""
    tab = open_page(pages["sweep"]).tab
    assert tab.locator("tr.runs:visible").count() == 0
    tab.locator("button.cell").first.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("tr.runs:visible").count() == 1
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.getAttribute('aria-controls')") == "c1-0"
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Enter")
    assert tab.locator("tr.runs:visible").count() == 0


def test_a_weakness_leads_to_its_cell(open_page, pages: Pages) -> None:
    """Its runs are open when one gets there."""
    tab = open_page(pages["sweep"]).tab
    tab.locator("a", has_text="in the matrix").first.click()
    assert tab.locator("tr.runs:visible").count() == 1
    assert "hangs" in tab.evaluate("document.activeElement.textContent")


def test_without_a_script_all_runs_of_a_sweep_are_shown(open_page, pages: Pages) -> None:
    """Nothing is hidden that cannot be opened."""
    tab = open_page(pages["sweep"], java_script_enabled=False).tab
    assert tab.locator("tr.runs:visible").count() == tab.locator("tr.runs").count() > 0
