"""Victims that are only functions of arrays: what they may answer, and what is refused."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import besiege
from besiege.core.errors import AccessError, InputError, VictimError
from besiege.core.threat import Access
from besiege.defenses import BitDepth, Defended
from besiege.models.classifier import Classifier
from besiege.models.ledger import Ledger
from besiege.testing.victims import linear

VICTIM = linear()
SAMPLES = VICTIM.samples(12)


def scores(x: Any) -> Any:
    return VICTIM(torch.from_numpy(x)).detach().numpy()


def labels(x: Any) -> Any:
    return scores(x).argmax(1)


def first_two(x: Any) -> Any:
    z = scores(x)
    where = np.argsort(-z, axis=1)[:, :2]
    return where, np.take_along_axis(z, where, 1)


class Count:
    """Counts what a function is given."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.images, self.largest = function, 0, 0

    def __call__(self, x: Any) -> Any:
        assert x.dtype == np.float32 and x.ndim == 4 and x.flags["C_CONTIGUOUS"]
        self.images += len(x)
        self.largest = max(self.largest, len(x))
        return self.function(x)


def test_scores_are_taken_as_they_are_and_nothing_is_sent_that_was_not_asked() -> None:
    count = Count(scores)
    model = besiege.function_model(count, classes=5, batch=4, name="mine")
    assert torch.equal(model(SAMPLES.images), VICTIM(SAMPLES.images))
    assert count.images == 12 and count.largest == 4
    found = besiege.attack(
        "square", model, SAMPLES.images, SAMPLES.labels, threat="linf:0.05", queries=60
    )
    judged = found.verdicts.forwards
    assert count.images == 12 + int(found.queries.sum()) + judged
    assert model.counts == {"asked": [count.images, count.images]}
    assert found.model == "mine" and int(found.queries.max()) <= 60


def test_the_same_attack_as_on_the_module_itself() -> None:
    one, other = (
        besiege.attack("square", m, SAMPLES.images, SAMPLES.labels, threat=t, queries=100)
        for m, t in ((besiege.function_model(scores), "linf:0.05"), (VICTIM, "linf:0.05 score"))
    )
    assert torch.equal(one.images, other.images) and torch.equal(one.queries, other.queries)


def test_labels_rule_out_all_others() -> None:
    model = besiege.function_model(labels, classes=5, access="decision")
    logits = model(SAMPLES.images)
    assert model.access is Access.DECISION
    assert torch.equal(logits.argmax(1), SAMPLES.labels)
    assert torch.equal(logits.softmax(1).max(1).values, torch.ones(12))
    with pytest.raises(AccessError, match="needs score access, but only decision access"):
        besiege.attack("square", model, SAMPLES.images, SAMPLES.labels, threat="linf:0.1")


def test_decision_access_takes_labels_from_scores() -> None:
    model = besiege.function_model(scores, access="decision")
    assert torch.equal(model(SAMPLES.images).argmax(1), SAMPLES.labels)
    assert bool(torch.isinf(model(SAMPLES.images)).any())


@pytest.mark.parametrize("form", ["tuple", "dict", "lists"])
def test_the_first_few_leave_the_rest_at_minus_infinity(form: str) -> None:
    def answer(x: Any) -> Any:
        where, what = first_two(x)
        if form == "dict":
            return {"indices": where, "scores": what}
        if form == "lists":
            return [
                [{"label": int(i), "score": float(s)} for i, s in zip(*line, strict=True)]
                for line in zip(where, what, strict=True)
            ]
        return where, what

    model = besiege.function_model(answer, classes=5, top_k=2)
    logits, whole = model(SAMPLES.images), VICTIM(SAMPLES.images)
    kept = ~torch.isinf(logits)
    assert torch.equal(kept.sum(1), torch.full((12,), 2))
    torch.testing.assert_close(logits[kept], whole[kept])
    found = besiege.attack(
        "square", model, SAMPLES.images, SAMPLES.labels, threat="linf:0.2", queries=200
    )
    assert bool(found.success.any())


def test_probabilities_go_through_the_logarithm() -> None:
    def answer(x: Any) -> Any:
        return torch.from_numpy(scores(x)).double().softmax(1).numpy()

    model = besiege.function_model(answer, outputs="probabilities")
    expected = VICTIM(SAMPLES.images).log_softmax(1)
    torch.testing.assert_close(model(SAMPLES.images), expected, rtol=1e-4, atol=1e-4)
    found = besiege.attack(
        "square", model, SAMPLES.images, SAMPLES.labels, threat="linf:0.05", queries=5
    )
    assert "W13" in {w.id for w in found.warnings}
    with pytest.raises(VictimError, match="outside"):
        besiege.function_model(scores, outputs="probabilities")(SAMPLES.images)


