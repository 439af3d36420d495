"""The summary of a job: Markdown that says what was found, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from tests.report.sample import MODEL, evaluation, four, smallest_run

from besiege.core.errors import Finding, Level
from besiege.metrics.gates import FailUnder, judged
from besiege.report.summary import append_summary, summary

STOP: Level = get_args(Level)[0]


def test_it_has_a_table_the_gates_the_warnings_and_the_page() -> None:
    found = four().evaluations
    text = summary(found, judged(found, [FailUnder(0.6)]), Path("run/report.html"))
    lines = text.splitlines()
    assert lines[0] == "## Robustness: failed"
    assert lines[2].startswith("| model | threat | images | clean | robust |")
    rows = [line for line in lines if line.startswith("| zoo:")]
    assert len(rows) == 4
    assert rows[0].startswith("| zoo:digits-natural | linf:8/255 | 397 of the 1,797 images of")
    assert "| 96.5 % | 11.8 % | \\[8.8, 15.4\\] |" in rows[0]
    assert sum(line.startswith("- **fail-under 60 failed**: zoo:") for line in lines) == 2
    assert sum(line.startswith("- **fail-under 60 passed**: zoo:") for line in lines) == 2
    warned = [line for line in lines if "W24" in line]
    assert len(warned) == 1, "a warning that concerns all is printed once"
    assert lines[-2] == "Page: run/report.html"


def test_the_title_is_the_worst_that_was_found() -> None:
    stop = Finding("W14", "it differs.", "do not.", STOP)
    stopped = evaluation(warnings=[stop])
    lacking = replace(stopped, complete=False)
    for found, title in (
        ([evaluation()], "passed"),
        ([stopped], "not to be quoted"),
        ([lacking], "not complete"),
        ([stopped, lacking], "not complete and not to be quoted"),
    ):
        assert summary(found, judged(found)).startswith(f"## Robustness: {title}\n")
    one = summary([stopped, evaluation(warnings=[])], judged([stopped]))
    assert f"**W14** {STOP}: It differs. Do not. (zoo:digits-natural against linf:0.15 on" in one


def test_names_cannot_write_markdown() -> None:
    model = replace(MODEL, name="a|b<script>*x*_y_`z`[l](http://h)\n# title\x1b[31m")
    text = summary([evaluation(model=model)], judged([evaluation(model=model)]))
    (row,) = [line for line in text.splitlines() if line.startswith("| a")]
    cell = r"| a\|b&lt;script>\*x\*\_y\_\`z\`\[l\](http://h) # title\x1b".replace(r"\x1b", r"\\x1b")
    assert row.startswith(cell)
    assert "\n# title" not in text


def test_without_a_budget_it_shows_the_median() -> None:
    found = smallest_run().evaluations
    assert "| median 0.459 |" in summary(found, judged(found))


def test_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.md"
    found = [evaluation()]
    append_summary(path, found, judged(found))
    append_summary(path, found, judged(found))
    assert path.read_text().count("## Robustness: passed") == 2
    assert path.read_text() == 2 * summary(found, judged(found))
