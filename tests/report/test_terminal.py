from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from tests.report.sample import (
    MODEL,
    Figures,
    attack,
    broken_run,
    by_chance,
    crowded,
    evaluation,
    figures,
    four,
    minimal_run,
    smallest_run,
    suite,
    threat,
    vast,
)

from besiege.bench.work_estimate import Event, Stage
from besiege.core.errors import Finding, Level
from besiege.core.examination import Check, Examination
from besiege.metrics.attack_values import AttackQueries
from besiege.metrics.defense_values import DefenseFigures
from besiege.metrics.intervals import Rate
from besiege.metrics.values import EvaluationFigures, NextStep
from besiege.report import bar, table
from besiege.report.findings import _amount

IN_TURN = "The attacks ran one after the other, so none is called the strongest."
(SEARCH,) = smallest_run().evaluations


def printed(given: Figures, width: int = 80, page: str | None = "runs/one/report.html") -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table(given, page))
    return file.getvalue()


def test_a_path_is_whole() -> None:
    path = "besiege-runs/zoo-digits-natural-digits-linf-0.15-671d000e/report.html"
    assert printed(figures(), 80, path).splitlines()[-1] == f"page  {path}"
    assert printed(figures(), len(path), path).splitlines()[-2:] == ["page", path]
    file = io.StringIO()
    Console(file=file, width=40).print(table(figures(), path), soft_wrap=True)
    assert file.getvalue().splitlines()[-1] == f"page  {path}"