def full(value: float, shape: Callable[[int], tuple[int, ...]]) -> Callable[[Any], Any]:
    return lambda x: np.full(shape(len(x)), value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (full(np.nan, lambda n: (n, 5)), "NaN or infinite"),
        (full(np.inf, lambda n: (n, 5)), "NaN or infinite"),
        (full(0.0, lambda n: (n, 4)), "4 classes, but 5 are expected"),
        (full(0.0, lambda n: (n + 1, 5)), "13 rows of scores to 12 images"),
        (full(0.0, lambda n: (n,)), "declare access='decision'"),
        (lambda x: "cat", "answered cat, but an array of numbers"),
        (lambda x: [[1.0], [1.0, 2.0]], "array of numbers"),
        (lambda x: 1 / 0, "failed on an array .*ZeroDivisionError"),
    ],
)
def test_answers_that_are_none_are_named(answer: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(VictimError, match=said):
        besiege.function_model(answer, classes=5)(SAMPLES.images)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (full(5, lambda n: (n,)), "the label 5, but the labels of 5 classes are 0 to 4"),
        (full(-1, lambda n: (n,)), "the label -1"),
        (full(0.5, lambda n: (n,)), "labels are whole numbers"),
        (full(1, lambda n: (n + 1,)), "one whole number per image"),
    ],
)
def test_labels_that_are_none_are_named(answer: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(VictimError, match=said):
        besiege.function_model(answer, classes=5, access="decision")(SAMPLES.images)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (scores, "answer is .indices, scores."),
        (lambda x: (np.zeros((12, 2)), np.zeros((12, 2))), "appear once"),
        (lambda x: ([[0, 1]] * 12, np.full((12, 2), np.nan)), "NaN"),
        (lambda x: ([[0, 7]] * 12, np.zeros((12, 2))), "the label 7"),
    ],
)
def test_first_few_that_are_none_are_named(answer: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(VictimError, match=said):
        besiege.function_model(answer, classes=5, top_k=2)(SAMPLES.images)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access": "gradient"}, "scores or labels"),
        ({"access": "scores"}, "did you mean 'score'"),
        ({"outputs": "logts"}, "did you mean 'logits'"),
        ({"classes": 1}, "whole number from 2"),
        ({"top_k": 0}, "whole number from 1"),
        ({"batch": 0}, "whole number from 1"),
        ({"grid": 0.3}, "whole number of its steps"),
        ({"box": (1, 0)}, "lowest and the highest"),
        ({"stochastic": True, "ledger": "x"}, "is stochastic"),
    ],
)
def test_wrong_input_is_found_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        besiege.function_model(scores, **given)
    with pytest.raises(InputError, match="takes a function"):
        besiege.function_model(3, name="three")  # type: ignore[arg-type]


def test_the_classes_of_labels_must_be_known() -> None:
    with pytest.raises(InputError, match="declare it, such as classes=10"):
        besiege.function_model(labels, access="decision")(SAMPLES.images)


