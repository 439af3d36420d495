"""LS-PGA: ascent over thermometer codes, on a network that was trained behind the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.attacks.attack import Attack, parse
from besiege.attacks.losses import cross_entropy
from besiege.attacks.lspga import LSPGA, _allowed, _image, _relaxed
from besiege.core.answer import Aim
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import AttackError, StochasticError, ThreatError
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.thermometer import level
from besiege.core.threat import Goal, Linf, Threat
from besiege.defenses import BitDepth, Defended, GaussianNoise, Thermometer
from besiege.evaluation.crafting import Crafted, craft
from besiege.models import Classifier
from besiege.models.small import digits_cnn
from besiege.testing import LAWS
from besiege.testing.victims import module_of

LEVELS = 16
BOX = (0.0, 1.0)
DATA = besiege.data.load("digits", count=60)
SAMPLES = Samples.of(DATA.images, DATA.labels)
DICE = Dice.throw(0, torch.arange(len(DATA.images)))
LAYER = Thermometer(LEVELS)


def _trained() -> Defended:
    data = besiege.data.load("digits", split="train")
    codes = LAYER.transform(data.images, BOX, DICE)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = digits_cnn(in_channels=LEVELS)
        adam = torch.optim.Adam(net.parameters(), 2e-3)
        for _ in range(8):
            for rows in torch.split(torch.randperm(len(codes)), 100):
                adam.zero_grad()
                loss = nn.functional.cross_entropy(net(codes[rows]), data.labels[rows])
                torch.autograd.backward(loss)
                adam.step()
    return Defended(Classifier(net.eval(), classes=10, name="net"), LAYER)


@pytest.fixture(scope="module")
def victim() -> Defended:
    return _trained()


def crafted(victim: Any, attack: str, threat: str = "linf:0.15", **options: Any) -> Crafted:
    return craft(victim, parse(attack), SAMPLES, Threat.parse(threat), **options)


def losses(victim: Defended, images: Tensor) -> Tensor:
    with torch.no_grad():
        return cross_entropy(victim(images), Aim(DATA.labels))


def test_its_loss_clearly_exceeds_that_of_random_codes_in_the_ball(victim: Defended) -> None:
    ours = crafted(victim, "lspga", keep="last", leave="end").images
    around = ball(Linf, DATA.images, 0.15)
    u = _allowed(around, LEVELS)
    random = torch.stack(
        [
            losses(victim, _image(around, u + DICE.of(n).normal(tuple(u.shape[1:]))))
            for n in range(20)
        ]
    )
    gained = losses(victim, ours) - losses(victim, DATA.images)
    assert float(gained.mean()) > 3 * float((random.mean(0) - losses(victim, DATA.images)).mean())
    # More than the best of twenty random ones, on almost every image.
    assert float((losses(victim, ours) > random.amax(0)).float().mean()) > 0.9


def test_it_breaks_what_pgd_breaks_and_the_published_start_does_not(victim: Defended) -> None:
    broken = {
        text: int(crafted(victim, text).success.sum())
        for text in ("lspga", "pgd", "lspga(steps=7, rate=0.01, start='normal')")
    }
    clean = int((victim(DATA.images).argmax(1) != DATA.labels).sum())
    assert broken["lspga"] >= broken["pgd"] > 30
    assert broken["lspga(steps=7, rate=0.01, start='normal')"] < clean + 15


@pytest.mark.parametrize("eps", ["0.01", "0.15", "0.6"])
def test_images_are_in_ball_and_box_and_have_the_chosen_code(eps: str) -> None:
    around = ball(Linf, DATA.images, float(eps))
    u = _allowed(around, LEVELS)
    u = u + DICE.normal(tuple(u.shape[1:]))
    images = _image(around, u)
    assert float((images - DATA.images).abs().max()) <= float(eps) * (1 + 1e-6)
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    # The hard code of the largest logits is what the layer makes of the image.
    hard = nn.functional.one_hot(u.argmax(2), LEVELS).movedim(-1, 2).cumsum(2).float()
    assert torch.equal(LAYER.transform(images, BOX, DICE), hard.flatten(1, 2))
    # Relaxed codes become that code as they cool down.
    soft = _relaxed(u, DICE, torch.zeros(60), 1e6)
    assert torch.allclose(soft, hard, atol=1e-3)


def test_allowed_levels_are_those_that_some_point_of_the_ball_has() -> None:
    around = ball(Linf, DATA.images[:4], 0.1)
    inside = torch.isfinite(_allowed(around, LEVELS))
    low, high = ((DATA.images[:4] + by).clamp(0, 1) for by in (-0.1, 0.1))
    found = torch.zeros_like(inside)
    for share in torch.linspace(0, 1, 41):
        found.scatter_(2, level(low + share * (high - low), BOX, LEVELS).unsqueeze(2), True)
    assert torch.equal(inside, found)


def test_the_clean_value_stays_where_nothing_was_learned() -> None:
    around = ball(Linf, DATA.images, 0.2)
    assert torch.equal(_image(around, _allowed(around, LEVELS)), DATA.images)


@pytest.mark.parametrize("goal", ["targeted:random", "targeted:least-likely"])
def test_it_reaches_targets(victim: Defended, goal: str) -> None:
    assert int(crafted(victim, "lspga", f"linf:0.4 {goal}").success.sum()) > 40


def test_every_pass_is_charged_and_a_budget_is_kept_for_the_last_image(victim: Defended) -> None:
    whole = crafted(victim, "lspga(steps=5)", "linf:0.02")
    tried = ~whole.success
    assert set(whole.queries[tried].tolist()) == {7} and set(whole.backwards[tried].tolist()) == {5}
    # Two gradients, and the image they led to, which is that of a run of two steps.
    cut = crafted(victim, "lspga(steps=20)", "linf:0.15", queries=4)
    assert int(cut.queries.max()) == 4
    assert torch.equal(cut.success, crafted(victim, "lspga(steps=2)", "linf:0.15").success)


def test_a_grid_is_kept(victim: Defended) -> None:
    gridded = Defended(Classifier(victim.victim.module, classes=10, grid=1 / 16), LAYER)  # type: ignore[attr-defined]
    images = crafted(gridded, "lspga").images
    assert torch.equal(images * 16, (images * 16).round())


def test_victims_that_take_images_are_refused_before_any_work(victim: Defended) -> None:
    bare = besiege.models.load("zoo:digits-natural")
    # Layers before it would transform codes.
    second = Defended(victim.victim, BitDepth(3), LAYER)
    for other in (bare, Defended(bare, BitDepth(3)), Defended(victim, BitDepth(3)), second):
        with pytest.raises(AttackError, match=r"sends thermometer codes.*\+thermometer\(levels=16"):
            crafted(other, "lspga")
    with pytest.raises(AttackError, match="sends thermometer codes"):
        crafted(bare, "cascade(fgsm, lspga)")
    with pytest.raises(AttackError, match="'lspga' sends thermometer codes"):
        besiege.evaluate("zoo:digits-natural", "digits", threat="linf:0.1", attacks="lspga")
    with pytest.raises(ThreatError, match="works in linf"):
        crafted(victim, "lspga", "l2:0.5")


def test_layers_behind_the_code_may_be_stochastic(victim: Defended) -> None:
    noisy = Defended(victim.victim, LAYER, GaussianNoise(0.05))
    with pytest.raises(StochasticError, match=r"averaged\(lspga, 20\)"):
        crafted(noisy, "lspga")
    assert int(crafted(noisy, "averaged(lspga(steps=10), 3)").success.sum()) > 25


def test_an_evaluation_with_it(victim: Defended) -> None:
    result = besiege.evaluate(victim, DATA, threat="linf:0.15", attacks="pgd, lspga(steps=20)")
    assert result.robust is not None and result.robust.value < 0.5
    assert result.by_attack["lspga(steps=20)"].value < 0.5
    # Logits of levels outside the ball have no gradient, which says nothing about the model.
    assert "W11" not in {finding.id for finding in result.warnings}


def test_points_of_another_space_need_a_map_and_a_row_each(victim: Defended) -> None:
    asked: list[str] = []
    # Points that are no images are not rounded to the grid.
    gridded = Defended(Classifier(victim.victim.module, classes=10, grid=1 / 16), LAYER)  # type: ignore[attr-defined]

    class Asking(Attack):
        def run(self, siege: Siege) -> None:
            u = _allowed(siege.ball, siege.levels) - 0.123
            for points, through in ((u, None), (u[:-1], _soft)):
                with pytest.raises(AttackError) as problem:
                    siege.gradient(points, cross_entropy, through, elsewhere=True)
                asked.append(str(problem.value))
            answer = siege.gradient(u, cross_entropy, _soft, elsewhere=True)
            assert answer.gradient.shape == u.shape and not bool(answer.hit.any())

    def _soft(u: Tensor, dice: Dice, slot: Tensor) -> Tensor:
        assert set(u.flatten().tolist()) == {-float("inf"), float(torch.tensor(-0.123))}
        return _relaxed(u, dice, slot, 1.0)

    craft(gridded, Asking(), SAMPLES, Threat.parse("linf:0.15"))
    assert "need a map `through`" in asked[0] and "rows of images" in asked[1]


def test_codes_that_are_sent_are_codes(victim: Defended, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Tensor] = []
    ask = Oracle._ask

    def noting(oracle: Oracle, x: Tensor, *rest: Any) -> Tensor:
        sent.append(x.detach())
        return ask(oracle, x, *rest)

    monkeypatch.setattr(Oracle, "_ask", noting)
    crafted(victim, "lspga(steps=30)", "linf:0.02")
    codes = [x for x in sent if x.dim() == 5]
    assert len(codes) == 30
    for code in codes:
        assert float(code.min()) >= 0 and float(code.max()) <= 1
        assert bool((code[:, :, 1:] - code[:, :, :-1] >= -1e-6).all())


def test_seeds_decide_random_starts_and_nothing_else_changes(victim: Defended) -> None:
    before, mode = torch.get_rng_state(), [part.training for part in victim.source.parts]  # type: ignore[union-attr]
    random = "lspga(steps=3, start='normal')"
    runs = {
        (text, seed): crafted(victim, text, keep="last", leave="end", seed=seed).images
        for text in ("lspga(steps=3)", random)
        for seed in (0, 1)
    }
    assert torch.equal(runs["lspga(steps=3)", 0], runs["lspga(steps=3)", 1])
    assert not torch.equal(runs[random, 0], runs[random, 1])
    again = crafted(victim, random, keep="last", leave="end").images
    assert torch.equal(runs[random, 0], again)
    assert torch.equal(before, torch.get_rng_state())
    assert mode == [part.training for part in victim.source.parts]  # type: ignore[union-attr]


@pytest.mark.parametrize("box", [(0.0, 256.0), (-1.0, 1.0)])
def test_it_does_the_same_in_another_box(victim: Defended, box: tuple[float, float]) -> None:
    low, width = box[0], box[1] - box[0]
    other = Defended(Classifier(victim.victim.module, classes=10, box=box), LAYER)  # type: ignore[attr-defined]
    samples = Samples.of(DATA.images * width + low, DATA.labels, box=box)
    threat = Threat.parse(f"linf:{0.125 * width}")
    there = craft(other, parse("lspga"), samples, threat, keep="last", leave="end")
    here = crafted(victim, "lspga", "linf:0.125", keep="last", leave="end")
    assert torch.allclose((there.images - low) / width, here.images, atol=1e-5)
    assert torch.equal(there.success, here.success)


ELSEWHERE = {
    "repeatable": "one of its parts makes a victim of its own: see the test of seeds",
    "box_equivariant": "its victim maps what it is sent to another box: see the test of boxes",
    "not_idle": "its linear victims take images: see the tests of random codes and of pgd",
}


@pytest.mark.parametrize("law", sorted({*LAWS} - {*ELSEWHERE}))
def test_it_obeys_the_law_on_models_behind_the_layer(
    law: str, victim: Defended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untrained(shape: tuple[int, int, int], classes: int, seed: int = 0) -> Defended:
        channels, height, width = shape
        net = module_of((channels * LEVELS, height, width), classes, seed)
        return Defended(Classifier(net, classes=classes), LAYER)

    for home in ("trial", "outcomes", "extents", "firmness"):
        monkeypatch.setattr(f"besiege.testing.{home}.natural", lambda: victim, raising=False)
    monkeypatch.setattr("besiege.testing.trial.untrained", untrained)
    # Only its last image is examined: with fewer queries an earlier one is the last.
    without = ["moment"] if law == "honest_accounts" else []
    LAWS[law](LSPGA(steps=10), Linf, Goal.UNTARGETED, without=without)
