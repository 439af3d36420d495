"""Pages written from the library: whatever has a name is there, and what is said is right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.docs.blocks import DOCS

from besiege.attacks.attack import PIECES, Attack, names, parse
from besiege.attacks.suites import SUITES
from besiege.cli.app import APP
from besiege.cli.lookup import look_up
from besiege.data.catalogue import CATALOGUE
from besiege.defenses.layers import LAYERS
from besiege.metrics.registry import registered as figures
from besiege.models.catalogue import listing
from besiege.testing import LAWS, registered
from besiege.training import RECIPES
from besiege.training.objectives import OBJECTIVES
from besiege.training.radii import RADII
from besiege.training.updates import UPDATES

PAGES = importlib.import_module("pages")
ATTACKS = importlib.import_module("pages.attacks")
EXAMPLES = importlib.import_module("pages.examples")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """All pages, examples not run."""
    return {
        **ATTACKS.attack_pages(lambda code: "(not run)"),
        **PAGES.catalogue_pages(),
        "reference/commands": PAGES.commands_page(),
    }


def test_every_attack_has_a_page_and_a_line_in_the_list(pages: dict[str, str]) -> None:
    for name in names():
        assert pages[f"attacks/{name}"].startswith(f"# {name}\n")
        assert f"[{name}]({name}.md)" in pages["attacks/index"]


@pytest.mark.parametrize("attack", registered(), ids=str)
def test_a_page_says_what_show_says(attack: Attack, pages: dict[str, str]) -> None:
    page, found = pages[f"attacks/{attack.title()}"], look_up(attack.title())
    for value in (*found.facts["norms"], *found.facts["goals"], found.facts["access"], found.about):
        assert str(value) in page
    for name in found.parameters:
        assert f"`{name}`" in page
    assert parse(ATTACKS.written_out(found)) == attack


@pytest.mark.parametrize(
    ("text", "forwards", "backwards"),
    # A look at the clean image, one answer for every step, and the last point.
    [
        *(("fgsm", 3, 1), ("pgd", 42, 40), ("sinifgsm", 52, 50)),
        *(("repeat(pgd(steps=10), 3)", 34, 30), ("lspga(steps=5)", 7, 5)),
    ],
)
def test_the_cost_is_that_of_an_image_that_stands(text: str, forwards: int, backwards: int) -> None:
    assert EXAMPLES.cost(parse(text)) == (forwards, backwards)


def test_an_example_is_run_and_shown() -> None:
    page = ATTACKS.attack_page("fgsm", EXAMPLES.run)
    assert "fgsm on zoo:digits-natural, seed 0" in page
    assert re.search(r"success +\d+ of 50 images", page)


def test_the_example_of_an_attack_on_codes_has_a_model_that_takes_them() -> None:
    page = ATTACKS.attack_page("lspga", EXAMPLES.run)
    assert re.search(r"success +\d+ of \d+ images", page)
    assert "weights.safetensors+thermometer" in page


def test_an_attack_with_a_loop_of_its_own_has_a_page_like_the_others() -> None:
    parse(f"{DOCS.parent}/examples/my_attack.py:MyAttack")  # reading the file registers it
    page = ATTACKS.attack_page("my_attack", lambda code: "(not run)")
    assert "Ascent on the margin from a random point of the ball" in page
    assert "- **norms:** linf, l2, l1" in page and "- **access:** gradient" in page
    assert "at most 22 forward and 20 backward passes" in page
    assert "| `steps` | `20` |" in page


def test_a_combinator_nobody_wrote_an_example_for_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ATTACKS, "_EXAMPLES", {})
    assert str(parse(ATTACKS.example("repeat"))) == "repeat(pgd, 5)"
    assert str(parse(ATTACKS.example("cascade"))) == "cascade(fgsm, pgd)"


def test_everything_that_has_a_name_is_on_its_page(pages: dict[str, str]) -> None:
    lists: dict[str, list[str]] = {
        "attacks/pieces": [f"### {name}" for name in PIECES.names()],
        "attacks/suites": [text for suite in SUITES.values() for text in suite.attacks],
        "reference/data": [f"## {name}" for name in CATALOGUE],
        "reference/models": [f"`{row.name}`" for row in listing()],
        "reference/recipes": [
            *(f"### {name}\n" for name in RECIPES.names()),
            *(f"### objective {name}\n" for name in OBJECTIVES.names()),
            *(f"### radius {name}\n" for name in RADII.names()),
            *(f"### update {name}\n" for name in UPDATES.names()),
        ],
        "reference/defenses": [f"## {name}" for name in LAYERS.names()],
        "reference/laws": [f"## {law.number}. {name}" for name, law in LAWS.items()],
    }
    for page, wanted in lists.items():
        for text in wanted:
            assert text in pages[page], f"{page} lacks {text}"


def test_the_command_line_is_complete(pages: dict[str, str]) -> None:
    page = pages["reference/commands"]
    commands = [name for name in APP if not name.startswith("-")]
    assert {"evaluate", "attack", "train", "report"} <= set(commands)
    for name in commands:
        section = page.partition(f"## besiege {name}\n")[2].partition("\n## ")[0]
        assert section, f"{name} is missing"
        assert "**Examples**" in section and f"besiege {name}" in section
        for argument in APP[name].assemble_argument_collection():
            if argument.show:
                assert argument.names[0] in section, f"besiege {name} {argument.names[0]}"
    assert "How things are written" in page and "Exit codes" in page


def test_no_page_tells_of_this_machine(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        for path in {str(DOCS.parent), str(Path.home()), "/usr/"}:
            assert path not in page, f"{name} says {path}"


def test_the_report_is_explained_part_by_part() -> None:
    templates = DOCS.parent / "src" / "besiege" / "report" / "templates"
    text = "".join(path.read_text("utf-8") for path in templates.rglob("*.html"))
    titles = re.findall(r"<h2>(\w[^{<]*)</h2>", text)
    for figure in figures():
        if figure.section is not None:
            given: Any = figure.section.title
            cases = (SimpleNamespace(distances=None), SimpleNamespace(distances=()))
            titles += [given(case) for case in cases] if callable(given) else [given]
    explained = (DOCS / "report.md").read_text("utf-8").lower()
    assert len(titles) >= 12
    for title in titles:
        assert re.search(rf"^##+ .*{title.lower()}", explained, re.M), title


def test_links_to_files_of_the_repository_lead_to_pages_of_the_site() -> None:
    links = {
        "(../benchmarks/README.md#autoattack)": "(/reference/benchmarks.md#autoattack)",
        "(../../CONTRIBUTING.md)": "(/reference/contributing.md)",
        "(../docs/smallest.md)": "(/smallest.md)",
        "(warnings.md)": "(warnings.md)",
    }
    for written, published in links.items():
        assert PAGES.on_the_site(f"[x]{written}") == f"[x]{published}"


def test_pages_that_are_gone_are_removed(tmp_path: Path) -> None:
    PAGES.written({"attacks/old": "# old\n", "reference/data": "# data\n"}, tmp_path)
    stamp = (tmp_path / "reference" / "data.md").stat().st_mtime_ns
    PAGES.written({"attacks/new": "# new\n", "reference/data": "# data\n"}, tmp_path)
    assert sorted(p.name for p in (tmp_path / "attacks").iterdir()) == ["new.md"]
    assert (tmp_path / "reference" / "data.md").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One ``thing``.\n\n    More.", "One `thing`."),
        ("Noise (Xie et al. 2018). It shrinks.", "Noise (Xie et al. 2018)."),
        ("A line\n    goes on; so. Then more.", "A line goes on; so."),
    ],
)
def test_the_first_sentence(text: str, first: str) -> None:
    markup: Any = importlib.import_module("pages.markup")
    assert markup.first_sentence(text) == first
