"""LID: the estimate against closed forms, its reference images, and what it is fitted on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import besiege
from besiege.core.errors import DataError, InputError, VictimError
from besiege.defenses import LID, Calibration, Detected, load
from besiege.defenses.detecting import LANGUAGE
from besiege.defenses.lid import (
    Reference,
    _references,
    dimension,
    layers_of,
    logistic,
    regressed,
)
from besiege.models import Classifier
from besiege.models.architectures import ARCHITECTURES
from besiege.testing import VICTIM_LAWS, conform_victim
from besiege.testing.victims import module_of
from besiege.training import fit_detector
from besiege.training.detectors import _material, fooled, noisy

MODEL = "zoo:digits-natural"
TEST, TRAIN = (besiege.data.load("digits", split) for split in ("test", "train"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lid") / "lid.safetensors"
    return fit_detector("lid", MODEL, "digits", out)


def squared(query: Tensor, reference: Tensor) -> Tensor:
    return Reference.of(reference).squared(query)


def test_the_cards_vector() -> None:
    distances = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    assert float(dimension(distances.square(), 4)) == pytest.approx(0.961797, abs=1e-6)
    # Neighbours beyond the k nearest do not count, nor does their order.
    more = torch.tensor([[50.0, 8.0, 2.0, 1.0, 99.0, 4.0]])
    assert float(dimension(more.square(), 4)) == pytest.approx(0.961797, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e4])
def test_the_scale_of_distances_does_not_matter(scale: float) -> None:
    far = 1 + torch.rand(5, 40, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(dimension((far * scale).square(), 20), dimension(far.square(), 20))


@pytest.mark.parametrize("d", [2, 5, 10])
def test_points_uniform_in_a_ball_have_its_dimension(d: int) -> None:
    """Seen from the centre; the mean estimate over many draws, whose expectation is d k / (k-2)."""
    generator = torch.Generator().manual_seed(d)
    estimates = []
    for _ in range(400):
        direction = functional.normalize(torch.randn(100, d, generator=generator), dim=1)
        points = direction * torch.rand(100, 1, generator=generator) ** (1 / d)
        estimates.append(dimension(points.square().sum(1)[None], 20))
    # r_k itself contributes ln 1 = 0: k - 1 terms over k, so that E = d k / (k - 2).
    wanted = d * 20 / 18
    assert float(torch.cat(estimates).mean()) == pytest.approx(wanted, rel=0.05)


def test_distances_by_a_matrix_product_are_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (10, 2000, 2048):  # 2048: as a convolution
        reference = 1 + torch.randn(30, size, generator=generator)
        query = 1 + torch.randn(7, size, generator=generator)
        exact = (query[:, None].double() - reference).square().sum(2).float()
        assert torch.allclose(squared(query, reference), exact, rtol=1e-5)
    # Probabilities of certain answers: their squares are 1, and their distances 1e-5.
    sure = torch.tensor([[1 - 1e-5, 1e-5], [1 - 3e-5, 3e-5]])
    far = squared(sure[:1], sure[1:])
    assert float(far) == pytest.approx(2 * 2e-5**2, rel=2e-2)


def test_an_unseen_query_drops_nothing_and_a_member_only_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(30, 1, 4, 4, generator=generator)
    net = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), classes=3)
    kind = LID(k=5, batch=30)
    numbers = {"reference": reference, "weight": torch.tensor([1.0, 0, 0]), "bias": torch.zeros(1)}
    victim = Detected(net, kind, Calibration(0.0), numbers)
    flat = reference.flatten(1)
    with torch.no_grad():
        member = victim.score(reference[:4])
        near = (reference[:4] + 1e-3).clamp(0, 1)
        unseen = victim.score(near)
    for row in range(4):
        others = torch.cat([flat[:row], flat[row + 1 :]])
        exact = dimension(torch.cdist(flat[row : row + 1], others).square(), 5)
        assert float(member[row]) == pytest.approx(float(exact), rel=1e-3)
        # The nearest neighbour of an adversarial image is its original: it must count.
        distance = torch.cdist(near[row].flatten()[None], flat).square()
        assert float(unseen[row]) == pytest.approx(float(dimension(distance, 5)), rel=2e-2)
        assert float(unseen[row]) < 0.5 * float(member[row])


def test_copies_among_the_references_do_not_make_it_infinite() -> None:
    far = torch.tensor([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    x = far.clone().requires_grad_()
    made = dimension(x.square(), 4)
    (slope,) = torch.autograd.grad(made.sum(), x)
    assert torch.isfinite(made).all() and torch.isfinite(slope).all()


def test_layers_are_leaves_and_blocks_input_and_softmax_included() -> None:
    net = ARCHITECTURES["resnet20"]()
    names = [type(layer).__name__ for layer in layers_of(net)]
    assert names[:2] == ["Conv2d", "BatchNorm2d"] and names[-1] == "Linear"
    assert len(names) == 12, "a residual block is one layer"
    inner = Classifier(net.eval(), classes=10)
    reference = torch.rand(30, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    kind = LID(k=5, batch=30)
    numbers = {"reference": reference, "weight": torch.ones(14), "bias": torch.zeros(1)}
    victim = Detected(inner, kind, Calibration(0.0), numbers)
    assert conform_victim(victim, reference[:11] * 0.9) == tuple(VICTIM_LAWS)


def test_every_layer_is_compared_with_the_references_at_that_layer() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    inner = Classifier(net, classes=3)
    generator = torch.Generator().manual_seed(0)
    reference, x = (torch.rand(n, 1, 4, 4, generator=generator) for n in (40, 6))
    with torch.no_grad():
        seen, wanted = [x.flatten(1)], [reference.flatten(1)]
        for module in net:
            for place, values in ((seen, x), (wanted, reference)):
                before = values if isinstance(module, nn.Flatten) else place[-1].clone()
                place.append(module(before.clone()))
        del seen[1], wanted[1]  # flattening is no layer
        seen, wanted = ([*p, p[-1].softmax(1)] for p in (seen, wanted))
        exact = [
            dimension((a[:, None] - b).square().sum(2), 10)
            for a, b in zip(seen, wanted, strict=True)
        ]
        for number in range(5):
            weight = functional.one_hot(torch.tensor(number), 5).float()
            numbers = {"reference": reference, "weight": weight, "bias": torch.zeros(1)}
            victim = Detected(inner, LID(k=10, batch=40), Calibration(0.0), numbers)
            assert torch.allclose(victim.score(x), exact[number], rtol=5e-3)


def test_references_are_seen_in_evaluation_mode() -> None:
    net = module_of((1, 8, 8), 10)  # with batch norm
    inner = Classifier(net, classes=10)
    with torch.no_grad():
        calm = _references(Classifier(net.eval()), TRAIN.images[:30])
        busy = _references(Classifier(net.train()), TRAIN.images[:30])
    assert net.training and inner.module is net
    assert all(torch.equal(one.values, two.values) for one, two in zip(calm, busy, strict=True))


def test_the_regression_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(300, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(300, generator=generator, dtype=torch.float64)
    wanted = features @ torch.tensor([3.0, -2, 0, 1], dtype=torch.float64) + 0.5 * noise > 1
    for strength in (0.1, 10.0):
        weight, bias = logistic(features, wanted, strength)
        theirs = sklearn.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)
        theirs.fit(features.numpy(), wanted.numpy())
        assert weight.numpy() == pytest.approx(theirs.coef_[0], rel=1e-3, abs=1e-3)
        assert float(bias) == pytest.approx(float(theirs.intercept_[0]), rel=1e-3, abs=1e-3)
    # Separable classes have no finite optimum without a penalty; with one there is.
    apart = torch.cat([torch.zeros(10, 1), torch.ones(10, 1)]).double()
    weight, bias = regressed(apart, apart[:, 0] > 0, torch.arange(20) % 5)
    assert torch.isfinite(weight).all() and float(weight) > 1


def test_noise_has_the_mean_norm_of_the_perturbations_after_clipping() -> None:
    clean, ids = TRAIN.images[:200], TRAIN.ids[:200]
    adversarial = (clean + 0.3 * torch.sign(torch.rand_like(clean) - 0.5)).clamp(0, 1)
    made = noisy(clean, adversarial, (0.0, 1.0), ids, 0)
    size, wanted = ((one - clean).flatten(1).norm(dim=1).mean() for one in (made, adversarial))
    assert float(size) == pytest.approx(float(wanted), rel=1e-3)
    assert float(made.min()) >= 0 and float(made.max()) <= 1
    assert torch.equal(made, noisy(clean, adversarial, (0.0, 1.0), ids, 0))


def test_it_is_fitted_on_fgsm_images_that_fool() -> None:
    victim = load(MODEL)
    made, kept = fooled(victim, TRAIN.images[:200], TRAIN.labels[:200], 0.15)
    clean = TRAIN.images[:200][kept]
    assert 10 < len(kept) < 200
    with torch.no_grad():
        assert bool((victim(made).argmax(1) != TRAIN.labels[:200][kept]).all())
        assert bool((victim(clean).argmax(1) == TRAIN.labels[:200][kept]).all())
    x = TRAIN.images[:200].clone().requires_grad_()
    loss = functional.cross_entropy(victim(x), TRAIN.labels[:200], reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    exact = (x.detach() + 0.15 * slope.sign()).clamp(0, 1)[kept]
    # Cross-entropy as torch has it loses the gradient of images whose probability rounds to one.
    known = slope[kept].abs() > 1e-6
    assert float(known.float().mean()) > 0.5
    assert float((made - exact).abs()[known].max()) < 1e-6


def test_references_queries_and_calibration_are_apart(fitted: Path) -> None:
    card = json.loads(fitted.with_suffix(".json").read_text())
    assert card["reference"]["count"] == 100 and card["reference"]["split"] == "train"
    assert "reference" not in load_file(fitted), "images are named by their ids"
    assert fitted.stat().st_size < 2000
    from besiege.defenses.detecting import DETECTORS

    held = TEST.take(torch.arange(300, 397))
    material, reference = _material(LID(eps=0.15), load(MODEL), "digits", held, 300, 0)
    assert reference is not None and "lid" in DETECTORS
    assert torch.equal(material.reference, reference.images)
    same = torch.cdist(material.clean.flatten(1), reference.images.flatten(1)) < 1e-6
    assert not bool(same.any()), "no query is a reference"
    assert len(material.adversarial) == len(material.noisy) == len(material.kept)
    # Rows belong together: the same image, attacked and with noise.
    change = (material.adversarial - material.clean[material.kept]).flatten(1).abs().amax(1)
    assert float(change.max()) <= 0.15 + 1e-6


def test_it_detects_what_it_was_fitted_on(fitted: Path) -> None:
    victim = load(f"{MODEL}+detector('{fitted}')")
    assert isinstance(victim, Detected)
    x, y = TEST.images[:190], TEST.labels[:190]
    made, kept = fooled(victim.victim, x, y, 0.3)
    with torch.no_grad():
        clean, adversarial = victim.score(x[kept]), victim.score(made)
    auc = (adversarial[:, None] > clean).float().mean()
    assert float(auc) > 0.8


def test_negatives_are_clean_and_noisy_and_folds_keep_an_image_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Tensor, ...]] = []

    def watch(*given: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(given)
        return regressed(*given)

    monkeypatch.setattr("besiege.defenses.lid.regressed", watch)
    held = TEST.take(torch.arange(300, 397))
    material, _ = _material(LID(eps=0.3), load(MODEL), "digits", held, 60, 0)
    made = LID(eps=0.3).fit(load(MODEL), material)
    ((features, wanted, folds),) = seen
    count = len(material.kept)
    assert len(features) == 3 * count and int(wanted.sum()) == count
    assert torch.equal(folds, (torch.arange(count) % 5).repeat(3))
    # The last third is that of noisy images, each with features of its own.
    clean, noise = features[count : 2 * count], features[2 * count :]
    assert bool((clean != noise).any(1).all())
    # Scaled by the range of the images it is fitted on, and of no others.
    assert float(features.amin()) == 0 and float(features.amax()) == 1
    assert set(made) == {"weight", "bias"}


def test_another_number_of_references_is_refused(fitted: Path) -> None:
    """Estimates depend on it: a detector fitted with 100 must be asked with 100."""
    victim = load(f"{MODEL}+detector('{fitted}')")
    assert isinstance(victim, Detected)
    kept = dict(victim.numbers.named_buffers())
    kept["reference"] = kept["reference"][:60]
    with pytest.raises(VictimError, match="60 reference images"):
        Detected(victim.victim, LID(), Calibration(0.0), kept).score(TEST.images[:2])


def test_the_score_is_differentiable(fitted: Path) -> None:
    victim = load(f"{MODEL}+detector('{fitted}')")
    assert isinstance(victim, Detected)
    x = TEST.images[:3].clone().requires_grad_()
    score = victim.score(x)
    (slope,) = torch.autograd.grad(score.sum(), x)
    step = 2e-4 * torch.sign(slope)
    with torch.no_grad():
        rise = (victim.score(x + step) - victim.score(x - step)) / 2
    expected = (slope * step).flatten(1).sum(1)
    assert torch.allclose(rise, expected, rtol=0.3)


def test_other_reference_images_are_noticed(fitted: Path, tmp_path: Path) -> None:
    card = json.loads(fitted.with_suffix(".json").read_text())
    copy = tmp_path / "lid.safetensors"
    copy.write_bytes(fitted.read_bytes())
    for change in ({"digest": "0" * 64}, {"ids": "1-100"}, {"data": "nothing"}):
        altered = card | {"reference": card["reference"] | change}
        copy.with_suffix(".json").write_text(json.dumps(altered))
        with pytest.raises(DataError, match=r"holds other images|cannot be read"):
            load(f"{MODEL}+detector('{copy}')")


def test_a_file_conforms_and_its_search_is_on_the_model_itself(fitted: Path) -> None:
    text = f"{MODEL}+detector('{fitted}')"
    assert conform_victim(text, TEST.images[:11]) == tuple(VICTIM_LAWS)
    assert not LID.follows_twin


def test_its_parameters_are_checked() -> None:
    with pytest.raises(InputError, match="more than k"):
        LANGUAGE.read("lid(k=100)")
    assert LANGUAGE.read("lid(k=30)") == LID(k=30)
    labels = besiege.function_model(lambda x: x.reshape(len(x), -1)[:, :2], 2)
    with pytest.raises(InputError, match="has no layers that can be read"):
        Detected(labels, LID(), Calibration(0.0))
    assert LID().contrast((1, 28, 28)) == 0.3 and LID().contrast((3, 32, 32)) == 0.1