def test_it_is_a_model_in_files_layers_and_evaluations(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text(
        "import besiege, numpy\n"
        "def answer(x):\n"
        "    m = x.mean(axis=(1, 2, 3))\n"
        "    return numpy.stack([0.5 - m, m - 0.5], 1)\n"
        "def make():\n"
        "    return besiege.function_model(answer, classes=2)\n"
    )
    images = torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    right = (images.mean((1, 2, 3)) > 0.5).long()
    found = besiege.evaluate(
        f"{source}:make", (images, right), threat="linf:0.2", attacks="square", queries=20
    )
    assert found.clean.value == 1.0 and found.robust is not None and found.robust.value < 1.0
    assert found.figures.threat.text.startswith("linf:0.2 score")
    layered = Defended(besiege.function_model(scores), BitDepth(2))
    assert layered.metered and layered.access is Access.SCORE
    assert isinstance(Classifier.of(layered), Defended)


def test_a_grid_is_what_it_is_sent() -> None:
    seen: list[Any] = []

    def answer(x: Any) -> Any:
        seen.append(x)
        return scores(x)

    model = besiege.function_model(answer, grid=1 / 255)
    images = (SAMPLES.images * 255).round() / 255
    right = VICTIM(images).argmax(1)
    besiege.attack("square", model, images, right, threat="linf:8/255", queries=30)
    every = np.concatenate(seen) * 255
    assert np.abs(every - np.rint(every)).max() < 1e-4


def test_a_digest_is_of_the_function_and_how_it_is_read() -> None:
    one = besiege.function_model(scores).digest()
    assert one == besiege.function_model(scores, batch=3, name="other").digest()
    assert one != besiege.function_model(labels).digest()
    assert one != besiege.function_model(scores, grid=1 / 255).digest()


SEEN = 0
"""Images that `counted` was given: of a kind whose content decides no digest."""


def counted(x: Any) -> Any:
    global SEEN  # what a function sets itself is not what it is
    SEEN += len(x)
    return scores(x)


def test_a_ledger_answers_repeats_and_is_kept(tmp_path: Path) -> None:
    begun = SEEN
    place = tmp_path / "below" / "kept.sqlite"
    model = besiege.function_model(counted, ledger=place)
    first = model(SAMPLES.images)
    twice = model(torch.cat([SAMPLES.images, SAMPLES.images]))
    assert torch.equal(twice, torch.cat([first, first]))
    assert SEEN - begun == 12 and (model.asked, model.sent) == (36, 12)
    again = besiege.function_model(counted, ledger=place)  # another process would see the same
    assert torch.equal(again(SAMPLES.images), first) and SEEN - begun == 12
    assert Ledger(place).accounts() == {"asked": (48, 12)}
    other = besiege.function_model(counted, ledger=place, grid=1 / 255)
    other(SAMPLES.images)
    assert SEEN - begun == 24  # it is sent something else


def test_repeats_in_one_request_are_sent_once_and_only_with_a_ledger(tmp_path: Path) -> None:
    x: Tensor = SAMPLES.images[:1].expand(6, -1, -1, -1)
    count = Count(scores)
    besiege.function_model(count)(x)
    assert count.images == 6
    besiege.function_model(count, ledger=tmp_path / "l.sqlite")(x)
    assert count.images == 7


def test_a_ledger_that_is_distrusted_serves_nothing(tmp_path: Path) -> None:
    count = Count(scores)
    model = besiege.function_model(count, ledger=tmp_path / "l.sqlite")
    model(SAMPLES.images)
    assert model.ledger is not None
    model.ledger.distrust()
    model(SAMPLES.images)
    assert count.images == 24 and Ledger(tmp_path / "l.sqlite").distrusted


def test_many_threads_write_one_ledger(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "l.sqlite") for _ in range(2)]

    def write(which: int) -> None:
        for number in range(20):
            key = f"{which} {number}".encode()
            ledgers[which % 2].write([key], np.full((1, 3), number, np.float32))
            ledgers[which % 2].count("all", 1, 1)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledgers[0]) == 120 and ledgers[1].accounts() == {"all": (120, 120)}
    keys = [f"{which} {n}".encode() for which in range(6) for n in range(20)] * 10
    assert len(ledgers[0].read(keys)) == 120


def test_a_ledger_waits_while_another_process_creates_the_file(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "l.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE notes (text TEXT)")
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, other.close)
    release.start()
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.write([b"sent"], np.zeros((1, 3), np.float32))
    release.join()
    assert len(ledger) == 1


class Holder:
    """An object whose method is the model."""

    def __init__(self, shift: float, held: object = None) -> None:
        self.shift, self.held = shift, held

    def predict(self, x: Any) -> Any:
        return scores(x) + self.shift


class Shifted(torch.nn.Module):
    """A module whose method is the model."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.tensor(shift))

    def predict(self, x: Any) -> Any:
        return scores(x) + self.shift.detach().numpy()


@pytest.mark.parametrize("kind", [Holder, Shifted])
def test_a_method_is_known_by_its_object(kind: Any) -> None:
    models = [besiege.function_model(kind(shift).predict) for shift in (1.0, 1.0, 2.0)]
    first, again, other = (model.digest() for model in models)
    assert first == again != other


def test_a_ledger_is_refused_where_nobody_could_find_its_answers_again(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    held = Holder(1.0, threading.Lock())
    with pytest.raises(InputError, match=r"could not identify .*predict.* ledger="):
        besiege.function_model(held.predict, ledger=place)
    assert not place.exists()
    besiege.function_model(Holder(1.0).predict, ledger=place)(SAMPLES.images)
    model = besiege.function_model(Holder(1.0).predict, ledger=place)
    model(SAMPLES.images)
    assert (model.asked, model.sent) == (12, 0)
