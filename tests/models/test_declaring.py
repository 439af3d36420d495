"""Answers of another kind than was declared: not read as something else, not asked for twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.models.serving import serving

import besiege
from besiege.core.errors import EndpointError, VictimError
from besiege.data import load as load_data
from besiege.defenses import load
from besiege.models import Endpoint, transport

DATA = load_data("digits", count=12)
NET = load("zoo:digits-natural")
LOGITS = NET(DATA.images).detach()
LABELS = LOGITS.argmax(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are a hundredth as long."""
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)


def ranked(k: int, how: str = "logits") -> tuple[Any, Any]:
    """The first classes of every image, and their scores."""
    scores = LOGITS.double().softmax(1) if how == "probabilities" else LOGITS.double()
    best = scores.topk(k, 1)
    return best.indices.numpy(), best.values.numpy()


def told(k: int, named: str, scores: str) -> dict[str, Any]:
    """The same as a server writes it."""
    where, what = ranked(k, scores)
    return {named: where.tolist(), scores: what.tolist()}


def always(content: object) -> Any:
    return lambda handler, number: handler.say(200, content) or True


@pytest.mark.parametrize("named", ["indices", "labels", "classes"])
@pytest.mark.parametrize("scores", ["scores", "logits", "probabilities"])
@pytest.mark.parametrize("k", [10, 3])
def test_scores_by_index_are_not_read_by_their_place(named: str, scores: str, k: int) -> None:
    with serving() as server:
        server.trick = always(told(k, named, scores))
        with pytest.raises(EndpointError) as stopped:
            load(f"{server.url}(classes=10)")(DATA.images)
        assert server.requests == 1
        more = ", outputs=probabilities" if scores == "probabilities" else ""
        typed = f"{server.url}(classes=10, top_k={k}{more})"
        assert f"declare top_k={k}{more}; write '{typed}'" in str(stopped.value)
        declared = load(typed)(DATA.images)
        seen = ~torch.isinf(declared)
        assert bool((seen.sum(1) == k).all())
        expected = LOGITS.log_softmax(1) if more else LOGITS
        torch.testing.assert_close(declared[seen], expected[seen], rtol=1e-4, atol=1e-4)
        # Where labels alone are wanted, the class of the largest score is one.
        labels = load(f"{server.url}(access=decision, classes=10)")(DATA.images).argmax(1)
        assert torch.equal(labels, LABELS)


def test_one_image_answered_without_rows_is_read_by_index_too() -> None:
    where, what = ranked(3)
    with serving() as server:
        server.trick = always({"indices": where[0].tolist(), "scores": what[0].tolist()})
        with pytest.raises(EndpointError, match="declare top_k=3;"):
            Endpoint(server.url)(DATA.images[:1])
        found = Endpoint(server.url, top_k=3, classes=10)(DATA.images[:1])
        assert int(found.argmax()) == int(LABELS[0])


def test_the_example_says_step_by_step_what_to_type() -> None:
    with serving(top_k=3) as server:
        outputs = "outputs=probabilities"
        for more in ("", "(format=raw)", "(top_k=3, classes=10)"):
            with pytest.raises(EndpointError) as stopped:
                load(server.url + more)(DATA.images)
            added = outputs if "top_k" in more else f"top_k=3, {outputs}"
            typed = f"{server.url}({added})" if not more else f"{server.url}{more[:-1]}, {added})"
            assert f"write '{typed}'" in str(stopped.value)
        assert server.images == 36
        assert torch.equal(load(typed)(DATA.images).argmax(1), LABELS)


@pytest.mark.parametrize(
    "answer",
    [
        lambda where, what: (where, what),
        lambda where, what: {"indices": where, "scores": what},
        lambda where, what: [
            [{"label": int(a), "score": float(b)} for a, b in zip(*pair, strict=True)]
            for pair in zip(where, what, strict=True)
        ],
    ],
    ids=["pair", "mapping", "list"],
)
def test_a_function_that_answers_the_first_few_must_say_so(answer: Any) -> None:
    def few(images: Any) -> Any:
        return answer(*ranked(3))

    with pytest.raises(VictimError, match=r"declare top_k=3$"):
        besiege.function_model(few, classes=10)(DATA.images)
    labels = besiege.function_model(few, classes=10, access="decision")(DATA.images).argmax(1)
    assert torch.equal(labels, LABELS)