CASES: dict[str, Callable[[], Figures]] = {
    "one": figures,
    "four": four,
    "broken": broken_run,
    "minimal": minimal_run,
    "smallest": smallest_run,
    "crowded": crowded,
    "vast": vast,
    "suite": suite,
    "chance": by_chance,
}


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("case", CASES)
def test_it_fits_and_is_plain(case: str, width: int) -> None:
    text = printed(CASES[case](), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert text.isascii(), "plain, and nothing was cut off with an ellipsis"


@pytest.mark.parametrize("width", [40, 44, 60])
@pytest.mark.parametrize("case", ["one", "suite", "smallest"])
def test_a_narrow_terminal_loses_columns_and_no_names(case: str, width: int) -> None:
    given = CASES[case]()
    text = printed(given, width)
    assert max(map(len, text.splitlines())) <= width
    names = {re.split(r"\W", attack.text)[0] for attack in given.evaluations[0].attacks}
    begun = {re.split(r"\W", line)[0] for line in text.splitlines()}
    assert names <= begun
    assert ("passes" in text.split("* broke most")[0]) >= (width == 60)


@pytest.mark.parametrize("width", [60, 80])
def test_the_answer_comes_first_with_its_interval(width: int) -> None:
    lines = printed(figures(), width).splitlines()
    assert lines[0] == "zoo:digits-natural against linf:0.15"
    assert "397 of the 1,797 images of digits (test), chosen with seed 0" in (
        " ".join(" ".join(lines[1:3]).split())
    )
    start = lines.index("") + 1
    assert " ".join(lines[start].split()) == "robust 11.8 % [8.8, 15.4] worst of 3 attacks"
    assert lines[start + 1].split()[:5] == ["clean", "96.5", "%", "[94.2,", "98.1]"]
    assert lines[-1].split() == ["page", "runs/one/report.html"]


def test_every_attack_has_its_figures_and_the_strongest_a_mark() -> None:
    lines = [" ".join(line.split()) for line in printed(figures()).splitlines()]
    assert "fgsm 17.4 % [13.8, 21.5] 314 0 0.149 44.1 3.2s" in lines
    assert "pgd * 12.8 % [9.7, 16.5] 332 4 0.149 44.1 3.2s" in lines
    assert "mim 15.1 % [11.7, 19.0] 323 1 0.149 44.1 3.2s" in lines


def test_a_suite_shows_what_stood_before_and_after_each_attack() -> None:
    lines = [" ".join(line.split()) for line in printed(suite()).splitlines()]
    assert "attack accuracy 95 % before broken left passes time" in lines
    assert "apgd 30.2 % [25.7, 35.0] 383 263 120 44.1 3.2s" in lines
    assert "fabt 19.6 % [15.9, 23.9] 80 2 78 44.1 3.2s" in lines
    legend = " ".join(lines)
    assert "before, left: unbroken images" in legend and "alone:" not in legend


def test_the_legend_explains_only_the_columns_that_fit() -> None:
    (found,) = suite().evaluations
    asked = (AttackQueries(found.attacks[-1].text, 78, 4321.0, 5000.0, 200.0),)
    given = figures(replace(found, queries=asked))
    said = [" ".join(printed(given, width).split()) for width in (80, 100)]
    narrow, wide = (text.split(IN_TURN) for text in said)
    assert "left passes time" in narrow[0], "the time fits where the queries do not"
    assert "queries" not in narrow[0] and "queries" not in narrow[1]
    assert "left passes queries time" in wide[0] and "queries: mean (median)" in wide[1]
    for one, begin in ((figures(), "* broke most"), (suite(), IN_TURN[:12])):
        head, _, legend = printed(one, 40).rpartition(begin)
        for name in ("broken", "before", "left", "alone", "median", "passes"):
            explained = re.search(rf"\b{name}[:,]", legend) is not None
            assert explained == (f" {name}" in head), name


def test_a_model_that_answers_by_chance_has_a_mean_and_a_deviation() -> None:
    said = (
        "right in a single draw, mean (sd) of 5, clean 96.05 % (0.31); right in all of 5 draws "
        "12.5 %, all of 10 draws 8.8 %"
    )
    shown = " ".join(printed(by_chance()).split())
    assert f"one draw 21.51 % (1.02) {said}" in shown
    assert "draw" not in printed(suite())


def test_one_figure_of_a_stochastic_model_is_named_as_the_one_to_quote() -> None:
    shown = " ".join(printed(by_chance()).split())
    assert shown.count("quote this figure") == 1
    words = "right in most of 10 draws (quote this figure, with these words), worst of 4 attacks"
    assert re.search(r"robust [\d.]+ % \[[\d., ]+\] " + re.escape(words), shown)
    assert "right in most of 10 draws, 95 % intervals" in shown
    assert "broken where half of 10 draws or more are successes; the suite attacks those" in shown
    (one,) = by_chance().evaluations
    both = " ".join(printed(figures(one, replace(one, model=replace(one.model, name="b")))).split())
    assert both.count("an image counts where it is right in most of 10 draws") == 2


def test_distances_in_the_unit_of_the_budget() -> None:
    given = evaluation(
        threat=threat("linf:8/255", 8 / 255, "8/255"),
        attacks=[attack("pgd", 51, median_distance=6.5 / 255)],
    )
    assert "6.5/255" in printed(figures(given))


@pytest.mark.parametrize("width", [60, 80])
def test_what_went_wrong_is_said_before_the_figures_and_never_as_accuracy(width: int) -> None:
    text = printed(broken_run(), width)
    assert text.startswith("NOT COMPLETE")
    assert text.index("DO NOT QUOTE") < text.index("robust")
    assert "FAILED" in text and "fgsm failed: MemoryError: no room" in text
    assert "unfinished" in text
    row = next(line for line in text.splitlines() if line.startswith("fgsm"))
    assert "%" not in row


def test_where_no_attack_finished_nothing_is_known() -> None:
    lost = attack("pgd", 51, accuracy=None, failure="OSError: x", complete=False)
    text = printed(figures(evaluation(attacks=[lost])))
    assert "robustness is unknown" in text
    assert "robust " not in text.replace("robustness", "").replace("as robust", "")


def test_attacks_that_finished_are_named_where_others_did_not() -> None:
    lost = attack("apgdt", 51, accuracy=None, complete=False)
    text = printed(figures(evaluation(attacks=[attack("apgd", 51), lost], robust=None)))
    assert "apgd finished, but apgdt did not, so robustness is unknown" in " ".join(text.split())
    assert "No attack finished" not in text


def test_several_evaluations_are_compared_and_warnings_said_once() -> None:
    text = printed(four())
    head = [" ".join(line.split()) for line in text.splitlines()[4:9]]
    assert text.startswith("1 note: W24 (explained below)")
    assert head[0] == "model threat clean robust 95 % strongest"
    assert head[1].startswith("zoo:digits-pgd-at linf:8/255 96.5 % 74.8 % [70.2, 79.0]")
    assert head[2].startswith("zoo:digits-natural linf:8/255 96.5 % 11.8 % [8.8, 15.4]")
    assert head[3].startswith("zoo:digits-pgd-at l2:0.5 96.5 % 82.4 % [78.3, 86.0]")
    assert text.count("W24") == 2 and text.count("The interval is 6.6 points wide.") == 1
    assert "alone: broken by this attack only" not in text


def test_no_attack_of_a_suite_is_called_the_strongest_where_several_broke_images() -> None:
    shown = " ".join(printed(suite()).split())
    assert "*" not in shown and "broke most" not in shown and IN_TURN in shown
    several = printed(figures(*suite().evaluations, *suite().evaluations))
    assert "strongest" not in several
    # Where one attack broke all that were broken, no other can have broken more.
    (one,) = suite().evaluations
    first, *others = one.cascade
    idle = [replace(s, before=first.left, broken=0, left=first.left) for s in others]
    strong, *weak = one.attacks
    attacks = (strong, *(replace(attack, broken=0) for attack in weak))
    changed = replace(one, attacks=attacks, cascade=(first, *idle))
    sure = " ".join(printed(figures(changed)).split())
    assert "apgd * 30.2 %" in sure and "* broke most images." in sure and IN_TURN not in sure


def test_one_line_says_what_a_defense_is_worth_against_either_attacker() -> None:
    worth = DefenseFigures(Rate.of(27, 60), Rate.of(16, 60))
    line = "45.0 % if the defense is ignored, 26.7 % if it is known"
    one = evaluation(defense=worth)
    assert f"defense {line}" in " ".join(printed(figures(one)).split())
    other = replace(evaluation(), model=replace(MODEL, name="b"))
    both = " ".join(printed(figures(one, other)).split())
    assert both.count(line) == 1 and f"{one.title}: {line}" in both


def unknown(one: EvaluationFigures) -> EvaluationFigures:
    """The same, where a check was not run."""
    return replace(one, examination=Examination((Check("attacks are strong enough", "not run"),)))


def test_the_word_unknown_stays_with_the_figure_in_a_table_of_several() -> None:
    one, *others = four().evaluations
    stopped = Finding("W14", "It answered differently.", "Make it deterministic.", "stop")
    wrong = replace(unknown(others[0]), warnings=(stopped,))
    given = figures(unknown(one), wrong, *others[1:])
    lines = [" ".join(line.split()) for line in printed(given).splitlines()]
    assert [line for line in lines if line.endswith("unknown")] == [
        line for line in lines if line.startswith("zoo:digits-natural linf:8/255 96.5 % 11.8 %")
    ]
    assert "quote the figure with that word" in " ".join(lines)
    assert all(len(line) <= 80 for line in printed(given).splitlines())
    assert "unknown" not in printed(four())


def test_a_column_of_attacks_without_room_is_left_out() -> None:
    name = "zoo:a_model_of_forty_letters_and_a_few_more"
    long = [
        replace(one, model=replace(one.model, name=name)) for one in (*four().evaluations, SEARCH)
    ]
    narrow, wide = (printed(figures(*long), width).splitlines() for width in (80, 160))
    assert max(map(len, narrow)) <= 80
    headings = ["model", "threat", "clean", "robust", "95", "%"]
    assert headings in [line.split() for line in narrow]
    assert [*headings, "strongest"] in [line.split() for line in wide]


def test_of_many_commands_to_run_next_a_few_are_printed() -> None:
    steps = [NextStep(("W05",), f"besiege evaluate zoo:{n}") for n in range(5)]
    first, *others = four().evaluations
    given = figures(replace(first, next_steps=tuple(steps)), *others)
    text = printed(given)
    assert text.count("To run next") == 3 and "2 more commands" in text
    file = io.StringIO()
    Console(file=file, width=80).print(table(given, details=True))
    assert file.getvalue().count("To run next") == 5 and "more commands" not in file.getvalue()


def test_the_attacks_of_several_evaluations_are_listed_on_request() -> None:
    file = io.StringIO()
    Console(file=file, width=80).print(table(four(), details=True))
    assert file.getvalue().count("against") >= 4 and "alone:" in file.getvalue()


def warned(*findings: tuple[str, str, Level]) -> tuple[Finding, ...]:
    return tuple(Finding(id, seen, "Do better.", level) for id, seen, level in findings)


def test_the_top_says_which_rules_fired() -> None:
    given = warned(
        ("W24", "precise.", "note"), ("W05", "more.", "warning"), ("W11", "zero.", "warning")
    )
    lines = printed(figures(evaluation(warnings=given))).splitlines()
    said = "2 warnings: W05, W11; 1 note: W24 (explained below)"
    assert lines.index(said) < lines.index("") and lines[0].startswith("zoo:digits-natural")
    assert "explained below" not in printed(figures(evaluation(warnings=())))
    stopped = printed(figures(evaluation(warnings=warned(("W14", "it wavers.", "stop")))))
    assert "1 stop (not to be quoted): W14 (explained below)" in stopped


def test_a_rule_is_named_once_with_all_that_it_saw() -> None:
    given = warned(
        ("W05", "'pgd' gained 3 points.", "warning"),
        ("W05", "'mim' gained 2 points.", "warning"),
        ("W05", "'bim' gained 9 points.", "note"),
    )
    text = printed(figures(evaluation(warnings=given)))
    assert text.count("W05 warning") == 1 and "W05 note" not in text
    assert "'pgd' gained 3 points. Likewise 2 for 'mim'." in " ".join(text.split())
    assert _amount("'a' is 36.7 % at 0.2, but only 15.0 %.") == "36.7 %, 0.2, 15.0 %"
    assert "'bim' gained 9 points." in text, "another level is another sentence"


def test_what_differs_in_numbers_only_is_said_once() -> None:
    evaluations = [
        replace(one, warnings=warned(("W24", f"known to +-{n}.{n} points.", "note")))
        for n, one in enumerate(four().evaluations, 3)
    ]
    text = " ".join(printed(figures(*evaluations)).split())
    assert text.count("points.") == 1 and "Known to +-5.5 points." in text
    assert (
        "(zoo:digits-pgd-at against linf:8/255; likewise the others, with other numbers)"
        in " ".join(text.split())
    )
    two = " ".join(printed(figures(*evaluations[:2])).split())
    assert "against linf:8/255; likewise the other, with other numbers)" in two
    fewer = [*evaluations[:2], replace(evaluations[2], warnings=()), evaluations[3]]
    some = " ".join(printed(figures(*fewer)).split())
    assert re.search(
        r"\(\S+ against \S+; likewise \S+ against \S+ and .*, with other numbers", some
    )


def test_a_warning_of_several_evaluations_says_of_which_attacks() -> None:
    """The sentence is about the first evaluation; the rule may have seen others elsewhere."""
    attacks = (("pgd",), ("pgd",), ("mim", "bim"), ("fgsm",))
    evaluations = [
        replace(
            one,
            model=replace(one.model, declared=f"model {place}"),
            warnings=warned(*(("W05", f"'{name}' gained 2 points.", "warning") for name in names)),
        )
        for place, (one, names) in enumerate(zip(four().evaluations, attacks, strict=True))
    ]
    quiet = replace(evaluations[0], warnings=())
    for some in (evaluations, [*evaluations, quiet]):
        text = " ".join(printed(figures(*some)).split())
        named = text.partition("gained 2 points.")[2]
        assert all(f"'{name}'" in text for names in attacks for name in names), named
        assert "likewise" in named and "other numbers" not in named
    assert "'mim' and 'bim' of" in text or "Likewise 2 for 'bim'" in text


def test_a_warning_of_some_evaluations_names_them() -> None:
    *quiet, last = four().evaluations
    given = [*(replace(one, warnings=()) for one in quiet), last]
    assert "(zoo:digits-pgd-at against l2:0.5)" in printed(figures(*given))


def test_a_name_is_never_taken_for_markup() -> None:
    named = replace(MODEL, name="[red]model[/red]")
    given = evaluation(model=named, attacks=[attack("[bold]x[/bold]", 51)])
    text = printed(figures(given))
    assert "[red]model[/red]" in text and "[bold]x[/bold]" in text


def test_a_log_gets_a_line_for_each_stage() -> None:
    file = io.StringIO()
    with bar("zoo:x", Console(file=file, width=80)) as tell:
        for done, text in ((0, "pgd"), (50, "pgd"), (100, "mim [1]")):
            tell(Event(done, 200, text))
    lines = file.getvalue().splitlines()
    assert [line.partition(" after")[0] for line in lines] == [
        "zoo:x: pgd, 0 % done",
        "zoo:x: mim [1], 50 % done",
    ]


def test_a_log_hears_of_a_long_attack_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = io.StringIO()
    with bar("zoo:x", Console(file=file, width=80)) as tell:
        for now in (0.0, 30.0, 59.0, 61.0, 100.0, 122.0):
            tell(Event(10 + now, 200, "apgd", Stage("apgd", 400, 360 - int(now), 0.4, now)))
        now = 183.0
        tell(Event(200, 200, "apgd", Stage("apgd", 400, 200, 1.0, now)))
    assert file.getvalue().splitlines() == [
        "zoo:x: apgd, 5 % done after 0.00 s, 360 of 400 images left",
        "zoo:x: apgd, 36 % done after 1 min 01 s, 299 of 400 images left",
        "zoo:x: apgd, 66 % done after 2 min 02 s, 238 of 400 images left",
        "zoo:x: apgd broke 200 of 400 images in 3 min 03 s",
    ]


@pytest.mark.parametrize(
    ("width", "times"), [(60, r"[\d:-]+ left"), (80, r"[\d:]+ so far, [\d:-]+ left")]
)
def test_a_terminal_gets_a_bar_with_both_times_named(width: int, times: str) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    with bar("zoo:x", console) as tell:
        tell(Event(50, 200, "pgd"))
    lines = re.split(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]", file.getvalue())
    assert any(re.fullmatch(rf"zoo:x: pgd +\S+ +25 % {times}", line.strip()) for line in lines)
    assert max(map(len, lines)) <= width


def cascade(console: Console) -> None:
    """Two attacks of a suite: one runs and ends, the other fails; the model draws by chance."""
    name = "each_target(pgd(steps=20, loss=margin, schedule=cosine), 3)"
    sign = Finding("W14", "the model wavers.", "Make it deterministic.", "stop")
    with bar("zoo:x", console) as tell:
        tell(Event(60, 200, "clean images", findings=(sign,)))
        tell(Event(80, 200, "apgd", Stage("apgd", 1383, 700, 0.5, 61.0)))
        tell(Event(100, 200, "apgd", Stage("apgd", 1383, 120, 1.0, 125.0)))
        tell(Event(110, 200, name, Stage(name, 120, 119, 0.25, 1.0)))
        tell(Event(200, 200, name, Stage(name, 120, 120, 1.0, 2.0, failed=1)))
        tell(Event(200, 200, "minimal(pgd)"))


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_keeps_what_each_attack_left(width: int) -> None:
    file = io.StringIO()
    cascade(Console(file=file, force_terminal=True, width=width, color_system=None))
    lines = re.split(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]", file.getvalue())
    assert max(map(len, lines)) <= width
    shown = [" ".join(line.split()) for line in lines]
    assert "attack before left time" in shown
    assert "apgd 1,383 120 2 min 05 s" in shown
    assert any(line.endswith("120 FAILED 2.0 s") for line in shown)
    assert any("apgd: 700 of 1,383 left" in line and "50 %" in line for line in shown)
    assert any(line.startswith("W14 stop: The model wavers. Make it") for line in shown)
    assert "left" in shown[-1] or not shown[-1], "the bars are gone at the end"


def test_a_log_keeps_it_too() -> None:
    file = io.StringIO()
    cascade(Console(file=file, width=80))
    text = file.getvalue()
    assert "zoo:x: apgd broke 1,263 of 1,383 images in 2 min 05 s" in text
    assert "loss=margin, schedule=cosine), 3) failed on some of 120 images" in text
    assert text.startswith("W14 stop: The model wavers. Make it deterministic.")


def test_an_attack_that_was_done_before_shows_no_time() -> None:
    for terminal, said in ((True, "apgd 198 174 done before"), (False, "images (done before)")):
        file = io.StringIO()
        shown = Console(file=file, width=80, force_terminal=terminal, color_system=None)
        with bar("zoo:x", shown) as tell:
            tell(Event(100, 200, "apgd", Stage("apgd", 198, 174, 1.0, 1.5, kept=True)))
        assert said in " ".join(file.getvalue().split()) and "1.5 s" not in file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_was_done_before_in_many_evaluations_has_one_line(terminal: bool) -> None:
    file = io.StringIO()
    shown = Console(file=file, width=80, force_terminal=terminal, color_system=None)
    with bar("benchmark", shown) as tell:
        for title in ("1 of 3: a", "2 of 3: b"):
            tell(Event(10, 200, "clean images", title=title, kept=True))
            for name in ("fgsm", "apgd"):
                stage = Stage(name, 198, 174, 1.0, 1.5, kept=True)
                tell(Event(20, 200, name, stage, title=title, kept=True))
        tell(Event(30, 200, "fgsm", Stage("fgsm", 198, 17, 1.0, 1.5), title="3 of 3: c"))
    text = " ".join(file.getvalue().split())
    assert text.count("4 attacks of 2 evaluations were done before") == 1
    assert text.count("done before") == 1 and "apgd" not in text and "1.5 s" in text


def test_report_never_imports_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from besiege.report import bar, fragment, table, write\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_smallest_changes_are_a_table_of_their_own() -> None:
    text = printed(smallest_run())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "smallest perturbation median mean 90 % area to 0.947 optimality" in lines
    assert "fabt 0.459 0.457 0.805 0.457 1.000" in lines
    assert "best of all 0.459 0.457 0.805 0.457 1.000" in lines
    assert any(line.endswith("infinite infinite infinite 0.507 0.877") for line in lines)
    assert any(line.startswith("fabt *") and " 0.459 " in line for line in lines), "not 0.481"
    assert "median after passes 10 100 1,000 10,000 in all" in lines
    assert "fabt 0.5 0.5 0.5 0.5 0.459" in lines
    assert "all, one after the other - 0.5 0.5 0.5 0.459" in lines
    assert "* smallest perturbations." in text and "broke most" not in text
    assert "optimality" not in printed(smallest_run(1))


def test_autoattack_is_said_to_be_an_independent_implementation() -> None:
    said = " ".join(printed(suite()).split())
    assert "standard: An independent implementation of AutoAttack, not its authors' code." in said
    assert "independent" not in printed(figures())


def black_box(limit: int | None = 500) -> Figures:
    """Two query-based attacks, and one with gradients where there is no limit."""
    asked = tuple(AttackQueries(text, 383, 1234.5, 310.0, 200.0) for text in ("square", "nes"))
    texts = ["square", "nes", *([] if limit else ["pgd"])]
    threatened = replace(threat("linf:0.15 score", 0.15), access="score", queries=limit)
    attacks = [attack(text, 69) for text in texts]
    return figures(evaluation(threat=threatened, attacks=attacks, queries=asked))


def test_query_based_attacks_show_queries_instead_of_passes() -> None:
    said = printed(black_box(), 100)
    flat = " ".join(said.split())
    assert "queries time" in flat and "1,234 (310)" in said and "passes" not in said
    assert "queries: mean (median) per correctly classified image, at most 500 each." in flat
    mixed = " ".join(printed(black_box(None), 100).split())
    assert "passes queries time" in mixed and "at most" not in mixed
    assert "44.1 - 3.2s" in mixed and "- 1,234 (310) 3.2s" in mixed
    assert "queries" not in printed(figures(), 100)


def test_without_a_budget_black_box_medians_are_after_queries() -> None:
    (found,) = smallest_run().evaluations
    assert "median after passes" in printed(figures(found))
    asked = tuple(AttackQueries(one.text, 9, 1.0, 1.0, None) for one in found.attacks)
    assert "median after queries" in printed(figures(replace(found, queries=asked)))


def test_guards_are_a_sentence_and_not_rows_with_an_accuracy() -> None:
    guard = replace(attack("square (guard)", 47), guard=True, broken=4, tried=9)
    given = evaluation()
    cascade = (*given.cascade, replace(given.cascade[-1], text="square (guard)"))
    text = printed(figures(replace(given, attacks=(*given.attacks, guard), cascade=cascade)))
    assert "worst of 3 attacks and 1 guard" in text
    assert "square tried 9, broke 4." in " ".join(text.split())
    assert not any(line.startswith("square (guard)") for line in text.splitlines())


def test_what_follows_from_a_fault_of_the_model_is_only_named() -> None:
    rest: tuple[Level, Level] = ("warning", "note")
    given = warned(
        ("W07", "no rise.", rest[0]), ("W24", "wide.", rest[1]), ("W47", "flat.", "stop")
    )
    text = printed(figures(evaluation(warnings=given)))
    assert "also: W07, W24 (besiege report RUN --details shows them)" in text
    assert "No rise." not in text and text.count("Flat.") == 1
    assert "class Rounding(Layer):" in text
    file = io.StringIO()
    Console(file=file, width=80).print(table(figures(evaluation(warnings=given)), details=True))
    assert "No rise." in file.getvalue() and "also:" not in file.getvalue()
    alone = printed(figures(evaluation(warnings=given[:2])))
    assert "No rise." in alone and "class Rounding" not in alone, "no fault of the model"
