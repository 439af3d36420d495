"""A figure registered outside the package is in figures.json, on the page and in the terminal."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from tests.children import from_a_child

from besiege.bench.results import summarise, typed
from besiege.core.errors import InputError
from besiege.metrics import Figure, register

# In a process of its own: what is registered stays for as long as the process lives.
CODE = """
import sys
import besiege
from figure_from_outside import FIGURE, WrongConfidence
from rich.console import Console
from besiege.bench.results import summarise
from besiege.report import fragment, table, write_page

besiege.evaluate(
    "zoo:digits-natural", "digits", threat="linf:0.15", attacks="fgsm", count=20, curve=False,
    out=sys.argv[1], examine="none",
)
write_page(sys.argv[1])
found = summarise(sys.argv[1])
assert isinstance(found.evaluations[0].figure("wrong_confidence"), WrongConfidence), "read back"
Console(width=100).print(table(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("house") / "run"

    def measured() -> str:
        sys.argv[1:] = [str(folder)]
        sys.path.insert(0, str(Path(__file__).parent))
        with redirect_stdout(io.StringIO()) as said:
            exec(CODE, {})
        return said.getvalue()

    return folder, from_a_child(measured)


def test_it_is_in_figures_json_on_the_page_and_in_the_terminal(run: tuple[Path, str]) -> None:
    folder, printed = run
    content = json.loads((folder / "figures.json").read_text())
    value = content["evaluations"][0]["wrong_confidence"]
    assert 0 < value["median"] <= 1 and value["images"] > 5
    page = (folder / "report.html").read_text("utf-8")
    assert "How sure it was when it was wrong</h2>" in page
    assert f"confidence in {value['images']} wrong answers was <b>" in page
    assert page.index("The attacks<") < page.index("How sure it was") < page.index("Misclassified")
    (row,) = [line for line in printed.splitlines() if line.startswith("confidence")]
    assert f"median of {value['images']} wrong answers" in row


def test_who_did_not_register_it_does_not_see_it(run: tuple[Path, str]) -> None:
    folder, _ = run
    assert "wrong_confidence" not in summarise(folder).plain()["evaluations"][0]


def test_figures_json_is_read_back(run: tuple[Path, str]) -> None:
    content = json.loads((run[0] / "figures.json").read_text())
    assert typed(content).plain() == content
    older = {"id": "W14", "seen": "It wavers.", "advice": "Fix it.", "level": "error"}
    content["evaluations"][0]["warnings"] = [older]
    assert [one.level for one in typed(content).evaluations[0].warnings] == ["stop"]


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InputError, match="'robust' already"):
        register(Figure("robust", lambda case: 0.0))