def test_a_pair_of_rows_is_two_rows() -> None:
    model = besiege.function_model(lambda x: (np.array([1.0, 2.0, 0.0]), np.array([3.0, 2.0, 0.0])))
    assert model(DATA.images[:2]).argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "declared", "what"),
    [
        ({"logits": [[0.0] * 9] * 12}, {}, "9 classes, but 10 are expected"),
        ({"labels": [1] * 12}, {}, "only labels"),
        ({"labels": ["cat"] * 12}, {}, "only labels"),
        ([1] * 12, {}, "access='decision' if these are labels"),
        ({"probabilities": [[0.1] * 10] * 12}, {}, "declare outputs=probabilities"),
        ({"logits": [[0.1] * 10] * 12}, {"outputs": "probabilities"}, "declare outputs=logits$"),
        ({"scores": [[3.0] * 10] * 12}, {"outputs": "probabilities"}, "some lie outside"),
        ({"logits": [[0.1] * 10] * 12}, {"top_k": 3}, "but with top_k=3 an answer is"),
        ({"labels": [1] * 12}, {"top_k": 3}, "only labels"),
        ({"indices": 1, "scores": 2}, {"top_k": 3}, "but with top_k=3 an answer is"),
        ({"labels": [10] * 12}, {"access": "decision"}, "of 10 classes are 0 to 9"),
        ({"labels": [0.5] * 12}, {"access": "decision"}, "labels are whole numbers"),
    ],
)
def test_another_kind_is_asked_for_once(content: object, declared: Any, what: str) -> None:
    with serving() as server:
        server.trick = always(content)
        with pytest.raises(EndpointError, match="what was not declared.*" + what):
            Endpoint(server.url, classes=10, **declared)(DATA.images)
        assert server.requests == 1


@pytest.mark.parametrize("content", [{"error": "busy"}, "busy", None])
def test_what_is_no_answer_is_asked_for_again(content: object) -> None:
    with serving() as server:
        server.trick = always(content)
        with pytest.raises(EndpointError, match="gave 3 malformed answers"):
            Endpoint(server.url, top_k=3, classes=10)(DATA.images)
        assert server.requests == 3


def test_of_labels_alone_it_does_not_matter_what_the_scores_are() -> None:
    with serving(probabilities=True) as server:
        for outputs in ("", ", outputs=logits", ", outputs=probabilities"):
            model = load(f"{server.url}(access=decision{outputs}, classes=10)")
            assert torch.equal(model(DATA.images).argmax(1), LABELS)


@pytest.mark.parametrize("batch", [None, 1], ids=["together", "alone"])
def test_the_first_few_probabilities_are_not_taken_for_logits(batch: int | None) -> None:
    where, what = ranked(3, "probabilities")
    asked: list[int] = []

    def few(images: Any) -> Any:
        rows = slice(len(asked), len(asked) + len(images))
        asked.extend(range(len(images)))
        return where[rows], what[rows]

    def model(**more: Any) -> Any:
        asked.clear()
        return besiege.function_model(few, classes=10, top_k=3, batch=batch, **more)

    with pytest.raises(VictimError, match="outputs='probabilities', or outputs='logits' if"):
        model()(DATA.images)
    assert len(asked) == (12 if batch is None else 4)
    assert bool((model(outputs="logits")(DATA.images).max(1).values > 0).all())
    assert bool((model(outputs="probabilities")(DATA.images).max(1).values <= 0).all())
    assert model(access="decision")(DATA.images).argmax(1).tolist() == LABELS.tolist()
    model()(DATA.images[:3])  # so few may be logits


