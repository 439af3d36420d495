"""The page in a real browser: desk and phone, light and dark, with all that can be awkward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.report.browser import CHROMIUM, Browser
from tests.report.sample import (
    Figures,
    broken_run,
    by_chance,
    crowded,
    eight,
    evaluation,
    figures,
    four,
    minimal_run,
    pictures,
    smallest_run,
    vast,
)

from besiege.report import fragment, write

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]

CASES: dict[str, Callable[[], Figures]] = {
    "one": figures,
    "four": four,
    "eight": eight,
    "broken": broken_run,
    "minimal": minimal_run,
    "smallest": smallest_run,
    "alone": lambda: smallest_run(1),
    "crowded": crowded,
    "vast": vast,
    "chance": by_chance,
    "empty": lambda: figures(evaluation(steps_curve=[], eps_curve=None, gallery=[], warnings=[])),
}
WIDTHS = (1280, 700, 375, 320)

# Every text of a chart that is to be seen, with its place on the screen and the drawing's.
LABELS = """
[...document.querySelectorAll('svg.chart')].filter(s => s.getBoundingClientRect().width)
  .map(s => ({
    frame: box(s),
    texts: [...s.querySelectorAll('text')]
      .filter(t => getComputedStyle(t).visibility !== 'hidden')
      .map(t => ({text: t.textContent, ...box(t)}))
  }))
