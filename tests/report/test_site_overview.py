"""The overview of a site: what the attacker knows, attacks together, and the strongest of them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from tests.report.crowd import crowd
from tests.report.sample import pictures

from besiege.bench.board import Board, BoardCell
from besiege.bench.standings import settings_of
from besiege.core.examination import Check, Examination
from besiege.report.site.view import Site
from besiege.report.site.writing import site_files


def page(board: Board, name: str = "index.html") -> str:
    return dict(site_files(board, pictures))[name].decode()


def lead(text: str) -> str:
    return re.sub(r"<[^>]+>", "", text.partition('<p class="lead">')[2].partition("</p>")[0])


def rows(text: str, name: str) -> list[list[str]]:
    """The values of the rows of matrices that are headed by a name."""
    found = re.findall(rf"<tr[^>]*><th[^>]*>{re.escape(name)}</th>(.*?)</tr>", text)
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in found]


def outlined(text: str) -> list[list[bool]]:
    """Which values of the attacks are outlined, a list of models for each attack."""
    grids = text.partition('<table class="grid">')[2].partition("</table>")[0]
    found = re.findall(r'<tr><th scope="row">.*?</th>(.*?)</tr>', grids)
    return [["low" in cell for cell in re.findall(r"<td[^>]*>", row)] for row in found]


def without_budget(cell: BoardCell) -> BoardCell:
    return replace(cell, eps=None, eps_text=None)


def test_tabs_and_sentence_name_what_the_attacker_knows() -> None:
    board = crowd(3, 4, 40)
    white, transfer = board.cells[0], board.cells[3]
    assert transfer.knowledge == "transfer"
    mixed = Site(board)
    assert mixed.threat_of(mixed.settings[0]) == "linf 8/255"
    assert "the worst of 10 white-box and transfer attacks" in lead(page(board))
    assert "the worst of 5 attacks" in lead(page(replace(board, cells=(white,))))
    # At another budget than the white-box cell, the transfer has a tab of its own.
    other = replace(transfer, eps=4 / 255, eps_text="4/255")
    text = page(replace(board, cells=(white, other)))
    assert re.findall(r"<label[^>]*>([^<]*)</label>", text) == [
        "linf 8/255",
        "linf 4/255, transfer",
    ]
    assert "the worst of 5 transfer attacks" in lead(page(replace(board, cells=(other,))))
    single = {n: getattr(other, n)[:, :1] for n in ("covered", "left", "success", "distance")}
    one = replace(other, attacks=other.attacks[:1], **single)
    assert "under the transfer attack" in lead(page(replace(board, cells=(one,))))


def test_a_suite_is_labelled_and_only_a_sole_breaker_is_outlined() -> None:
    board = crowd(2, 1, 40)
    cell = replace(board.cells[0], suite=True)
    left, success = np.zeros_like(cell.left), np.zeros_like(cell.success)
    right = np.ones_like(cell.correct)
    left[0, :, :30], success[0, 1, 30:] = True, True
    left[0, 0] = True  # of the first model the second attack broke ten, the others none
    left[1, 0, :35], left[1, 1:, :20] = True, True
    success[1, 0, 35:], success[1, 1, 20:35] = True, True
    planted = replace(cell, left=left, success=success, robust=np.all(left, 1), correct=right)
    covered = cell.covered.copy()
    covered[0, 4] = False  # and it ran four attacks
    suites = replace(board, cells=(replace(planted, covered=covered),))
    text = page(suites)
    ranked = [cell.models.index(one.model) for one in settings_of(suites)[0].standings]
    assert ranked == [0, 1] and "the worst of 4 attacks" in lead(text)
    marks = outlined(text)
    assert [row[0] for row in marks] == [False, True, False, False, False]
    assert not any(row[1] for row in marks)
    assert text.count("suite: each row includes those above it") == 1
    assert text.count("several attacks of a suite, each on what was left") == 1
    assert "among the attacks that it ran" in text and "ran one after the other" in text
    own = page(suites, "cells/linf-8-255-number-0.html")
    assert ">Ran on</th>" in own and ">Only by it</th>" not in own
    plain = page(replace(board, cells=(replace(planted, suite=False),)))
    assert "one after the other" not in plain and "the worst of 5 attacks" in lead(plain)


def test_the_word_unknown_stays_with_the_figure() -> None:
    board = crowd(2, 1, 40)
    checks = (Check("attacks are strong enough", "not run"),)
    (first, *others) = board.figures.evaluations
    doubted = replace(first, examination=Examination(checks))
    given = replace(board, figures=replace(board.figures, evaluations=(doubted, *others)))
    leaderboard = page(given).partition('<table class="board')[2].partition("</table>")[0]
    shown = [row for row in leaderboard.split("<tr") if ">unknown</span>" in row]
    assert len(shown) == 1 and board.cells[0].models[0] in shown[0]
    assert "unknown" not in page(board)
    best = settings_of(board)[0].standings[0].model == board.cells[0].models[0]
    assert ("quote it with that word" in lead(page(given))) == best
    all_doubted = tuple(replace(one, examination=Examination(checks)) for one in (first, *others))
    every = replace(board, figures=replace(board.figures, evaluations=all_doubted))
    assert "quote it with that word" in lead(page(every))


def test_all_attacks_together_break_an_image_if_one_of_them_does() -> None:
    board = crowd(3, 4, 60)
    text = page(board)
    cells = [board.cells[0], board.cells[3]]
    ranked = [one.model for one in settings_of(board)[0].standings]
    for cell, shown in zip(cells, rows(text, "all attacks together")[:2], strict=True):
        left = np.all(cell.left, 1)
        expected = [f"{100 * left[cell.models.index(name)].mean():.1f}" for name in ranked]
        assert shown == expected
    both = np.all(cells[0].left, 1) & np.all(cells[1].left, 1)
    (every,) = rows(text, "all cells together")
    assert every == [f"{100 * both[cells[0].models.index(name)].mean():.1f}" for name in ranked]
    # The leaderboard shows the same, and so does the page of a cell.
    leaderboard = text.partition('<table class="board')[2].partition("</table>")[0]
    assert re.findall(r"<b>([\d.]+)\s%</b>", leaderboard) == every
    own = page(board, "cells/linf-8-255-number-0.html")
    in_order = [f"{100 * left.mean():.1f}" for left in np.all(cells[0].left, 1)]
    assert rows(own, "all attacks together") == [in_order]


def test_searches_without_a_budget_have_the_median_of_the_smallest_together() -> None:
    board = crowd(2, 2, 61)
    cell = without_budget(board.cells[1])
    board = replace(board, cells=(cell,))
    (shown,) = rows(page(board), "all attacks together")
    ranked = [cell.models.index(one.model) for one in settings_of(board)[0].standings]
    medians = np.median(cell.distance.min(1), 1)[ranked]
    assert [float(value) for value in shown] == [float(f"{value:.3g}") for value in medians]
    assert rows(page(board, "cells/l2-number-1.html"), "all attacks together") == [
        [shown[ranked.index(m)] for m in range(2)]
    ]


def test_one_attack_is_not_shown_twice() -> None:
    board = crowd(2, 1, 30)
    cell = board.cells[0]
    single = {n: getattr(cell, n)[:, :1] for n in ("covered", "left", "success", "distance")}
    board = replace(board, cells=(replace(cell, attacks=cell.attacks[:1], **single),))
    assert "together</th>" not in page(board)


def test_all_attacks_that_tie_as_the_strongest_are_outlined() -> None:
    board = crowd(2, 1, 40)
    cell = board.cells[0]
    left = np.zeros_like(cell.left)
    for a, count in enumerate((30, 20, 25, 20, 20)):
        left[0, a, :count] = True
    left[1, :, :35] = True
    left[1, 4, 34] = False
    planted = replace(cell, left=left, robust=np.all(left, 1), correct=np.ones_like(cell.correct))
    board = replace(board, cells=(planted,))
    ranked = [cell.models.index(one.model) for one in settings_of(board)[0].standings]
    expected = {0: [False, True, False, True, True], 1: [False] * 4 + [True]}
    text = page(board)
    assert outlined(text) == [[expected[m][a] for m in ranked] for a in range(5)]
    assert text.count("white box and 2 as strong") == 1
    own = page(board, "cells/linf-8-255-number-0.html")
    assert outlined(own) == [[expected[m][a] for m in (0, 1)] for a in range(5)]
