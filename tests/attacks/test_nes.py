"""NES, SPSA and RGF: where their probes are, how their steps fall, and whom they cannot fool."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.victims import Noisy, Spy, affine, normal, siege, uniform
from torch import Tensor

from besiege.attacks.attack import parse, spelled
from besiege.attacks.estimates import Estimate, estimate, gaussian
from besiege.attacks.losses import margin
from besiege.attacks.nes import NES, RGF, SPSA, Adaptive, Plateau, ScoreAscent
from besiege.core.answer import Aim
from besiege.core.ball import distances
from besiege.core.errors import AttackError
from besiege.core.samples import Samples
from besiege.core.threat import L2, Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import Counting, Linear, digits, natural, untrained

ATTACKS: list[ScoreAscent] = [
    NES(steps=4, pairs=6, momentum=0.0),
    SPSA(steps=4, pairs=6),
    RGF(steps=4, probes=6),
]
EPS = {Linf: 0.1, L2: 0.5}


def ids(value: object) -> str:
    return str(value)


def score(norm: Norm, eps: float, goal: Goal = Goal.UNTARGETED) -> Threat:
    return Threat(norm, eps, goal, Access.SCORE)


@pytest.mark.parametrize("attack", ATTACKS, ids=ids)
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_probes_are_centred_where_the_last_step_led(attack: ScoreAscent, norm: Norm) -> None:
    """Not at the clean image, as in a port that repeats its first gradient for ever."""
    victim = untrained((1, 8, 8), 5)
    images = 0.3 + 0.4 * uniform(1, 1, 8, 8)
    samples = Samples.of(images, victim(images).argmax(1))
    spy = Spy(victim)
    spy.metered = True
    made = craft(spy, attack, samples, score(norm, 0.05 if norm is Linf else 0.3), leave="end")
    asked = spy.images[1:]
    each = 13 if attack.paired else 7
    assert [len(x) for x in asked] == [each] * 4 + [1]
    centres = [x[0] for x in asked]
    assert torch.equal(centres[0], images[0])
    for before, after in pairwise(centres):
        assert float((after - before).abs().max()) > 1e-3
    for x in asked[:-1]:
        if attack.paired:
            assert torch.allclose((x[1::2] + x[2::2]) / 2, x[:1].expand(6, -1, -1, -1), atol=1e-6)
        else:
            assert torch.allclose(
                (x[1:] - x[0]).flatten(1).norm(dim=1), torch.tensor(8e-3), rtol=0.01
            )
    assert int(made.queries) == 1 + attack.cost((1, 8, 8), 5)


@pytest.mark.parametrize("attack", ATTACKS, ids=ids)
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_a_row_is_what_it_is_alone_and_every_query_is_counted(
    attack: ScoreAscent, norm: Norm
) -> None:
    victim, samples = natural(), digits(12)
    counting = Counting(victim, access=Access.SCORE, metered=True)
    whole = craft(counting, attack, samples, score(norm, EPS[norm]))
    assert counting.forwards == int(whole.queries.sum())
    for row in (0, 5, 11):
        alone = craft(victim, attack, samples.at(torch.tensor([row])), score(norm, EPS[norm]))
        for name in ("images", "success", "queries", "first_query", "first_step"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row]), (row, name)


@pytest.mark.parametrize("attack", ["nes", "spsa", "rgf", "spsa(by='sign')"])
@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_they_reach_what_gradients_reach(attack: str, norm: Norm) -> None:
    """The linear victim falls at little more than its distance, targeted too."""
    victim = Linear((1, 6, 6), 2)
    samples, known = victim.equidistant(norm, 8)
    made = craft(
        victim, parse(attack), samples, score(norm, 1.1 * float(known.max())), queries=6000
    )
    assert made.success.all()
    targets = 1 - samples.labels
    aimed = Samples(samples.images, samples.labels, samples.ids, targets)
    threat = score(norm, 1.1 * float(known.max()), Goal.GIVEN)
    assert torch.equal(
        craft(victim, parse(attack), aimed, threat, queries=6000).images, made.images
    )


def test_steps_are_halved_where_the_loss_stands() -> None:
    laid = siege(natural(), digits(3).images, digits(3).labels)
    rule, x = Plateau(0.2, 0.1, 3, 0.0), laid.ball.center
    state = rule.begin(laid)
    g = normal(3, 1, 8, 8)
    rising, flat = torch.arange(12.0), torch.zeros(12)
    falling = -torch.arange(12.0)
    rates: list[Tensor] = []
    for step in range(12):
        value = torch.stack((rising, flat, falling))[:, step]
        move, state = rule.move(laid.ball, x, Estimate(g, value, value), state)
        rates.append(state[0])
        assert torch.allclose(distances(move, Linf).float(), (state[0] * 0.1).float())
    halved = [0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.02]
    assert torch.allclose(torch.stack(rates)[:, 0].float(), torch.full((12,), 0.2))
    for row in (1, 2):
        assert torch.allclose(torch.stack(rates)[:, row].float(), torch.tensor(halved))


def test_as_published_the_mean_of_the_probes_must_not_fall() -> None:
    laid = siege(natural(), digits(3).images, digits(3).labels)
    rule, x = Plateau(0.2, 0.1, 3, 0.0, watch="probes"), laid.ball.center
    state, g = rule.begin(laid), normal(3, 1, 8, 8)
    for step in range(3):
        around = torch.tensor([float(step), 0.0, -float(step)])
        _, state = rule.move(laid.ball, x, Estimate(g, -around, around), state)
    assert torch.allclose(state.rate.float(), torch.tensor([0.2, 0.2, 0.1]))
    assert parse("nes(watch='probes')").rule().watch == "probes"  # type: ignore[attr-defined]
    assert parse("spsa(by='sign', floor=1.0)").rule().floor == 1.0  # type: ignore[attr-defined]


def test_probes_tell_the_mean_of_their_losses() -> None:
    """What they tell is the mean over both ends of every pair."""
    images, labels = digits(3).images, digits(3).labels
    laid, x, sigma = siege(natural(), images, labels), images, 0.05
    found = estimate(laid, x, margin, gaussian, 4, sigma, 0, paired=True)
    u = gaussian(laid.dice.of("probes", 0), (1, 8, 8), torch.arange(4).expand(3, -1))
    ends = torch.cat(((x[:, None] + sigma * u), (x[:, None] - sigma * u)), 1).clamp(0, 1)
    aim = Aim(labels.repeat_interleave(8))
    mean = margin(natural()(ends.flatten(0, 1)), aim).view(3, 8).mean(1)
    assert torch.allclose(found.around, mean, atol=1e-4)
    assert not torch.allclose(found.around, found.loss, atol=1e-3)


def test_a_step_that_is_not_exact_is_scaled_and_then_clipped() -> None:
    images = torch.where(uniform(3, 1, 8, 8) < 0.5, 0.0, 0.6)
    laid = siege(natural(), images, digits(3).labels, 0.5, L2)
    told = Estimate(normal(3, 1, 8, 8, seed=5), torch.zeros(3), torch.zeros(3))
    for text in ("nes(rate=1.6, momentum=0, exact=False)", "rgf(rate=1.6, exact=False)"):
        attack = parse(text)
        assert isinstance(attack, ScoreAscent)
        rule = attack.rule()
        x, _ = attack.advance(laid.ball, images, told, rule, rule.begin(laid))
        length = told.gradient.flatten(1).norm(dim=1).view(3, 1, 1, 1)
        wanted = (images + 0.5 * told.gradient / length).clamp(0, 1)
        assert torch.allclose(x, wanted, atol=1e-6)
        full, _ = replace(attack, exact=True).advance(
            laid.ball, images, told, rule, rule.begin(laid)
        )
        assert (distances(x - images, L2) < 0.45).all()
        assert (distances(full - images, L2) > 0.49).all()


def test_probes_that_show_nothing_grow() -> None:
    """Cross-entropy of a confident victim is constant in float32 near an image."""
    flat = affine(torch.zeros(3, 64), torch.tensor([2.0, 0.0, -3.0]))
    spy = Spy(flat)
    spy.metered = True
    samples = Samples.of(torch.full((1, 1, 8, 8), 0.5), torch.zeros(1).long())
    for text, sizes in (("", [1e-4] * 3), (", grow=True", [1e-4, 5e-4, 25e-4])):
        spy.images.clear()
        attack = parse(f"rgf(steps=3, probes=2, sigma=0.0001{text})")
        craft(spy, attack, samples, score(Linf, 0.1), leave="end")
        asked = [x for x in spy.images if len(x) == 3]
        found = [float((x[1:] - x[0]).pow(2).mean().sqrt()) for x in asked]
        assert found == pytest.approx(sizes, rel=1e-2)


def test_parameters_that_were_added_leave_older_keys_as_they_were() -> None:
    for name in ("nes", "spsa", "rgf", "prgf", "bandits", "square", "nes_partial", "nes_labels"):
        told = spelled(parse(name))
        new = {"exact", "watch", "relative", "redraw", "edge", "compat", "waits", "grow"}
        assert not new & set(told), name
    assert "floor" not in spelled(parse("spsa"))
    assert spelled(parse("nes(exact=False)"))["exact"] is False


@pytest.mark.parametrize("norm", [Linf, L2], ids=str)
def test_a_first_step_of_adam_is_the_rate_in_every_entry(norm: Norm) -> None:
    laid = siege(natural(), digits(3).images, digits(3).labels, EPS[norm], norm)
    rule = Adaptive(0.3, 5)
    told = Estimate(normal(3, 1, 8, 8), torch.zeros(3), torch.zeros(3))
    move, _ = rule.move(laid.ball, laid.ball.center, told, rule.begin(laid))
    entry = 0.3 * EPS[norm] / (1 if norm is Linf else 8)
    assert torch.allclose(move, entry * told.gradient.sign(), rtol=1e-4)


def test_noise_hides_the_gradient_from_small_probes_and_not_from_large_ones() -> None:
    """Theory: the noise of a slope is that of the answers over sigma."""
    noisy = Noisy(natural(), 0.02)
    samples = digits(12).at(torch.arange(10))
    broken = []
    for sigma in (1e-3, 0.05):
        attack = NES(steps=12, pairs=20, sigma=sigma, momentum=0.0)
        made = craft(noisy, attack, samples, score(Linf, 0.15), keep="last", leave="end")
        clean = natural()(made.images).argmax(1)
        broken.append(int((clean != samples.labels).sum()))
    assert broken[1] >= 6 and broken[0] <= broken[1] - 4, broken


@pytest.mark.parametrize("attack", ["nes", "spsa", "rgf"])
def test_a_victim_that_rounds_falls_too(attack: str) -> None:
    victim = Classifier(natural().module, classes=10)
    victim.grid = 1 / 255
    rows = digits(12)
    samples = Samples(torch.round(rows.images * 255) / 255, rows.labels, rows.ids)
    float_ = craft(natural(), parse(attack), samples, score(Linf, 0.1), queries=600)
    made = craft(victim, parse(attack), samples, score(Linf, 0.1), queries=600)
    assert int(made.success.sum()) >= int(float_.success.sum()) - 1
    steps = made.images * 255
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    hit = made.success
    assert (victim(made.images[hit]).argmax(1) != samples.labels[hit]).all()


def test_values() -> None:
    for text in ("nes@ilyas", "spsa@uesato", "rgf@cheng"):
        assert str(parse(str(parse(text)))) == str(parse(text))
    assert parse("nes").access is Access.SCORE and parse("rgf").norms == {Linf, L2}
    for text, said in {
        "nes(pairs=0)": "pairs is 0",
        "nes(sigma=0)": "sigma is 0",
        "nes(momentum=1)": "momentum is 1",
        "nes(window=1)": "window is 1",
        "rgf(probes=0)": "probes is 0",
        "rgf(floor=0)": "floor is 0",
        "spsa(by='sgd')": "by is 'sgd'",
        "spsa(rate=True)": "rate is True",
        "spsa(loss=3)": "not a loss",
    }.items():
        with pytest.raises(AttackError, match=said):
            parse(text)