"""
# Leaves of the page that stick out of it, boxes that scroll by themselves aside.
OUTSIDE = """
[...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect();
  return r.width && r.height && (r.right > innerWidth + 0.5 || r.left < -0.5)
    && !e.closest('.scroll') && !e.closest('thead');
}).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))
"""
# Pairs of neighbouring blocks of text that cover each other.
OVERLAPS = """
(() => {
  const kinds = 'h1,h2,h3,p,dt,dd,li>span,td,th,summary,img,pre,svg';
  const place = e => getComputedStyle(e).position;
  const leaves = [...document.querySelectorAll(kinds)]
    .filter(e => !e.closest('svg') || e.tagName === 'svg')
    .filter(e => !e.closest('thead') || place(e.closest('thead')) !== 'absolute')
    .filter(e => !e.closest('details .scroll'))
    .map(e => ({e, r: e.getBoundingClientRect()})).filter(l => l.r.width > 1 && l.r.height > 1);
  const found = [];
  for (let i = 0; i < leaves.length; i++) for (let j = i + 1; j < leaves.length; j++) {
    const a = leaves[i], b = leaves[j];
    if (a.e.contains(b.e) || b.e.contains(a.e)) continue;
    const w = Math.min(a.r.right, b.r.right) - Math.max(a.r.left, b.r.left);
    const h = Math.min(a.r.bottom, b.r.bottom) - Math.max(a.r.top, b.r.top);
    const said = [a, b].map(l => l.e.textContent.slice(0, 40)).join(' | ');
    if (w > 1 && h > 1) found.push(said);
  }
  return found;
})()
"""
# The worst contrast of text with the paint behind it, as the standard of accessibility counts it.
CONTRAST = """
(() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const paint = canvas.getContext('2d', {willReadFrequently: true});
  const over = colours => {
    paint.clearRect(0, 0, 1, 1);
    for (const c of colours) { paint.fillStyle = c; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = rgb => {
    const [r, g, b] = rgb.map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = [99, ''];
  for (const e of document.querySelectorAll('.besiege, .besiege *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getBoundingClientRect().width || e.tagName === 'title') continue;
    const behind = [];
    for (let p = e; p; p = p.parentElement) behind.unshift(getComputedStyle(p).backgroundColor);
    const style = getComputedStyle(e);
    const ink = e.closest('svg') ? style.fill : style.color;
    const back = over(behind), front = over([...behind, ink]);
    const [a, b] = [light(back), light(front)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const said = e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 30);
    if (ratio < worst[0]) worst = [ratio, said];
  }
  return worst;
})()
"""
# All that can be unfolded at once; enlarged pictures would cover the page.
UNFOLD = """
document.querySelectorAll('details:not(.zoom)').forEach(
  d => { d.removeAttribute('name'); d.open = true; })
"""
# Links lead to their places at once.
JUMP = "document.documentElement.style.scrollBehavior = 'auto'"
BOX = """
const box = e => { const r = e.getBoundingClientRect();
  return {x: r.left, y: r.top, right: r.right, bottom: r.bottom}; };
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    shape = {"four": (3, 32, 32), "crowded": (3, 224, 224)}
    return {
        name: write(
            make(), partial(pictures, shape=shape.get(name, (1, 8, 8))), folder / f"{name}.html"
        )
        for name, make in CASES.items()
    }


def labels(browser: Browser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.value(f"{{{BOX} {LABELS}}}")
    return found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_sticks_out_complains_or_is_loaded(
    case: str, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    for scheme in ("light", "dark"):
        browser.open(pages[case], width, scheme)
        # All that can be unfolded is looked at too.
        browser.value(UNFOLD)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value(OUTSIDE) == []
        assert browser.value(OVERLAPS) == []
        assert browser.logged() == []
        assert browser.requested() == [pages[case].resolve().as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", ["one", "four", "eight", "minimal", "crowded"])
def test_labels_of_charts_are_apart_inside_and_large_enough(
    case: str, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[case], width, "light")
    browser.value(UNFOLD)
    charts = labels(browser)
    figures_shown = browser.value("document.querySelectorAll('figure.plot').length")
    assert len(charts) == figures_shown >= 2, "one drawing of each chart"
    for chart in charts:
        frame = chart["frame"]
        for text in chart["texts"]:
            assert frame["x"] - 1 <= text["x"] and text["right"] <= frame["right"] + 1, text
            assert frame["y"] - 1 <= text["y"] and text["bottom"] <= frame["bottom"] + 1, text
            assert text["bottom"] - text["y"] >= 10, "too small to read"
        for one, other in product(chart["texts"], repeat=2):
            if one is other:
                continue
            wide = min(one["right"], other["right"]) - max(one["x"], other["x"])
            high = min(one["bottom"], other["bottom"]) - max(one["y"], other["y"])
            # Boxes of text are taller than its letters.
            assert wide <= 0.5 or high <= 3, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("case", CASES)
def test_text_stands_out_from_what_is_behind_it(
    case: str, scheme: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[case], 1280, scheme)
    browser.value(UNFOLD)
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(251, 250, 247)") == (scheme == "light")


def test_sections_are_there_and_pictures_are_shown_pixel_by_pixel(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"], 1280, "light")
    assert browser.value("[...document.querySelectorAll('h2')].map(h => h.textContent)") == [
        "The attacks",
        "First attack to break each image",
        "Accuracy curves",
        "Accuracy by class",
        "What broken images were classified as",
        "Misclassified images",
        "Warnings",
        "What the attacker may do",
        "How to read this page",
        "Reproduce",
    ]
    shown = browser.value(
        "[...document.querySelectorAll('.gallery img')].map(i => [i.naturalWidth, i.width, "
        "i.height, getComputedStyle(i).imageRendering])"
    )
    assert len(shown) == 24 and shown[0] == [8, 128, 128, "pixelated"]
    browser.open(pages["one"], 375, "light")
    assert browser.value("document.querySelector('.gallery img').width") > 90


def test_a_point_says_its_figure_when_it_is_reached_by_keyboard(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for width in (1280, 375):
        browser.open(pages["one"], width, "light")
        shown = browser.value(
            "(() => { const p = [...document.querySelectorAll('.chart .point')]"
            ".filter(p => p.getBoundingClientRect().width)[1]; p.focus(); "
            "const t = p.querySelector('text');"
            "return [getComputedStyle(t).visibility, t.textContent]; })()"
        )
        assert shown[0] == "visible" and "step 1: 50.4 % [45.3, 55.4]" in shown[1]
        for chart in labels(browser):
            assert all(t["x"] >= chart["frame"]["x"] - 1 for t in chart["texts"])


@pytest.mark.parametrize("width", [1280, 375])
def test_a_link_unfolds_its_evaluation_folds_the_others_and_leads_there(
    width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["eight"], width, "light")
    browser.value(JUMP)
    for links in (".matrix a", "#contents li li a"):
        for which in (6, 1):
            where = browser.value(f"document.querySelectorAll('{links}')[{which}].hash")
            browser.value(f"document.querySelectorAll('{links}')[{which}].click()")
            opened = browser.value(
                "[...document.querySelectorAll('details.evaluation')].map(d => d.open)"
            )
            assert opened.count(True) == 1
            top = browser.value(
                f"document.querySelector('details:has({where}) > summary')"
                ".getBoundingClientRect().top"
            )
            assert opened[int(where.rpartition("-")[2]) - 1]
            bar = (
                0
                if width == 1280
                else browser.value(
                    "document.querySelector('.contents').getBoundingClientRect().bottom"
                )
            )
            assert bar - 2 <= top < bar + 12, "the title is at the top, and not below the bar"


def test_a_link_from_outside_opens_the_page_at_its_evaluation(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages["eight"], 1280, "light")
    browser.ask("Page.navigate", url=pages["eight"].resolve().as_uri() + "#evaluation-5")
    opened = browser.value("[...document.querySelectorAll('details.evaluation')].map(d => d.open)")
    assert [place for place, one in enumerate(opened, 1) if one] == [5]


@pytest.mark.parametrize("case", ["one", "eight"])
def test_the_contents_stay_in_view(case: str, browser: Browser, pages: dict[str, Path]) -> None:
    place = "document.querySelector('{}').getBoundingClientRect().toJSON()"
    browser.open(pages[case], 1280, "light")
    browser.value(JUMP)
    for y in (0, 1500, 1e6):
        browser.value(f"scrollTo(0, {y})")
        shown = browser.value(place.format("#contents"))
        assert 0 <= shown["top"] < 100 and shown["width"] > 150
        column = browser.value(place.format("main"))
        assert shown["right"] <= column["left"], "beside the page, not over it"
    browser.open(pages[case], 375, "light")
    browser.value(JUMP)
    browser.value("scrollTo(0, 2000)")
    bar = browser.value(place.format(".contents"))
    assert bar["top"] == 0 and bar["width"] == 375 and bar["height"] < 60


@pytest.mark.parametrize("case", ["one", "eight"])
def test_on_a_phone_the_bar_opens_the_contents_and_a_link_closes_them(
    case: str, browser: Browser, pages: dict[str, Path]
) -> None:
    shown = "document.querySelector('#contents').getBoundingClientRect().height"
    browser.open(pages[case], 375, "light")
    browser.value(JUMP)
    browser.value("scrollTo(0, 1200)")
    assert browser.value(shown) == 0
    browser.value("document.querySelector('.contents .open').click()")
    assert browser.value(shown) > 100
    assert abs(browser.value("scrollY") - 1200) < 60, "the page stays where it is"
    browser.value("document.querySelector('.contents .shut').click()")
    assert browser.value(shown) == 0
    browser.value("document.querySelector('.contents .open').click()")
    browser.value("document.querySelector('#contents a[href=\"#reading\"]').click()")
    assert browser.value(shown) == 0
    top = browser.value("document.querySelector('#reading').getBoundingClientRect().top")
    assert 40 < top < 60, "below the bar"


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize(("case", "pixels"), [("one", 8), ("four", 32), ("crowded", 0)])
def test_pictures_have_whole_number_scales_and_enlarge_by_keyboard(
    case: str, pixels: int, width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[case], width, "light")
    browser.value(JUMP)
    picture = (
        "(i => [i.width, i.naturalWidth, getComputedStyle(i).imageRendering])"
        "(document.querySelector('.zoom img'))"
    )
    small, across, _ = browser.value(picture)
    assert pixels in (across, 0)
    if across <= small:
        assert small % across == 0
    browser.value("document.querySelector('.zoom summary').scrollIntoView()")
    before = browser.value("[scrollY, document.documentElement.scrollHeight]")
    browser.value("document.querySelector('.zoom summary').focus()")
    browser.press("Enter")
    large, _, look = browser.value(picture)
    assert large > small and large % across == 0 and look == "pixelated"
    cover = browser.value(
        "document.querySelector('.zoom summary').getBoundingClientRect().toJSON()"
    )
    assert (cover["left"], cover["top"], cover["height"]) == (0, 0, 900)
    assert browser.value("[scrollY, document.documentElement.scrollHeight]") == before
    browser.press("Enter")
    assert browser.value(picture)[0] == small
    assert browser.value("[scrollY, document.documentElement.scrollHeight]") == before


def test_a_table_that_continues_to_the_right_has_a_shadow_there(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages["smallest"], 375, "light")
    x, y, wide, high = browser.value(
        "(() => { const s = [...document.querySelectorAll('.scroll')]"
        ".find(s => s.scrollWidth > s.clientWidth + 50); s.scrollIntoView();"
        "const r = s.getBoundingClientRect(); return [r.left, r.top + scrollY, r.width, r.height];"
        "})()"
    )

    def edges() -> tuple[int, int]:
        """The darkest paint of the left and of the right edge, below the head."""
        browser.screenshot(tmp_path / "table.png", (x, y, wide, high))
        with Image.open(tmp_path / "table.png") as image:
            grey = np.asarray(image.convert("L"))
        free = grey[6:12]  # a strip above all letters
        return int(free[:, 1].min()), int(free[:, -2].min())

    left, right = edges()
    assert right < 235 < left, "it continues to the right only"
    browser.value(
        "(() => { const s = [...document.querySelectorAll('.scroll')]"
        ".find(s => s.scrollWidth > s.clientWidth + 50); s.scrollLeft = 1e6; })()"
    )
    left, right = edges()
    assert left < 235 < right, "at its end it continues to the left only"


def test_on_paper_all_evaluations_are_shown_and_no_contents(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["eight"], 1280, "light")
    browser.ask("Emulation.setEmulatedMedia", media="print")
    seen = browser.value(
        "[...document.querySelectorAll('details.evaluation p.lead')]"
        ".map(p => p.checkVisibility({contentVisibilityAuto: true})).filter(Boolean).length"
    )
    bar = browser.value("document.querySelector('.contents').getBoundingClientRect().height")
    browser.ask("Emulation.setEmulatedMedia", media="")
    assert seen == 8 and bar == 0


def test_headings_have_a_font_of_the_system(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], 1280, "light")
    fonts = "[...document.querySelectorAll('h1,h2')].map(h => getComputedStyle(h).fontFamily)"
    assert all(font.startswith("system-ui") for font in browser.value(fonts))


def test_a_fragment_keeps_to_itself_in_a_foreign_page(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    body = f"<p id=mine>mine</p><div style='width:900px'>{fragment(figures())}</div>"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    browser.open(path, 1280, "dark")
    assert browser.logged() == []
    assert (
        browser.value("getComputedStyle(document.querySelector('#mine')).color") == "rgb(0, 0, 0)"
    )
    assert browser.value("document.querySelector('.besiege').scrollWidth") <= 900
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where
