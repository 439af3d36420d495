"""The site in a real browser: phone and desk, light and dark, 16 models with long names."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.browser import CHROMIUM, Browser
from tests.report.crowd import crowd
from tests.report.sample import pictures
from tests.report.test_browser import BOX, CONTRAST, OUTSIDE, OVERLAPS, UNFOLD

from besiege.report.site.writing import write_pages

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
MODEL = "models/defense-03-of-a-paper-with-a-long-title.html"
PAGES = (
    *("index.html", "models.html", MODEL, "attacks.html", "attacks/mim.html", "cells.html"),
    *("cells/l2-number-1.html", "cells/linf-8-255-number-0.html", "curves.html", "curves-l2.html"),
    *("transfer.html", "frontier.html", "findings.html", "run.html"),
)
WIDTHS = (1280, 390)
LABELS = """
[...document.querySelectorAll('svg.panel, svg.scatter')]
  .filter(s => s.getBoundingClientRect().width)
  .map(s => ({frame: box(s), texts: [...s.querySelectorAll('text')]
    .map(t => ({text: t.textContent, ...box(t)}))}))
"""
# All that is drawn or written and can be seen, as one text.
SHOWN = """
[...document.querySelectorAll('main *')].filter(e => !e.children.length && e.tagName !== 'INPUT'
  && e.getClientRects().length).map(e => e.getAttribute('d') || e.textContent).join('|')
