"""Numbers and lists on the pages are those of the code and of the recorded runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS, blocks

import besiege
from besiege.attacks.suites import suite
from besiege.core.threat import Norm
from besiege.testing import LAWS
from besiege.testing.layer_laws import LAYER_LAWS
from besiege.testing.victim_laws import VICTIM_LAWS

ROOT = DOCS.parent


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text("utf-8").split())


def first_table(name: str) -> str:
    (text,) = [b.text for b in blocks(name) if b.text.startswith("zoo:digits-natural against")]
    return text


def test_the_first_table_is_the_same_everywhere() -> None:
    table = first_table("../README.md")
    assert first_table("start.md") == first_table("index.md") == table


@pytest.mark.slow
def test_the_first_table_is_what_the_first_command_prints(tmp_path: Path) -> None:
    found = besiege.evaluate(
        "zoo:digits-natural", "digits", threat="linf:0.1", curve=False, out=tmp_path
    )
    rates = re.findall(r"(\d+\.\d) %", first_table("../README.md"))[:2]
    assert found.robust is not None and found.clean is not None
    for rate, shown in zip((found.robust, found.clean), rates, strict=True):
        assert abs(100 * rate.value - float(shown)) < 0.6, "two images of 397"


def test_the_attack_on_its_page_is_the_example() -> None:
    (shown,) = [b.text for b in blocks("own-attack.md") if b.file == "my_attack.py"]
    assert shown == "# my_attack.py\n" + (ROOT / "examples" / "my_attack.py").read_text("utf-8")


def test_rule_ids_run_to_the_last_rule() -> None:
    ids = sorted(re.findall(r"^### (W\d\d)", (DOCS / "warnings.md").read_text("utf-8"), re.M))
    assert f"Rule ids run from {ids[0]} to {ids[-1]};" in page("docs/warnings.md")


def test_contributing_lists_every_law() -> None:
    text = page("CONTRIBUTING.md")
    for name, law in LAWS.items():
        assert f"- {law.number} `{name}`: " in text
    for name in (*LAYER_LAWS, *VICTIM_LAWS):
        assert f"`{name}`" in text


def test_the_suites_of_black_box_attacks_are_those_of_the_page() -> None:
    text = page("docs/queries.md")
    listed = {name: suite(name) for name in ("score", "decision")}
    first, second = (t.split("(")[0] for t in listed["score"].attacks_for(Norm.Linf))
    assert f"`score` is `{first}`, then `{second}`" in text
    for norm in (Norm.Linf, Norm.L2):
        names = (t.split("(")[0] for t in listed["decision"].attacks_for(norm))
        assert f"{' and '.join(f'`{name}`' for name in names)} in {norm}" in text


def test_how_many_figures_are_above_the_reference_is_what_the_records_say() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/autoattack/compare.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    *rows, last = done.stdout.splitlines()
    figures = sum(row.count(" / ") for row in rows[2:])
    text = page("benchmarks/README.md")
    assert f"{last.split()[0]} of {figures} figures" in text
    for row in rows[2:]:
        for cell in re.findall(r"[\d.]+ / [\d.]+", row):
            assert cell in text, row


def test_the_readme_says_what_was_measured() -> None:
    text = page("benchmarks/README.md")
    ours = re.search(r"\| besiege \(rows.*?\| (\d+) / (\d+) \|", text)
    peer = re.search(r"\| adv-lib 0.2.8 \| .*?\| (\d+) / (\d+) \|", text)
    assert ours and peer
    factor = sum(map(int, peer.groups())) / sum(map(int, ours.groups()))
    assert f"{factor:.0f} times less work" in page("README.md")