def test_one_row_that_is_none_settles_that_they_are_logits() -> None:
    scores = [[0.1 * n, 0.2] for n in range(7)]

    def few(images: Any) -> Any:
        return [[0, 1]] * len(images), [[-1.0, 0.5], *scores][: len(images)]

    model = besiege.function_model(few, classes=3, top_k=2)
    for _ in range(2):
        assert float(model(DATA.images[:8])[1, 1]) == pytest.approx(0.2)


def test_the_same_row_again_and_again_is_one() -> None:
    model = besiege.function_model(
        lambda x: ([[0, 1]] * len(x), [[0.5, 0.25]] * len(x)), classes=3, top_k=2
    )
    assert model(DATA.images).shape == (12, 3)


@pytest.mark.parametrize("access", ["score", "decision"])
def test_names_of_all_classes_beside_the_scores_are_no_indices(access: str) -> None:
    """Of one image as of many: the last request of a batch often holds one."""
    names = [f"digit {n}" for n in range(10)]
    with serving() as server:
        model = load(f"{server.url}(classes=10, access={access})")
        for rows in (3, 1):
            server.trick = always({"logits": LOGITS[:rows].tolist(), "classes": names})
            assert torch.equal(model(DATA.images[:rows]).argmax(1), LABELS[:rows])
        assert server.requests == 2


def test_the_first_few_of_one_image_without_a_row_of_their_own() -> None:
    where, what = ranked(2)
    top = [{"label": int(n), "score": float(s)} for n, s in zip(where[0], what[0], strict=True)]
    with serving() as server:
        server.trick = always({"top": top})
        answer = load(f"{server.url}(classes=10, top_k=2)")(DATA.images[:1])
        assert int(torch.isfinite(answer).sum()) == 2 and int(answer.argmax(1)) == int(LABELS[0])


@pytest.mark.parametrize("declared", [1, 2, 5])
def test_another_number_of_classes_than_was_declared_stops_at_once(declared: int) -> None:
    with serving(top_k=3) as server:
        for before, after in (("", ", classes=10"), ("classes=10, ", "")):
            text = f"{server.url}({before}top_k={declared}{after}, outputs=probabilities)"
            with pytest.raises(EndpointError) as stopped:
                load(text)(DATA.images)
            right = text.replace(f"top_k={declared}", "top_k=3")
            assert f"answers 3 classes with a score for each, but top_k={declared} was" in str(
                stopped.value
            )
            assert str(stopped.value).endswith(f"declare top_k=3; write '{right}'")
            assert torch.equal(load(right)(DATA.images).argmax(1), LABELS)
        assert server.requests == 4
        # What else is not said is said with it.
        with pytest.raises(EndpointError, match="top_k=3, outputs=probabilities; write") as stopped:
            load(f"{server.url}(top_k={declared}, classes=10)")(DATA.images)
        typed = f"{server.url}(top_k=3, classes=10, outputs=probabilities)"
        assert f"write '{typed}'" in str(stopped.value)
        # Of labels alone, the first one is enough.
        labels = load(f"{server.url}(access=decision, top_k={declared}, classes=10)")(DATA.images)
        assert torch.equal(labels.argmax(1), LABELS)


@pytest.mark.parametrize("declared", [1, 2, 5, 20])
def test_a_function_answers_as_many_classes_as_it_said(declared: int) -> None:
    with pytest.raises(VictimError, match=rf"3 classes .* top_k={declared} was .* top_k=3$"):
        besiege.function_model(lambda x: ranked(3), classes=10, top_k=declared)(DATA.images)


def test_of_fewer_classes_than_k_all_are_told() -> None:
    model = besiege.function_model(lambda x: ranked(10), classes=10, top_k=20)
    assert torch.equal(model(DATA.images).argmax(1), LABELS)


def test_more_classes_for_one_image_than_for_another_are_refused() -> None:
    where, what = (part[:2].tolist() for part in ranked(3))

    def some(images: Any) -> Any:
        return [where[0], where[1][:2]], [what[0], what[1][:2]]

    with pytest.raises(VictimError, match="2 classes for one image and 3 for another"):
        besiege.function_model(some, classes=10, top_k=3)(DATA.images[:2])
