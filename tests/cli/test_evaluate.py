"""``besiege evaluate``, ``status`` and ``report``: from a model to a page, resumable."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text
from tests.cli.conftest import Besiege

from besiege.bench.command import command_of
from besiege.bench.overview import open_run
from besiege.bench.spec import Machine, Request
from besiege.cli import screen
from besiege.cli.evaluate import default_folder
from besiege.models import load

ASK = ("evaluate", "zoo:digits-natural", "--data", "digits", "--threat", "linf:0.15")
SMALL = (*ASK, "--count", "20", "--attacks", "fgsm,pgd(steps=3)", "--shard", "10")


def records(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (folder / "records").iterdir()}


def kind(record: Path) -> str:
    return str(json.loads((record / "record.json").read_text())["identity"]["kind"])


def test_one_command_gives_a_table_a_page_and_records(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege(*SMALL)
    assert said.code == 0
    (run,) = (tmp_path / "besiege-runs").iterdir()
    assert run.name.startswith("zoo-digits-natural-digits-linf-0.15-")
    assert "robust" in said.out and "fgsm" in said.out and "pgd(steps=3)" in said.out
    assert f"besiege-runs/{run.name}/report.html" in said.out.replace("\n", " ")
    assert (run / "report.html").stat().st_size > 10_000
    assert f"records are kept in besiege-runs/{run.name}" in said.flat
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_suite_tells_its_cascade_beside_the_result(besiege: Besiege) -> None:
    attacks = "apgd(steps=3), apgdt(steps=3, targets=2)"
    said = besiege(*ASK, "--count", "20", "--suite", attacks, "--no-curve", "--no-page")
    assert said.code == 0
    assert said.out.startswith("zoo:digits-natural against linf:0.15")
    assert max(map(len, said.out.splitlines())) <= 80
    for name in ("apgd(steps=3)", "apgdt(steps=3, targets=2)"):
        assert f"zoo:digits-natural: {name} broke " in said.flat
    assert " images in " in said.flat and " images in " not in said.out
    heads = next(line for line in said.out.splitlines() if line.startswith("attack"))
    assert heads.split()[-5:] == ["before", "broken", "left", "passes", "time"]


def test_the_same_command_goes_on_and_does_nothing_twice(besiege: Besiege, tmp_path: Path) -> None:
    besiege(*SMALL, "--no-curve", "--no-page")
    (run,) = (tmp_path / "besiege-runs").iterdir()
    before = records(run)
    lost = sorted(before)[0]
    shutil.rmtree(run / "records" / lost)
    said = besiege(*SMALL, "--no-curve", "--no-page", "--batch", "7", "--threads", "1")
    assert said.code == 0 and "resuming in" in said.flat
    after = records(run)
    assert set(after) == set(before)
    assert {k: v for k, v in after.items() if k != lost} == {
        k: v for k, v in before.items() if k != lost
    }


def test_an_interrupted_suite_counts_shards_everywhere_and_repeats_nothing(
    besiege: Besiege, tmp_path: Path
) -> None:
    suite = ("--suite", "apgd(steps=3), apgdt(steps=3, targets=2)", "--shard", "10")
    command = (*ASK, "--count", "20", *suite, "--no-curve", "--no-page", "--out", "here")
    assert "done before" not in besiege(*command).flat
    store, run = open_run(tmp_path / "here")
    for task in (task for part in run.current[0].stages()[-1].parts for task in part):
        shutil.rmtree(store.records / task.key)
    said = " ".join(besiege("status", "here").out.split())
    assert "apgd(steps=3) 2 of 2" in said and "apgdt(steps=3, targets=2) 0 of 2" in said
    report = besiege("report", "here")
    said = " ".join(report.out.split())
    assert report.code == 3
    assert "Shards are missing: apgdt(steps=3, targets=2) (2 of 2)." in said
    assert "apgd(steps=3) finished, but apgdt(steps=3, targets=2) did not" in said
    said = besiege(*command).flat
    assert re.search(r"apgd\(steps=3\) broke \d+ of \d+ images \(done before\)", said)
    assert re.search(r"apgdt\(steps=3, targets=2\) broke \d+ of \d+ images in ", said)


def test_nothing_is_left_to_do_where_all_is_there(besiege: Besiege) -> None:
    first = besiege(*SMALL, "--no-curve", "--no-page", "--out", "here")
    assert "records are kept in here" in first.err
    again = besiege(*SMALL, "--no-curve", "--no-page", "--out", "here")
    assert "nothing is left to do: all records are in here" in again.err
    other = besiege(*ASK, "--count", "20", "--attacks", "bim(steps=2)", "--out", "here")
    assert other.code == 0 and "resuming in here" in other.err


def test_several_models_end_with_the_command_that_compares_them(besiege: Besiege) -> None:
    rest = ("--attacks", "fgsm", "--count", "10", "--no-curve", "--no-page", "--out", "my run")
    said = besiege(*ASK[:2], "zoo:digits-pgd-at", *ASK[2:], *rest)
    assert said.out.endswith("\nWhich model is more robust: besiege compare 'my run'\n")
    assert besiege("compare", "my run").code == 0
    assert "besiege compare 'my run'" not in besiege(*ASK, "--threat", "l2:1", *rest).out
    told = besiege(*ASK[:2], "zoo:digits-pgd-at", *ASK[2:], *rest, "--json").out
    assert "Which model" not in told and json.loads(told)["complete"]


def test_what_is_crafted_elsewhere_has_no_steps_here(besiege: Besiege) -> None:
    attack = ("--count", "20", "--attacks", "pgd(steps=3)", "--no-curve")
    alone = json.loads(besiege(*ASK, *attack, "--json").out)["evaluations"][0]
    assert [curve["attack"] for curve in alone["steps_curve"]] == ["pgd(steps=3)"]
    lent = besiege(
        *ASK, *attack, "--substitute", "zoo:digits-pgd-at", "--access", "score", "--json"
    )
    found = json.loads(lent.out)["evaluations"][0]
    assert found["attacks"][0]["transfer"] and found["steps_curve"] == []


def test_paths_are_never_broken(besiege: Besiege, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    folder = "a folder whose name is longer than a line/of-a-terminal/that-is-narrow"
    said = besiege(*ASK, "--count", "10", "--attacks", "fgsm", "--no-curve", "--out", folder)
    assert f"records are kept in {folder}\n" in said.err
    assert said.out.endswith(f"page  {Path(folder, 'report.html')}\n")
    assert besiege("report", folder).out.endswith(f"page  {Path(folder, 'report.html')}\n")


def test_a_sentence_is_broken_between_words_alone() -> None:
    file = io.StringIO()
    path = "runs/a-path-that-is-longer-than-the-line"
    words = Text("  What is finished stays in ").append(path, "bold").append("; go on.\nDone.")
    screen.say(Console(file=file, width=20), words)
    lines = ["  What is finished", "stays in", f"{path};", "go on.", "Done."]
    assert file.getvalue().splitlines() == lines


def test_json_is_alone_on_standard_output(besiege: Besiege, tmp_path: Path) -> None:
    said = besiege(*SMALL, "--no-curve", "--json", "--no-page", "--out", "here")
    found = json.loads(said.out)
    assert found["complete"] and len(found["evaluations"]) == 1
    assert found == json.loads((tmp_path / "here/figures.json").read_text())
    assert not (tmp_path / "here/report.html").exists()
    assert found["command"] == (
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15 "
        "--attacks 'fgsm,pgd(steps=3)' --curve none --count 20 --shard 10 --out here"
    )


def test_what_is_asked_reaches_the_library(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def listen(requests: Any, **given: Any) -> None:
        seen.update(given, request=requests[0][0])
        assert len(requests) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("besiege.bench.single.measure", listen)
    tokens = "--suite quick --goal targeted:second --access score --queries 9 --curve full"
    more = "--count 5 --seed 3 --split train --out there --shard 4 --batch 2 --device cpu --compile"
    said = besiege(*ASK, *tokens.split(), "--active-test", *more.split())
    assert said.code == 130
    request = seen["request"]
    assert request == Request(
        model="zoo:digits-natural",
        data="digits",
        threat="linf:0.15",
        suite="quick",
        goal="targeted:second",
        access="score",
        queries=9,
        curve="full",
        count=5,
        seed=3,
        split="train",
        shard=4,
        examine="short",
        active_test=50,
        command=request.command,
    )
    assert seen["out"] == Path("there")
    assert seen["how"] == Machine(device="cpu", batch=2, compile=True)
    assert request.command.startswith("besiege evaluate") and "--device" not in request.command


@pytest.mark.parametrize("given", ["19", "many", "2.5"])
def test_an_active_test_needs_images(besiege: Besiege, given: str) -> None:
    said = besiege(*ASK, "--active-test", given)
    assert said.code == 2 and f"--active-test is '{given}'" in said.err


def test_interrupted_it_says_what_stays(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: Any, out: Path, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("besiege.bench.single.measure", stop)
    said = besiege(*SMALL, "--out", "here")
    assert said.code == 130 and "nothing was written" in said.flat
    (tmp_path / "here").mkdir()
    asked = {"schema_number": 1, "created": "", "versions": {}, "plans": []}
    (tmp_path / "here/run.json").write_text(json.dumps(asked))
    said = besiege(*SMALL, "--out", "here")
    assert said.code == 130
    assert said.flat == (
        "Interrupted. Finished work is in here; run the same command again to resume."
    )


def test_an_attack_that_fails_makes_it_incomplete(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from besiege import Attack\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Attack):\n"
        "    def run(self, siege):\n"
        "        raise RuntimeError('broken on purpose')\n"
    )
    run = (*ASK, "--count", "5", "--attacks", "fgsm,mine.py:Mine", "--no-curve", "--out", "here")
    said = besiege(*run)
    assert said.code == 3
    assert "broken on purpose" in " ".join(said.out.split())
    said = besiege("status", "here")
    assert said.code == 3 and "broken on purpose" in " ".join(said.out.split())
    assert besiege("report", "here").code == 3


def test_status_and_report_of_a_run(besiege: Besiege, tmp_path: Path) -> None:
    figures = json.loads(besiege(*SMALL, "--no-curve", "--no-page", "--out", "here", "--json").out)
    said = besiege("status", "here")
    assert said.code == 0 and "complete" in said.out and "2 of 2" in said.out
    told = json.loads(besiege("status", "here", "--json").out)
    assert told["complete"] and [a["done"] for a in told["evaluations"][0]["attacks"]] == [2, 2, 2]

    page = tmp_path / "here/report.html"
    said = besiege("report", "here")
    assert said.code == 0 and "robust" in said.out and page.exists()
    page.unlink()
    assert json.loads(besiege("report", "here", "--json").out) == figures
    assert not page.exists(), "asked for figures alone, it writes nothing"
    besiege("report", "here", "--out", "elsewhere.html")
    assert (tmp_path / "elsewhere.html").exists() and not page.exists()

    shutil.rmtree(next(f for f in (tmp_path / "here/records").iterdir() if kind(f) == "judge"))
    said = besiege("status", "here")
    assert said.code == 3 and "incomplete" in said.out
    assert besiege("report", "here").code == 3


def test_report_opens_the_page(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, evaluated: Path
) -> None:
    opened: list[str] = []

    def look(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", look)
    assert besiege("report", str(evaluated), "--open").code == 0
    assert opened[0].startswith("file://") and opened[0].endswith("evaluated/report.html")


def test_images_of_any_size_are_brought_to_one(besiege: Besiege, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, size in (("0", 20), ("1", 16)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (size, size + number, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{number}.png")
    fit = ("--resize", "8x8", "--channels", "1")
    run = ("evaluate", "zoo:digits-natural", "--data", "pictures", "--threat", "linf:0.1")
    said = besiege(*run, *fit, "--attacks", "fgsm", "--no-curve", "--no-page", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["evaluations"][0]["data"]["shape"] == [1, 8, 8]
    assert found["command"].endswith("--resize 8x8 --channels 1")


def test_the_folder_depends_on_all_that_decides_the_result() -> None:
    request = Request(model="zoo:a", data="digits", threat="linf:8/255", count=5)
    changes = {"model": "zoo:b", "count": 6, "attacks": "pgd", "data": "mnist", "resize": "8"}
    changes |= {"layout": "nhwc", "substitute": ("zoo:c",)}
    others = [request.model_copy(update={name: value}) for name, value in changes.items()]
    assert len({default_folder([one]) for one in (request, *others)}) == 1 + len(changes)
    typed = request.model_copy(update={"command": "x"})
    assert default_folder([typed]) == default_folder([request])
    several = {default_folder([request, *others[:n]]) for n in range(len(others))}
    assert len(several) == len(others)
    assert default_folder([request, others[0]]) == default_folder([others[0], typed])


def test_the_folder_has_a_name_any_system_takes() -> None:
    model = 'resnet20(mean=(0.5, 0.5), std="x"):/some where/w*?.safetensors+bits(depth=3)'
    request = Request(model=model, data="../../éé\\:|<>", threat="linf:8/255 score")
    folder = default_folder([request])
    assert len(folder.parts) == 2
    assert all(letter.isascii() and (letter.isalnum() or letter in "-_.") for letter in folder.name)


def test_the_command_can_be_typed_again() -> None:
    import shlex

    line = command_of(
        Request(
            model="a b.py:make",
            data="x",
            threat="l2:1",
            attacks="pgd(steps=3), mim",
            examine="short",
            active_test=70,
        )
    )
    assert shlex.split(line) == [
        "besiege",
        "evaluate",
        "a b.py:make",
        "--data",
        "x",
        "--threat",
        "l2:1",
        "--attacks",
        "pgd(steps=3), mim",
        "--active-test",
        "70",
    ]


def test_autoattack_is_another_name_of_standard() -> None:
    asked = {"model": "zoo:digits-natural", "data": "digits", "threat": "linf:0.15"}
    folders = {
        default_folder([Request.of(**asked, suite=s)]) for s in ("standard", "AutoAttack", "aa")
    }
    assert len(folders) == 1
    assert Request.of(**asked, suite="aa").suite == "standard"
    assert Request.of(**asked, suite="fgsm, pgd").suite == "fgsm, pgd"


def test_parameters_of_other_libraries_are_translated_before_any_work(besiege: Besiege) -> None:
    said = besiege(*ASK, "--attacks", "pgd(alpha=0.03, nb_iter=10)")
    assert said.code == 2 and "write 'pgd(schedule=constant(0.2), steps=10)'" in said.flat
    said = besiege(*ASK, "--attacks", "autoattack")
    assert said.code == 2 and "--suite standard" in said.flat


def test_one_class_for_all_images(besiege: Besiege) -> None:
    tokens = ("--count", "30", "--attacks", "fgsm", "--no-curve", "--no-page", "--out", "here")
    said = besiege(*ASK, "--target-class", "3", *tokens)
    assert said.code == 0, said.err
    assert "against linf:0.15 targeted:class=3" in said.out
    assert "without those of class 3" in " ".join(said.out.split())
    said = besiege(*ASK, "--target-class", "3", "--goal", "targeted:random", *tokens)
    assert said.code == 2 and "--goal" in said.flat and "give one" in said.flat
    said = besiege(*ASK, "--target-class", "cat", *tokens)
    assert said.code == 2 and "no class of digits is called 'cat'" in said.flat


def test_an_attack_that_ignores_a_defense_leads_to_those_that_know_it(besiege: Besiege) -> None:
    model = ("evaluate", "zoo:digits-natural+resize_pad", "--data", "digits", "--count", "4")
    words = (*model, "--threat", "linf:0.15", "--attacks", "oblivious(pgd)", "--no-curve")
    said = besiege(*words, "--out", "run", "--dry-run")
    assert said.code == 0 and "oblivious(pgd)" in said.out and not Path("run/records").exists()
    said = besiege(*words, "--out", "run")
    assert re.search(r"^oblivious\(pgd\),.*\ntransfer", said.out, re.M)
    assert "W33 warning" in said.out and "--suite adaptive" in said.out


def test_weights_without_a_normalisation_are_asked_about_it(
    besiege: Besiege, tmp_path: Path
) -> None:
    """Without mean and std, a network may classify a third of the images correctly, and run on."""
    torch.save(load("zoo:digits-natural").module.state_dict(), tmp_path / "w.pt")
    words = ["--data", "digits", "--count", "4", "--threat", "linf:0.1", "--attacks", "fgsm"]
    words += ["--no-curve", "--no-page", "--examine", "none"]
    asked = 'write "digits_cnn(mean=..., std=...):w.pt"'
    assert asked in besiege("evaluate", "digits_cnn:w.pt", *words, "--out", "one").flat
    assert asked not in besiege("evaluate", "digits_cnn:w.pt", *words, "--out", "one").flat, "again"
    told = besiege("evaluate", "digits_cnn(mean=0, std=1):w.pt", *words, "--out", "two")
    assert told.code == 0 and "(mean=..." not in told.flat
    assert "(mean=..." not in besiege("evaluate", "zoo:digits-natural", *words).flat
