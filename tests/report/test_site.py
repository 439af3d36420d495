"""The site of a run: links, sizes, one colour per model, and what its pages say."""

from __future__ import annotations

import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.crowd import crowd
from tests.report.sample import pictures

import besiege
from besiege.bench.board import Board
from besiege.bench.board_reading import board_of
from besiege.bench.standings import settings_of
from besiege.bench.sweeps import TOGETHER, Line, Sweep, sweeps_of
from besiege.cli import main
from besiege.core.errors import Finding, InputError
from besiege.metrics.bands import success_bands
from besiege.metrics.values import Picture
from besiege.report import folder as report_folder
from besiege.report.site import curves, has_site, serving, write_site
from besiege.report.site.choices import Choice, lacking, rules, tokens
from besiege.report.site.panels import panel
from besiege.report.site.serving import AGAIN, server
from besiege.report.site.writing import shortened, site_files
from besiege.report.strokes import COLOURS, dash_of

MODELS = ["zoo:digits-natural", "zoo:digits-pgd-at"]


class Seen(HTMLParser):
    """The links, the ids and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" and "href" in given else []
        for name in ("src", "href"):
            if tag != "a" and name in given:
                self.loaded.append(given[name] or "")


def written(board: Board) -> dict[str, bytes]:
    return dict(site_files(board, pictures))


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return written(crowd(16, 4, 60))


@pytest.fixture(scope="module")
def seen(files: dict[str, bytes]) -> dict[str, Seen]:
    return {name: Seen(text.decode()) for name, text in files.items() if name.endswith(".html")}


def resolved(page: str, link: str) -> tuple[str, str]:
    """The file and the place that a link on a page leads to."""
    path, _, anchor = link.partition("#")
    parts = [*Path(page).parent.parts, *Path(path).parts] if path else [*Path(page).parts]
    clean: list[str] = []
    for part in parts:
        if part == "..":
            clean.pop()
        else:
            clean.append(part)
    return "/".join(clean), anchor


def test_every_link_leads_to_a_page_and_its_place(files: dict[str, bytes]) -> None:
    assert len([name for name in files if name.endswith(".html")]) > 30
    must_be_linked(files)


def must_be_linked(files: dict[str, bytes]) -> None:
    seen = {name: Seen(text.decode()) for name, text in files.items() if name.endswith(".html")}
    for page, found in seen.items():
        assert len(set(found.ids)) == len(found.ids), page
        for link in found.links:
            target, anchor = resolved(page, link)
            assert target in seen, (page, link)
            assert not anchor or anchor in seen[target].ids, (page, link)
        for address in found.loaded:
            assert address.startswith("data:") or resolved(page, address)[0] in files, address


def test_every_page_can_be_reached_from_the_first(seen: dict[str, Seen]) -> None:
    reached, todo = {"index.html"}, ["index.html"]
    while todo:
        page = todo.pop()
        new = {resolved(page, link)[0] for link in seen[page].links} - reached
        reached |= new
        todo += new
    assert reached == set(seen)


@pytest.mark.parametrize("cells", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_pages_are_small(cells: int) -> None:
    made = written(crowd(16, cells, 200))
    pages = {name: len(text) for name, text in made.items() if name.endswith(".html")}
    assert pages["index.html"] <= 300_000
    assert max(pages.values()) <= 500_000, max(pages, key=lambda name: pages[name])
    assert sum(pages.values()) <= 40_000_000
    assert len(made["site.js"]) <= 8_000


def test_curves_of_one_cell_are_on_several_pages_where_one_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = crowd(4, 4, 60)

    def drawings(files: dict[str, bytes]) -> dict[str, list[str]]:
        pages = {n: text.decode() for n, text in files.items() if n.startswith("curves")}
        return {n: re.findall("<svg class=.panel.*?</svg>", text) for n, text in pages.items()}

    every = sorted(svg for some in drawings(written(board)).values() for svg in some)
    room = 4 * max(map(len, every))
    monkeypatch.setattr(curves, "ROOM", room)
    files = written(board)
    must_be_linked(files)
    split = drawings(files)
    assert [name for name in split if "part-2" in name]
    assert sorted(svg for some in split.values() for svg in some) == every
    assert all(0 < sum(map(len, some)) <= room for some in split.values())


def test_findings_of_one_evaluation_that_differ_in_numbers_are_counted() -> None:
    board = crowd(3, 1, 30)
    first, *others = board.figures.evaluations
    many = [Finding("W07", f"Seen {n} times.", "Do better.", "warning") for n in range(6)]
    found = replace(board.figures, evaluations=(replace(first, warnings=tuple(many)), *others))
    page = written(replace(board, figures=found))["findings.html"].decode()
    listed = page.partition("<summary>1 evaluation</summary>")[2].partition("</ul>")[0]
    assert [f"Seen {n} times" in listed for n in range(6)] == [True] * 3 + [False] * 3
    assert listed.count("<li>") == 1 and "3 more differ in numbers only" in listed


def test_a_model_has_one_colour_and_dash_on_every_page(
    files: dict[str, bytes], seen: dict[str, Seen]
) -> None:
    sheet = files["site.css"].decode()
    name = "defense_07_of_a_paper_with_a_long_title_"
    for page in ("curves.html", "frontier.html"):
        text = files[page].decode()
        groups = re.findall(r'<g class="m m(\d+)"><title>([^:<]+):', text)
        assert {style for style, model in groups if model == name} == {"7"}, page
    assert f".m7{{color:var(--series-{7 % len(COLOURS) + 1})}}" in sheet
    assert f".m7 .l{{stroke-dasharray:{dash_of(7)}}}" in sheet
    styles = [(n % len(COLOURS), dash_of(n)) for n in range(16)]
    assert len(set(styles)) == 16
    # The swatch of a legend is the same line.
    row = files["index.html"].decode().split(f'title="{name}"')[0]
    assert 'data-m="7"' in row


def test_the_overview_answers_with_how_sure_that_is() -> None:
    board = crowd(6, 1, 300)
    text = written(board)["index.html"].decode()
    (setting,) = settings_of(board)
    first = setting.standings[0]
    assert first.robust is not None
    lead = re.sub(r"<[^>]+>", "", re.search(r'<p class="lead">(.*?)</p>', text, re.S)[1])  # type: ignore[index]
    assert lead.startswith(f"Most robust at linf 8/255: {first.model}, ")
    assert f"{100 * first.robust.value:.1f} % of 300 images" in lead
    assert "under the worst of 5 attacks" in lead and "All figures are upper bounds." in lead
    tied = [
        one.model
        for one in setting.standings[1:]
        if (pair := setting.pair(first.model, one.model)) is None or not pair.clear
    ]
    assert tied and "These images cannot tell it from" in lead
    told = lead.partition("cannot tell it from ")[2]
    assert [one.model for one in setting.standings if one.model in told] == tied
    for one in setting.standings:
        low, high = one.low, one.high
        assert (f"{low}&thinsp;–&thinsp;{high}" if high > low else f">{low}</td>") in text


def test_a_clear_lead_is_told_with_its_size_and_every_value_links_to_images() -> None:
    board = crowd(3, 1, 200)
    cell = board.cells[0]
    robust = np.array([[False] * 200, [True] * 50 + [False] * 150, [True] * 150 + [False] * 50])
    board = replace(board, cells=(replace(cell, robust=robust, correct=np.ones_like(robust)),))
    text = written(board)["index.html"].decode()
    lead = re.sub(r"<[^>]+>", "", text.partition('<p class="lead">')[2].partition("</p>")[0])
    assert f"It is above {board.models[1].name} by 50.0 points [" in lead
    assert "p &lt; 0.001 after correction" in lead and "cannot tell" not in lead
    for m in range(3):
        links = re.findall(rf'<td[^>]*><a href="cells/[^"]+#images-{m}">[\d.]+</a>', text)
        assert len(links) == len(cell.attacks)


def test_a_cell_explains_its_pictures_once(files: dict[str, bytes]) -> None:
    pages = {name: text.decode() for name, text in files.items() if name.startswith("cells/")}
    assert len(pages) == 4
    for name, page in pages.items():
        assert page.count('details class="gallery-of"') == 16
        assert page.count("Click on one to enlarge it.") == 1
        assert page.count("nearest to their median") == ("cells/l2" in name)


def test_no_mean_over_attacks_norms_or_goals_is_anywhere(files: dict[str, bytes]) -> None:
    for name, text in files.items():
        if name.endswith(".html"):
            assert not re.search(r"\b(mean|average)\b", text.decode(), re.I), name


def test_denominators_are_written_out(files: dict[str, bytes]) -> None:
    board = crowd(16, 4, 60)
    right = [int(row.sum()) for row in board.cells[0].correct]
    page = files["cells/linf-8-255-number-0.html"].decode()
    assert f"{min(right)} to {max(right)} of" in page.replace("\n", " ")
    assert re.search(r'title="\d+ of \d+"', page)
    assert "Accuracy in percent of 60 images" in files["index.html"].decode()


def test_hostile_names_stay_text() -> None:
    evil = '"><img src=x onerror=alert(1)>'
    board = crowd(3, 4, 30)
    names = [evil, *[model.name for model in board.models[1:]]]
    board = replace(
        board,
        models=tuple(replace(m, name=n) for m, n in zip(board.models, names, strict=True)),
        cells=tuple(
            replace(cell, models=tuple(names), attacks=(evil, *cell.attacks[1:]))
            for cell in board.cells
        ),
        unfit=((evil, evil, evil),),
        spec=evil,
    )
    for name, text in written(board).items():
        assert b"<img src=x" not in text, name


def test_an_unfinished_run_says_so_and_never_counts_what_is_missing() -> None:
    board = crowd(3, 2, 40)
    blank = {n: np.zeros_like(getattr(board.cells[0], n)) for n in ("covered", "left", "success")}
    known = np.zeros_like(board.cells[0].known)
    cell = replace(board.cells[0], **blank, known=known, robust=known)
    figures = replace(board.figures, complete=False)
    made = written(replace(board, cells=(cell, board.cells[1]), figures=figures))
    assert "No image was judged at linf 8/255 yet" in made["index.html"].decode()
    assert all(
        b"This run is not complete" in text for n, text in made.items() if n.endswith(".html")
    )


# Pieces.


def test_choices_name_their_values_and_what_is_lacking() -> None:
    norm = Choice.of("norm", "Norm", ["linf 8/255", "l2 0.5", "linf 8/255"], "l2 0.5")
    goal = Choice.of("goal", "Goal", ["any error"])
    assert list(norm.values.values()) == ["linf-8-255", "l2-0-5"] and norm.checked == "l2-0-5"
    assert not goal.shown
    assert rules([norm, goal]).count("display:none") == 2
    assert lacking([norm, goal], [("l2 0.5", "any error")]) == [
        {"norm": "linf-8-255", "goal": "any-error"}
    ]
    assert list(tokens(["a b", "a-b", "A(b)"]).values()) == ["a-b", "a-b-2", "a-b-3"]
    assert shortened("x" * 60, 20).count("x") == 19


def test_curves_are_those_of_a_few_lines_at_three_budgets() -> None:
    board = crowd(3, 2, 80)
    cell = board.cells[1]
    for sweep in sweeps_of(board):
        if sweep.cell != 1 or sweep.against != "budget":
            continue
        a = cell.attacks.index(sweep.attack)
        for line in sweep.lines:
            m = cell.models.index(line.model)
            sizes, right = cell.distance[m, a], cell.correct[m]
            for budget in (0.1, 0.3, 0.6):
                at = int(np.searchsorted(line.x, budget, side="right")) - 1
                if sweep.measure == "accuracy":
                    assert line.value[at] == pytest.approx((sizes > budget).mean())
                else:
                    broken = (sizes[right] <= budget).mean()
                    assert line.value[at] == pytest.approx(broken)
                    assert line.count == right.sum()
            if sweep.measure == "accuracy":
                assert line.area == pytest.approx(np.minimum(sizes, sweep.end).mean())
                assert line.median == pytest.approx(np.sort(sizes)[39])


@pytest.mark.parametrize(
    ("joined", "drawn"), [(False, "M40 12H179V90H248V168H318"), (True, "M40 12L179 90H214L248 168")]
)
def test_a_value_holds_until_the_next_unless_points_are_joined(joined: bool, drawn: str) -> None:
    x, value = np.array([0, 0.4999, 0.5, 0.625, 0.75, 1.5]), np.array([1, 0.9, 0.5, 0.5, 0, 1.0])
    line = Line("one", x, value, x, value, value, 10, joined)
    svg = panel(
        Sweep(0, "fgsm", "budget", "accuracy", "size", 1.0, (line,)), {"one": 0}, None, None
    )
    assert f'<path class="l" d="{drawn}"/>' in svg, svg


def test_budgets_that_were_declared_are_points_of_one_curve() -> None:
    board = crowd(2, 1, 50)
    first = board.cells[0]
    left = first.correct[:, None] & ~(first.success & (first.distance < 4 / 255))
    smaller = replace(first, name="smaller", eps=4 / 255, eps_text="4/255", left=left)
    found = [
        s
        for s in sweeps_of(replace(board, cells=(first, smaller)))
        if s.against == "budget" and s.measure == "accuracy"
    ]
    assert len(found) == len(first.attacks)
    line = found[0].lines[1]
    assert line.x.tolist() == pytest.approx([0, 4 / 255, 8 / 255]) and line.joined
    expected = [first.correct[1].mean(), left[1, 0].mean(), first.left[1, 0].mean()]
    assert line.value.tolist() == pytest.approx(expected)


def test_the_page_of_a_model_says_where_the_order_changes() -> None:
    board = crowd(2, 2, 400)
    cell = board.cells[1]
    sizes = np.stack([np.full(400, 0.4), np.tile([0.1, 0.9], 200)])
    planted = replace(cell, searched=sizes, distance=np.repeat(sizes[:, None], 5, 1))
    files = dict(site_files(replace(board, cells=(planted,)), pictures))
    page = next(text for name, text in files.items() if name.startswith("models/"))
    assert b"Order along the budget" in page and b"<td>changes near 0.4</td>" in page
    files = dict(site_files(replace(board, cells=board.cells[:1]), pictures))
    page = next(text for name, text in files.items() if name.startswith("models/"))
    assert b"Order along the budget" not in page


def test_the_band_of_a_curve_is_that_of_the_metrics() -> None:
    board = crowd(3, 2, 80)
    cell = board.cells[1]
    (sweep,) = [s for s in sweeps_of(board) if (s.cell, s.attack, s.against, s.measure) == (
        1, cell.attacks[2], "budget", "success")]  # fmt: skip
    found = success_bands(cell.distance[:, 2], sweep.lines[0].at, cell.correct)
    for m, line in enumerate(sweep.lines):
        assert np.array_equal(line.low, found.lowest[m])
        assert np.array_equal(line.high, found.highest[m])


def test_curves_against_strength_are_those_of_a_few_lines() -> None:
    board = crowd(3, 2, 80)
    seen = set()
    for sweep in sweeps_of(board):
        if sweep.against == "budget" or sweep.measure == "size":
            continue
        cell = board.cells[sweep.cell]
        a = cell.attacks.index(sweep.attack)
        assert [line.model for line in sweep.lines] == list(cell.models)
        for m, line in enumerate(sweep.lines):
            right = cell.correct[m]
            for x in (0, 5, 20):
                value = line.value[int(np.searchsorted(line.x, x, side="right")) - 1]
                if sweep.axis == "steps":
                    broken = cell.success[m, a] & (cell.first_step[m, a] <= x)
                else:
                    place = cell.passes.tolist().index(x) if x else None
                    best = np.inf if place is None else cell.best[m, a, :, place]
                    broken = right & (best <= 0.5)
                left = (right & ~broken).sum()
                share = 1 - left / right.sum() if sweep.measure == "success" else left / 80
                assert value == pytest.approx(share)
                assert line.count == (right.sum() if sweep.measure == "success" else 80)
        seen.add((sweep.cell, sweep.axis, sweep.measure))
    axes = ((0, "steps"), (1, "passes"))
    assert seen == {(*axis, m) for axis in axes for m in ("accuracy", "success")}


# A real run.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "run"
    words: dict[str, Any] = {"count": 20, "out": out}
    besiege.evaluate(MODELS, "digits", threat="linf:0.15", attacks="fgsm, bim(steps=3)", **words)
    besiege.evaluate(MODELS, "digits", threat="l2", attacks="deepfool", **words)
    return out


def test_the_page_of_many_evaluations_leads_to_the_site(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_folder, "MOST", 3)
    whole = report_folder.write_page(folder, folder.parent / "whole.html")
    assert whole.stat().st_size > 100_000, "a file that was asked for shows all"
    site = report_folder.write_page(folder)
    assert site == folder / "site" / "index.html" and site.is_file()
    page = folder / "report.html"
    assert page.stat().st_size < 3_000
    assert Seen(page.read_text()).links == ["site/index.html"]


def test_report_writes_the_site_and_the_page_links_to_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert f"page  {folder / 'report.html'}" in printed
    assert f"site  {folder / 'site' / 'index.html'}" in printed
    assert 'href="site/index.html"' in (folder / "report.html").read_text()
    page = Seen((folder / "site" / "cells" / "linf-0-15.html").read_text())
    shown = [one for one in page.loaded if one.endswith(".png")]
    assert len(shown) >= 30 and all((folder / "site" / one[3:]).is_file() for one in shown)
    assert main(["report", str(folder), "--out", str(folder.parent / "page.html")]) == 0
    assert "site  " not in capsys.readouterr().out


def test_curves_of_a_run_are_those_of_its_figures(folder: Path) -> None:
    """Also those of the search that an evaluation with a budget adds."""
    board = board_of(folder)
    axes = set()
    for sweep in sweeps_of(board):
        if sweep.measure != "accuracy":
            continue
        cell = board.cells[sweep.cell]
        for line in sweep.lines:
            figures = board.evaluation(cell, cell.models.index(line.model))
            every = [*figures.steps_curve, *figures.queries_curve]
            given = next((one for one in every if one.attack == sweep.attack), None)
            known = given if sweep.against == "strength" else figures.eps_curve
            assert known is not None and known.count == line.count
            for x, value in zip(known.x, known.value, strict=True):
                if x <= sweep.end:
                    at = int(np.searchsorted(line.x, x, side="right")) - 1
                    assert line.value[at] == pytest.approx(value)
            axes.add((sweep.axis, sweep.attack == TOGETHER))
    assert axes == {("steps", False), ("size", True), ("size", False)}


def test_a_site_is_replaced_as_a_whole(folder: Path) -> None:
    index = write_site(folder)
    stale = index.parent / "models" / "stale.html"
    stale.write_text("old")
    before = {path.name for path in folder.iterdir()}
    assert write_site(folder) == index
    assert not stale.exists() and {path.name for path in folder.iterdir()} == before


def test_one_model_has_today_s_page_only(tmp_path: Path) -> None:
    found = besiege.evaluate(
        MODELS[0], "digits", threat="linf:0.1", attacks="fgsm", count=10, out=tmp_path / "run"
    )
    page = found.page()
    assert page.name == "report.html" and not (tmp_path / "run" / "site").exists()
    assert not has_site(found._run) and "site/index.html" not in page.read_text()


# The server.


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    found = server(folder)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    found.server_close()
    thread.join(10)


def asked(address: str, **headers: str) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as problem:
        return problem.code, b"", problem.headers


def test_the_server_answers_this_machine_with_files_of_the_site_only(
    address: str, folder: Path
) -> None:
    status, text, headers = asked(address + "/")
    assert status == 200 and b"Most robust at linf 0.15" in text
    assert "Refresh" not in headers and "default-src 'none'" in headers["Content-Security-Policy"]
    assert asked(address + "/site.js")[2]["Content-Type"].startswith("text/javascript")
    assert asked(address + "/models/zoo-digits-natural.html")[0] == 200
    for wrong in ("/../run.json", "/%2e%2e/run.json", "/run.json", "/records", "/site.js/"):
        assert asked(address + wrong)[0] == 404
    assert asked(address + "/", Host="example.com")[0] == 403


def test_the_server_shows_what_arrives(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(serving, "_PATIENCE", 0.0)
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    live = serving.Live(copy)
    live._took = 0.0
    first = live.now()
    assert first.complete and live.now() is first
    records = sorted((copy / "records").iterdir())
    shutil.move(records[0], tmp_path / "away")
    then = live.now()
    assert then is not first and not then.complete
    assert b"This run is not complete" in then.files["index.html"]
    shutil.move(tmp_path / "away", records[0])
    live._took = 0.0
    assert live.now().complete
    assert AGAIN >= 5


def test_pages_reload_until_the_run_is_complete(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    shutil.rmtree(next((copy / "records").iterdir()))
    found = server(copy)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{found.server_address[1]}"
    try:
        assert asked(address + "/")[2]["Refresh"] == str(AGAIN)
        assert "Refresh" not in asked(address + "/site.css")[2]
    finally:
        found.shutdown()
        found.server_close()


def test_a_port_that_is_taken_is_told(folder: Path, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(InputError, match=f"port {port} cannot be used"):
        server(folder, port)
    assert main(["serve", str(folder), "--port", "99999"]) == 2
    assert main(["serve", str(folder.parent)]) == 2


def test_pictures_are_written_once(folder: Path) -> None:
    board = board_of(folder)
    read: list[int] = []

    def counted(item: Picture) -> Any:
        read.append(item.sample)
        return pictures(item)

    made = dict(site_files(board, counted))
    names = [name for name in made if name.startswith("pictures/")]
    assert len(names) == len({made[name] for name in names})
    assert len(names) < 3 * len(read)
