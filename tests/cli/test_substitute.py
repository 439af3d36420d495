"""``besiege substitute``: labels bought once, weights with a card, and what to type next."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Besiege
from tests.models.serving import serving

from besiege.models import load, transport

STEAL = (
    "substitute",
    "zoo:digits-natural",
    "--data",
    "digits",
    "--arch",
    "digits_mlp",
    "--out",
    "sub.safetensors",
)
FEW = ("--rounds", "1", "--epochs", "2", "--count", "60", "--check", "50")


def test_it_writes_weights_that_load_and_says_what_to_type_next(
    besiege: Besiege, tmp_path: Path
) -> None:
    said = besiege(*STEAL, *FEW, "--tau", "2", "--reservoir", "1", "40", "--seed", "1")
    assert said.code == 0, said.err
    assert "round 1: 120 points, 170 queries" in said.flat
    assert "queries    170 in all, 50 of them to measure the agreement" in said.out
    assert "held-out" in said.out and "weights    sub.safetensors" in said.out
    card = json.loads((tmp_path / "sub.json").read_text())
    assert card["queries"] == 170 and card["victim"] == "zoo:digits-natural"
    assert card["command"] == (
        "besiege substitute zoo:digits-natural --data digits --arch digits_mlp --rounds 1 "
        "--count 60 --check 50 --epochs 2 --lam 0.1 --tau 2 --reservoir 1 40 --seed 1 "
        "--out sub.safetensors"
    )
    assert card["source"] == "digits_mlp:sub.safetensors"
    assert load(card["source"]).name == card["source"]
    told = said.out[said.out.index("besiege evaluate") :].replace("\\\n", " ")
    assert shlex.split(told) == shlex.split(
        "besiege evaluate zoo:digits-natural --data digits --threat linf:0.15 "
        "--substitute digits_mlp:sub.safetensors --attacks mim"
    )
    assert max(map(len, said.out.splitlines())) <= 80
    weights = (tmp_path / "sub.safetensors").read_bytes()
    (tmp_path / "sub.json").unlink()
    (tmp_path / "sub.safetensors").unlink()
    assert besiege(*shlex.split(card["command"])[1:]).code == 0
    assert (tmp_path / "sub.safetensors").read_bytes() == weights


def test_what_to_type_next_can_be_copied_however_long_it_is(besiege: Besiege) -> None:
    path = "a folder/" + "far/" * 20 + "sub.safetensors"
    said = besiege(*STEAL[:-1], path, *FEW[:2], "--epochs", "1", *FEW[4:])
    assert said.code == 0, said.err
    told = said.out[said.out.index("besiege evaluate") :].rstrip("\n")
    *broken, last = told.splitlines()
    assert broken and all(line.endswith(" \\") for line in broken) and not last.endswith("\\")
    words = shlex.split(told.replace("\\\n", " "))
    assert words[words.index("--substitute") + 1] == f"digits_mlp:{path}"


def test_run_again_it_asks_nothing_and_another_theft_is_refused(besiege: Besiege) -> None:
    besiege(*STEAL, *FEW)
    said = besiege(*STEAL, *FEW, "--json")
    assert said.code == 0 and json.loads(said.out)["queries"] == 170
    assert "Nothing is left to do" in besiege(*STEAL, *FEW).flat
    said = besiege(*STEAL, *FEW, "--seed", "5")
    assert said.code == 2 and "choose another name" in said.flat
    assert "--no-resume" in said.flat and "resume=" not in said.flat
    assert besiege(*STEAL, *FEW, "--seed", "5", "--no-resume").code == 0


def test_the_model_may_be_named_by_its_option_and_a_budget_is_kept(
    besiege: Besiege, tmp_path: Path
) -> None:
    words = ("substitute", "--model", *STEAL[1:])
    said = besiege(*words, *FEW[:-1], "0", "--queries", "125")
    assert said.code == 0, said.err
    assert "queries    120 in all\n" in said.out and "agreement" not in said.out
    said = besiege(*words, *FEW, "--queries", "125", "--no-resume")
    assert said.code == 0 and "queries    125 in all" in said.out


def test_interrupted_it_says_what_is_lost(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from besiege.cli import substitute

    def stop(one: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(substitute, "_line", stop)
    said = besiege(*STEAL, *FEW)
    assert said.code == 130 and "Nothing was written, and 110 queries or more" in said.flat
    assert not (tmp_path / "sub.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arch", "digits_ml"), "'digits_mlp'"),
        (("--data", "digist"), "'digits'"),
        (("--out", "sub.pt"), ".safetensors"),
        (("--queries", "99"), "60 seeds and 50 to check on"),
        (("--count", "4000"), "397"),
        (("--lam", "0"), "lam is 0.0"),
        (("--rounds", "-1"), "--rounds"),
    ],
)
def test_wrong_input_is_named_before_anything_is_asked(
    words: tuple[str, str], said: str, besiege: Besiege, tmp_path: Path
) -> None:
    given = dict(zip([*STEAL[2::2], *FEW[::2]], [*STEAL[3::2], *FEW[1::2]], strict=True))
    given |= dict([words])
    found = besiege(*STEAL[:2], *(part for pair in given.items() for part in pair))
    assert found.code == 2 and said in found.flat
    assert not list(tmp_path.glob("sub*"))


def test_a_network_of_ones_own_is_trained_too(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    given = [word if word != "digits_mlp" else "mine.py:make" for word in STEAL]
    said = besiege(*given, *FEW)
    assert said.code == 0, said.err
    assert "Load the weights into mine.py:make to craft on it." in said.out


def test_behind_an_address_nothing_is_paid_for_twice(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)
    with serving(labels_only=True) as server:
        url = f"{server.url}(access=decision, retries=0, patience=0)"
        given = ("substitute", url, *STEAL[2:-1], "deep/sub.safetensors", *FEW)
        server.trick = lambda handler, number: (
            number > 5 and handler.say(500, {"error": "gone"}) is None
        )
        said = besiege(*given)
        assert said.code == 3 and "gone" in said.flat
        assert (
            "The answers are kept in deep/ledgers; run the same command again to resume."
            in said.flat
        )
        assert server.images >= 110
        server.trick = None
        said = besiege(*given)
        assert said.code == 0, said.err
        assert server.images == 170 + 8  # known images, before it goes on
        assert json.loads((tmp_path / "deep/sub.json").read_text())["queries"] == 170


def test_interrupted_behind_an_address_it_says_that_answers_are_kept(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    from besiege.cli import substitute

    def stop(one: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(substitute, "_line", stop)
    with serving() as server:
        said = besiege("substitute", server.url, *STEAL[2:], *FEW)
        assert said.code == 130 and "kept in ledgers; run the same command again" in said.flat
        assert "lost" not in said.flat


@pytest.mark.parametrize(
    ("form", "declared"),
    [
        ({"labels_only": True}, ""),
        ({"top_k": 3}, ""),
        ({"top_k": 3}, "(access=score, outputs=probabilities, top_k=2)"),
        ({"probabilities": True}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_of_an_address_labels_are_taken_whatever_it_answers(
    form: dict[str, Any], declared: str, besiege: Besiege
) -> None:
    with serving(**form) as server:
        said = besiege("substitute", server.url + declared, *STEAL[2:], *FEW)
        assert said.code == 0, said.err
        assert server.images == 170 and "queries    170 in all" in said.out
    assert "--access decision" in said.out[said.out.index("besiege evaluate") :]


def test_what_to_type_next_works_at_an_address_of_labels(besiege: Besiege) -> None:
    with serving(labels_only=True) as server:
        said = besiege("substitute", server.url, *STEAL[2:], *FEW)
        told = said.out[said.out.index("besiege evaluate") :].replace("\\\n", " ")
        found = besiege(*shlex.split(told)[1:], "--count", "10", "--no-curve", "--no-page")
        assert found.code == 0, found.err


def test_a_first_answer_that_cannot_be_read_costs_a_few_images_and_nothing_is_called_kept(
    besiege: Besiege, tmp_path: Path
) -> None:
    with serving(labels_only=True) as server:
        server.answer = lambda images: {"labels": [10] * len(images)}
        said = besiege("substitute", server.url, *STEAL[2:], *FEW)
        assert said.code == 3 and "of 10 classes are 0 to 9" in said.flat
        assert server.requests == 1 and server.images == 8
        assert list((tmp_path / "ledgers").glob("*.sqlite"))
        assert "kept" not in said.flat and "resume" not in said.flat


def test_scores_tell_of_more_classes_than_the_data_have(besiege: Besiege, tmp_path: Path) -> None:
    with serving() as server:
        answer = server.answer
        server.answer = lambda images: {
            "logits": [[*row, -99.0, -99.0] for row in answer(images)["logits"]]
        }
        said = besiege("substitute", server.url, *STEAL[2:], *FEW)
        assert said.code == 0, said.err
        assert "never answered class 10, 11" in said.out


def test_another_model_at_the_address_is_not_asked_on(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)
    with serving(labels_only=True) as server:
        url = f"{server.url}(retries=0, patience=0)"
        server.trick = lambda handler, number: (
            number > 5 and handler.say(500, {"error": "gone"}) is None
        )
        assert besiege("substitute", url, *STEAL[2:], *FEW).code == 3
        server.trick, paid, answer = None, server.images, server.answer
        server.answer = lambda images: {"labels": [9 - n for n in answer(images)["labels"]]}
        said = besiege("substitute", url, *STEAL[2:], *FEW)
        assert said.code == 3 and "the model there has changed" in said.flat
        assert "resume" not in said.flat and server.images == paid + 8