"""
CHOSEN = "[...document.querySelectorAll('.choice input')].map(i => [i.name, i.id, i.checked])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd") / "site"
    write_pages(crowd(16, 4, 600), pictures, folder)
    return folder


def forget(browser: Browser) -> None:
    """Let no choice of an earlier page stay."""
    browser.value("sessionStorage.clear()")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_nothing_overlaps_sticks_out_complains_or_is_loaded_from_elsewhere(
    page: str, width: int, browser: Browser, site: Path
) -> None:
    for scheme in ("light", "dark"):
        browser.open(site / page, width, scheme)
        browser.value(UNFOLD)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value(OUTSIDE) == []
        assert browser.value(OVERLAPS) == []
        assert browser.logged() == []
        inside = site.resolve().as_uri()
        assert all(address.startswith(inside) for address in browser.requested())


@pytest.mark.parametrize("page", ["index.html", MODEL, "frontier.html"])
def test_intervals_are_inside_the_table_s_box_on_a_phone(
    page: str, browser: Browser, site: Path
) -> None:
    browser.open(site / page, 390, "light")
    cut = browser.value(
        "[...document.querySelectorAll('.pair .soft')].filter(e => e.getClientRects().length)"
        ".map(e => [e.textContent, e.getBoundingClientRect().right,"
        " e.closest('.scroll').getBoundingClientRect().right])"
    )
    assert len(cut) >= 16 or page == MODEL
    assert [one for one in cut if one[1] > one[2]] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_continues_has_an_edge_that_can_be_seen(
    scheme: str, browser: Browser, site: Path, tmp_path: Path
) -> None:
    """The shade at the right edge differs from the paper, and is gone at the end of the table."""
    browser.open(site / "index.html", 390, scheme)
    box = "document.querySelector('.scroll')"
    shades = []
    for left in (0, 10_000):
        browser.value(f"{box}.scrollLeft = {left}")
        x, y = browser.value(f"(r => [r.right, r.top + scrollY])({box}.getBoundingClientRect())")
        browser.screenshot(tmp_path / "edge.png", (x - 2, y + 2, 2, 2))
        with Image.open(tmp_path / "edge.png") as shot:
            shades.append(
                max(shot.convert("L").tobytes())
                if scheme == "dark"
                else 255 - min(shot.convert("L").tobytes())
            )
    assert shades[0] - shades[1] >= 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_text_stands_out_from_what_is_behind_it(
    page: str, scheme: str, browser: Browser, site: Path
) -> None:
    browser.open(site / page, 1280, scheme)
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["curves.html", "curves-l2.html", "frontier.html"])
def test_labels_of_drawings_are_apart_and_large_enough(
    page: str, width: int, browser: Browser, site: Path
) -> None:
    browser.open(site / page, width, "light")
    drawings: list[dict[str, Any]] = browser.value(f"{{{BOX} {LABELS}}}")
    assert drawings
    for drawing in drawings:
        frame = drawing["frame"]
        for text in drawing["texts"]:
            assert frame["x"] - 2 <= text["x"] and text["right"] <= frame["right"] + 2, text
            assert text["bottom"] - text["y"] >= 10, "too small to read"
        for one, other in product(drawing["texts"], repeat=2):
            if one is not other:
                wide = min(one["right"], other["right"]) - max(one["x"], other["x"])
                high = min(one["bottom"], other["bottom"]) - max(one["y"], other["y"])
                assert wide <= 0.5 or high <= 3, (one, other)


@pytest.mark.parametrize("page", PAGES)
def test_every_choice_changes_what_is_drawn(page: str, browser: Browser, site: Path) -> None:
    browser.open(site / page, 1280, "light")
    forget(browser)
    names: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for name, word, checked in browser.value(CHOSEN):
        names.setdefault(name, []).append(word)
        first |= {name: word} if checked else {}
    for name, words in names.items():
        assert len(words) > 1
        seen = set()
        for word in words:
            browser.value(f"document.getElementById('{word}').click()")
            seen.add(browser.value(SHOWN))
        assert len(seen) == len(words), words
        browser.value(f"document.getElementById('{first[name]}').click()")


def test_choices_work_without_the_script_and_are_kept_with_it(browser: Browser, site: Path) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(site / "index.html", 1280, "light")
        # The script adds a button to every heading; without it there is none.
        count = "document.querySelectorAll('.setting').length"
        assert browser.value(count) == 3
        shown = "[...document.querySelectorAll('.setting')].filter(e => e.offsetHeight).length"
        assert browser.value(shown) == 1
        assert browser.value("document.querySelectorAll('th button').length") == 0
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    browser.open(site / "index.html", 1280, "light")
    forget(browser)
    browser.value("document.getElementById('threat-l2-0-5').click()")
    browser.open(site / "frontier.html", 1280, "light")
    assert browser.value("document.getElementById('threat-l2-0-5').checked")
    forget(browser)


def test_tables_sort_and_filter(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html", 1280, "light")
    column = (
        "[...document.querySelectorAll('.setting table.board')[0].tBodies[0].rows]"
        ".map(r => Number(r.querySelector('td.drawn').dataset.v))"
    )
    before = browser.value(column)
    head = "[...document.querySelectorAll('.setting table.board')[0].tHead.rows[0].cells]"
    click = f"{head}.find(c => c.classList.contains('drawn')).querySelector('button').click()"
    browser.value(click)
    assert browser.value(column) == sorted(before) != before
    browser.value(click)
    assert browser.value(column) == sorted(before, reverse=True)
    name = f"{head}.find(c => c.textContent === 'Model').querySelector('button').click()"
    browser.value(name)
    models = browser.value(
        "[...document.querySelectorAll('.setting table.board')[0].tBodies[0].rows]"
        ".map(r => r.cells[1].textContent.trim())"
    )
    assert models == sorted(models)
    browser.open(site / "run.html", 1280, "light")
    browser.value(
        "{const b = document.querySelector('.filter-box'); b.value = 'defense_07 score';"
        "b.dispatchEvent(new Event('input'))}"
    )
    rows = "[...document.querySelectorAll('table.filter tbody tr')].filter(r => r.offsetHeight)"
    assert browser.value(f"{rows}.length") == 1
    assert "defense_07" in browser.value(f"{rows}[0].textContent")


def test_a_model_is_lifted_out_of_the_crowd(browser: Browser, site: Path) -> None:
    browser.open(site / "curves.html", 1280, "light")
    forget(browser)
    opacity = (
        "[...document.querySelectorAll('svg.panel')].find(s => s.getBoundingClientRect().width)"
        ".querySelectorAll('.m')"
    )
    values = f"[...{opacity}].map(g => Number(getComputedStyle(g).opacity))"
    assert set(browser.value(values)) == {1}
    browser.value("document.querySelector('.lifts li[data-m=\"7\"]').click()")
    lifted = browser.value(values)
    assert lifted[7] == 1 and max(lifted[:7] + lifted[8:]) < 0.2
    band = f"getComputedStyle({opacity}[7].querySelector('.b')).display"
    assert browser.value(band) != "none"
    browser.value("document.querySelector('.lifts li[data-m=\"7\"]').click()")
    assert set(browser.value(values)) == {1}


def test_a_newcomer_finds_ten_images_that_broke_the_best_model(
    browser: Browser, site: Path
) -> None:
    browser.open(site / "index.html", 390, "light")
    forget(browser)
    lead = browser.value("document.querySelector('.lead').textContent")
    assert "Most robust at linf 8/255" in lead and "[" in lead
    browser.events.clear()
    row = "document.querySelector('.setting table.board tbody tr')"
    address = browser.value(f"{row}.querySelector('td:last-child a').href")
    browser.ask("Page.navigate", url=address)
    while not any(e.get("method") == "Page.loadEventFired" for e in browser.events):
        browser.events.append(browser._next())
    place = address.partition("#")[2]
    opened = f"document.getElementById('{place}').closest('details')"
    assert browser.value(f"{opened}.open")
    assert browser.value(f"{opened}.querySelectorAll('.gallery li').length") >= 10


def test_a_link_to_hidden_curves_chooses_them(browser: Browser, site: Path) -> None:
    browser.open(site / "cells" / "linf-8-255-targeted-random-number-2.html", 1280, "light")
    forget(browser)
    links = "[...document.querySelectorAll('a')]"
    address = browser.value(f"{links}.find(a => a.textContent === 'Curves of this cell').href")
    browser.events.clear()
    browser.ask("Page.navigate", url=address)
    while not any(e.get("method") == "Page.loadEventFired" for e in browser.events):
        browser.events.append(browser._next())
    place = address.partition("#")[2]
    assert browser.value(f"document.getElementById('{place}').offsetHeight") > 100
