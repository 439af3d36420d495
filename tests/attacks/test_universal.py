"""One perturbation for all images: how many it fools, seen and unseen, and how it is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.victims import Spy, affine, siege
from torch import Tensor, nn

import besiege
from besiege.attacks import fitting
from besiege.attacks.attack import parse, spelled
from besiege.attacks.fitting import Boxing, Method
from besiege.attacks.universal import UAP, fit_universal, fooling
from besiege.core.ball import distances
from besiege.core.errors import AttackError, InputError, ThreatError
from besiege.core.samples import Samples
from besiege.core.threat import Access, Threat
from besiege.evaluation import craft
from besiege.testing.victims import Counting, Linear, digits, natural

LINF, L2 = "linf:0.4", "l2:2"


def split() -> tuple[Tensor, Tensor, Tensor]:
    seen, unseen = besiege.data.load("digits", "train"), besiege.data.load("digits")
    return seen.images[:200], seen.labels[:200], unseen.images


def noise(threat: str, shape: torch.Size) -> UAP:
    """Random signs of the size the threat allows."""
    known = Threat.parse(threat)
    signs = torch.rand(shape, generator=torch.Generator().manual_seed(1)).sub(0.5).sign()
    return UAP(tensor=signs * (known.radius / float(distances(signs[None], known.norm))))


@pytest.mark.parametrize(
    ("threat", "method", "target"),
    [
        (LINF, "gradient", 0.8),
        (L2, "gradient", 0.8),
        (LINF, "deepfool", 0.5),
        (L2, "deepfool", 0.6),
    ],
)
def test_it_fools_the_target_share_and_unseen_images_far_beyond_noise(
    threat: str, method: Method, target: float
) -> None:
    images, labels, unseen = split()
    rows = slice(None) if method == "gradient" else slice(0, 64)
    uap = fit_universal(
        natural(), images[rows], labels[rows], threat, method=method, target=target, batch=8
    )
    assert uap.tensor is not None
    known = Threat.parse(threat)
    assert float(distances(uap.tensor[None], known.norm)) <= known.radius * (1 + 1e-6)
    right = natural()(images[rows]).argmax(1) == labels[rows]
    assert fooling(uap, natural(), images[rows][right], threat) >= target
    random = fooling(noise(threat, images.shape[1:]), natural(), unseen, threat)
    assert fooling(uap, natural(), unseen, threat) > max(
        0.4, (1.5 if method == "deepfool" else 3) * random
    )


def test_a_fit_as_published_is_kept_and_evaluated_on_other_images(tmp_path: Path) -> None:
    images, labels, unseen = (part[:40] for part in split())
    given: Any = {"method": "deepfool", "target": 0.8, "batch": 1, "box": "none", "steps": 2}
    plain = fit_universal(natural(), images, labels, LINF, **given)
    uap = fit_universal(natural(), images, labels, LINF, form="uap@moosavi(steps=2)")
    assert uap.tensor is not None and plain.tensor is not None
    assert torch.equal(uap.tensor, plain.tensor)
    file = uap.save(tmp_path / "v.safetensors").file
    kept = parse(f"uap@moosavi(file={str(file)!r}, digest={uap.digest!r})")
    assert isinstance(kept, UAP) and kept.tensor is not None
    assert fooling(kept, natural(), unseen, LINF) == fooling(plain, natural(), unseen, LINF)
    for wrong, said in (
        ({"form": "uap@moosavi", "batch": 8}, "leave method, target, steps, batch and box out"),
        ({"form": "pgd@madry"}, "a uap without a perturbation is needed"),
        ({"form": kept}, "a uap without a perturbation is needed"),
    ):
        with pytest.raises(InputError, match=said):
            fit_universal(natural(), images, labels, LINF, **wrong)
    with pytest.raises(ThreatError, match=r"was published for linf:0\.3, not for l2"):
        fit_universal(natural(), images, labels, "l2:1", form="uap@deepsec-mnist")


def test_a_fit_stops_at_its_target() -> None:
    images, labels, _ = split()
    costs = []
    for target in (0.2, 0.8, 1.0):
        counting = Counting(natural())
        fit_universal(counting, images, labels, LINF, target=target, steps=20)
        costs.append(counting.forwards)
    assert costs[0] < costs[1] < costs[2]


def test_what_is_applied_is_the_same_change_for_all_within_ball_and_box() -> None:
    images, labels, unseen = split()
    uap = fit_universal(natural(), images, labels, LINF, steps=5)
    assert uap.access is Access.DECISION and uap.tensor is not None
    samples = Samples.of(unseen[:40], natural()(unseen[:40]).argmax(1))
    spy = Spy(natural())
    crafted = craft(spy, uap, samples, Threat.parse(LINF), pad=False, keep="last", leave="end")
    expected = (samples.images + uap.tensor).clamp(0, 1)
    assert torch.allclose(crafted.images, expected, atol=1e-6)
    assert crafted.queries.tolist() == [2] * 40 and (crafted.backwards == 0).all()
    # Within a smaller budget it is cut, and never left as it is.
    small = craft(natural(), uap, samples, Threat.parse("linf:0.1"), keep="last", leave="end")
    assert float((small.images - samples.images).abs().max()) <= 0.1 * (1 + 1e-5)


def test_success_is_that_of_the_last_perturbation_alone() -> None:
    """Without a file: what is seen during the fit does not count, or it would not be universal."""
    for method in ("gradient", "deepfool"):
        samples = digits(24)
        crafted = craft(
            natural(), UAP(method=method, steps=3, batch=8), samples, Threat.parse(LINF)
        )
        change = (crafted.images - samples.images)[crafted.success & (crafted.distance > 0)]
        assert len(change) >= 3
        # Where the box cuts nothing all changes are one.
        image = samples.images[crafted.success & (crafted.distance > 0)]
        free = (image + change > 1e-6) & (image + change < 1 - 1e-6)
        low = torch.where(free, change, torch.inf).amin(0)
        high = torch.where(free, change, -torch.inf).amax(0)
        assert (high - low)[free.any(0)].max() < 1e-5
        asked = crafted.queries[crafted.distance != 0]
        assert (asked > 3).all()


@pytest.mark.parametrize("method", ["gradient", "deepfool"])
def test_where_queries_are_limited_the_last_is_left_for_the_perturbation(method: Method) -> None:
    samples = digits(24)
    attack = UAP(method=method, batch=8)
    for queries in (30, 31, 39):
        found = craft(natural(), attack, samples, Threat.parse(LINF), queries=queries)
        assert int((found.success & (found.distance > 0)).sum()) > 5
        assert found.queries.max() <= queries


@pytest.mark.parametrize("method", ["gradient", "deepfool"])
def test_what_the_victim_computed_is_what_the_rows_paid(method: Method) -> None:
    """The law of honest accounts, but for the moment of the first success."""
    attack, samples = UAP(method=method, steps=3, batch=8), digits(24)
    for queries in (1, 2, 7, 25, None):
        counting = Counting(natural())
        found = craft(
            counting, attack, samples, Threat.parse(LINF), queries=queries, pad=False, batch=5
        )
        assert counting.forwards == int(found.forwards.sum()) == int(found.queries.sum())
        assert counting.backwards == int(found.backwards.sum())
        assert queries is None or found.queries.max() <= queries


def test_a_row_that_cannot_pay_to_the_end_moves_nothing() -> None:
    victim = Linear((1, 5, 5), 2)
    samples, v = victim.samples(2), torch.zeros(1, 1, 5, 5)
    moved = []
    for rows in ([0, 1], [1]):
        laid = siege(victim, samples.images, samples.labels, queries=10, survey=True)
        laid.record.meter.queries[0] = 8  # enough for a step, and not to see where it led
        moved.append(fitting._reached(laid.view(torch.tensor(rows)), v, True, 1)[0])
    assert torch.allclose(moved[0], moved[1]) and moved[0].abs().max() > 0


@pytest.mark.parametrize("box", ["joint", "cut", "none"])
def test_published_steps_are_euclidean_and_know_no_box(box: Boxing) -> None:
    """Two classes of an affine victim: the step to its plane, by hand."""
    weight = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    victim = affine(weight, torch.tensor([0.0, -1.85]))
    x = torch.tensor([[0.2, 0.95]]).view(1, 1, 1, 2)  # the second pixel has little room
    laid = siege(victim, x, torch.tensor([0]), radius=1.0, survey=True)
    move, fooled = fitting._reached(laid, torch.zeros_like(x), True, 1, box)
    assert not fooled.any()
    flat = move.flatten()
    if box == "none":
        assert torch.allclose(flat, 1.02 * 0.5 * weight[1] / 5, atol=1e-6)
        return
    end = (x + move).clamp(0, 1).flatten()
    assert float(end @ weight[1]) > 1.85 - 1e-6
    # Cut, the second pixel is pushed on against its bound; joint, it is not.
    assert (float(flat[1]) > 0.1) == (box == "cut")


def test_it_is_saved_and_read_back(tmp_path: Path) -> None:
    images, labels, unseen = split()
    uap = fit_universal(natural(), images, labels, LINF, steps=2)
    path = tmp_path / "v.safetensors"
    saved = uap.save(path)
    assert saved.tensor is not None and uap.tensor is not None
    assert torch.equal(saved.tensor, uap.tensor) and saved.digest == uap.digest
    assert parse(str(saved)) == saved
    assert parse(f"uap(file={str(path)!r})") == saved
    assert fooling(saved, natural(), unseen, LINF) == fooling(uap, natural(), unseen, LINF)
    # Other content under the same name is another attack, and is noticed.
    text, before = str(saved), spelled(saved)
    UAP(tensor=uap.tensor * 0.5).save(path)
    assert spelled(parse(f"uap(file={str(path)!r})")) != before
    with pytest.raises(AttackError, match="was expected"):
        parse(text)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    uap = UAP(tensor=torch.zeros(1, 4, 4))
    samples = digits(4)
    with pytest.raises(AttackError, match=r"shape \(1, 4, 4\)"):
        craft(natural(), uap, samples, Threat.parse(LINF))
    with pytest.raises(AttackError, match="was not saved"):
        parse(str(uap))
    with pytest.raises(AttackError, match="cannot be read"):
        parse("uap(file='nowhere.safetensors')")
    with pytest.raises(InputError, match="holds no perturbation"):
        UAP().save(tmp_path / "v.safetensors")
    with pytest.raises(ThreatError, match="within a budget"):
        fit_universal(natural(), samples.images, None, "linf")
    with pytest.raises(InputError, match="Classifier"):
        fit_universal(nn.Identity(), samples.images, None, LINF)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no image is left"):
        answers = natural()(samples.images).argmax(1)
        fit_universal(natural(), samples.images, (answers + 1) % 10, LINF)


def test_a_fit_repeats_and_leaves_the_model_as_it_was() -> None:
    images, labels, _ = split()
    victim = natural()
    state = torch.get_rng_state()
    one, two = (fit_universal(victim, images, labels, LINF, steps=2, batch=16) for _ in range(2))
    other = fit_universal(victim, images, labels, LINF, steps=2, batch=16, seed=1)
    assert one == two and one != other
    assert torch.equal(torch.get_rng_state(), state)


def test_images_already_fooled_do_not_outweigh_the_others() -> None:
    """Of two images one has ten times the slope of the other, which lies on another axis."""
    weight = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0]])
    victim = affine(weight, torch.tensor([0.0, -8.5, -0.85]))
    x = torch.tensor([[0.8, 0.2], [0.2, 0.8]]).view(-1, 1, 1, 2)
    both = fit_universal(victim, x, None, "l2:0.12", target=1.0)
    assert fooling(both, victim, x, "l2:0.12") == 1.0
    with patch.object(fitting, "CAP", 100.0):
        one = fit_universal(victim, x, None, "l2:0.12", target=1.0)
    assert fooling(one, victim, x, "l2:0.12") == 0.5


@pytest.mark.parametrize(
    "text", ["uap(method='deepfool', batch=1, box='none')", "uap(steps=3, batch=16)"]
)
def test_texts_read_back(text: str) -> None:
    assert str(parse(text)) == text and parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uap(steps=0)", "steps is 0"),
        ("uap(batch=0)", "batch is 0"),
        ("uap(target=0)", "target is 0"),
        ("uap(target=1.5)", "target is 1.5"),
        ("uap(method='luck')", "method is 'luck'"),
        ("uap(digest='abc')", "was not saved"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        parse(text)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("BESIEGE_DATA"), reason="BESIEGE_DATA names no data root")
@pytest.mark.parametrize("threat", ["linf:10/255", "l2:2"])
def test_on_the_public_resnet20(threat: str) -> None:
    data = besiege.data.load("cifar10", count=400)
    model = besiege.models.load("public:cifar10_resnet20")
    seen, unseen = data.images[:200], data.images[200:]
    uap = fit_universal(model, seen, None, threat)
    assert fooling(uap, model, seen, threat) >= 0.8
    random = fooling(noise(threat, seen.shape[1:]), model, unseen, threat)
    assert fooling(uap, model, unseen, threat) > max(0.6, 2 * random)
