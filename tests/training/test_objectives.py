"""Objectives: each against a plain computation, the vectors of the papers, and its known slips."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError
from besiege.training.objectives import LANGUAGE, OBJECTIVES, Objective, Step
from besiege.training.reaching import relative_reach
from besiege.training.separating import simplex

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")


def net(seed: int = 0, classes: int = 5, inputs: int = 12) -> nn.Sequential:
    draws = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.Softplus(), nn.Linear(16, classes))
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=draws) * 0.6)
    return made


def taken(
    ask: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    crafted: Tensor | None = None,
    **others: Any,
) -> Step:
    given: dict[str, Any] = {"still": ask, "each": ask, "teacher": None, **others}
    dice = Dice.throw(0, torch.arange(len(x)))
    return Step(x, y, x if crafted is None else crafted, ask, dice=dice, epoch=1, **given)


def answered(clean: Any, seen: Any, y: Any) -> Step:
    """A step whose logits are given."""
    clean, seen = torch.tensor(clean), torch.tensor(seen)
    x, other = torch.zeros(len(clean), 1), torch.ones(len(clean), 1)
    return taken(lambda at: clean if at is x else seen, x, torch.tensor(y), other)


def batch(rows: int = 7, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    x = torch.rand(rows, 3, 2, 2, generator=draws)
    crafted = (x + 0.1 * torch.randn(x.shape, generator=draws)).clamp(0, 1)
    return x, torch.randint(classes, (rows,), generator=draws), crafted


def read(text: str) -> Objective:
    made: Objective = LANGUAGE.read(text)
    return made


def probabilities(model: nn.Module, x: Tensor) -> list[list[float]]:
    answer: list[list[float]] = model(x).detach().double().softmax(1).tolist()
    return answer


def test_the_papers_vectors() -> None:
    step = answered([[2.0, 0.0, -1.0]], [[0.5, 1.0, -1.0]], [0])
    assert float(read("trades(beta=0)")(step)) == pytest.approx(0.169846, abs=1e-6)
    assert float(read("trades")(step)) == pytest.approx(3.389493, abs=1e-5)
    assert float(read("mart(weight=0)")(step)) == pytest.approx(1.908266, abs=1e-6)
    assert float(read("mart")(step)) == pytest.approx(2.327371, abs=1e-5)


def test_the_vector_of_adp() -> None:
    rows = torch.tensor([[0.7, 0.2, 0.1, 1e-30], [0.6, 0.1, 0.2, 0.1], [0.5, 0.1, 0.1, 0.3]])
    logits = rows.log()[:, None]
    step = taken(lambda x: logits[0], torch.zeros(1, 1), torch.tensor([0]), each=lambda x: logits)
    assert float(read("diversity(alpha=0, beta=0)")(step)) == pytest.approx(1.560648, abs=1e-5)
    assert float(read("diversity(alpha=1, beta=0)")(step)) == pytest.approx(
        1.560648 - 1.112457, abs=1e-5
    )
    assert float(read("diversity(alpha=0, beta=1)")(step)) == pytest.approx(
        1.560648 - math.log(0.193939), abs=2e-5
    )
    assert float(read("diversity")(step)) == pytest.approx(0.155835, abs=1e-5)


def test_cross_entropy_mixes_by_its_weight() -> None:
    model, (x, y, crafted) = net(), batch()
    clean, seen = (
        -sum(math.log(p[int(k)]) for p, k in zip(probabilities(model, at), y, strict=True)) / 7
        for at in (x, crafted)
    )
    for weight in (0.0, 0.3, 1.0):
        loss = float(read(f"cross_entropy(clean={weight})")(taken(model, x, y, crafted)))
        assert loss == pytest.approx((1 - weight) * seen + weight * clean, abs=1e-5)
    # Nothing is crafted: one pass, and the weights change nothing, to the last bit.
    asked: list[Tensor] = []

    def once(at: Tensor) -> Tensor:
        asked.append(at)
        answer: Tensor = model(at)
        return answer

    natural = read("cross_entropy")(taken(model, x, y))
    assert torch.equal(read("cross_entropy(clean=0.4)")(taken(once, x, y)), natural)
    assert len(asked) == 1


def test_trades_and_mart_by_hand() -> None:
    model, (x, y, crafted) = net(), batch()
    clean, seen = probabilities(model, x), probabilities(model, crafted)
    trades = mart = 0.0
    for p, q, k in zip(clean, seen, y.tolist(), strict=True):
        apart = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        trades += -math.log(p[k]) + 4.0 * apart
        rival = max(b for place, b in enumerate(q) if place != k)
        mart += -math.log(q[k]) - math.log(1.0001 - rival) + 3.0 * apart * (1 - p[k])
    step = taken(model, x, y, crafted)
    assert float(read("trades(beta=4)")(step)) == pytest.approx(trades / 7, abs=1e-5)
    assert float(read("mart(weight=3)")(step)) == pytest.approx(mart / 7, abs=1e-5)


@pytest.mark.parametrize("text", ["trades", "mart", "pairing", "cross_entropy(clean=0.3)"])
def test_gradients_pass_through_the_clean_and_the_crafted_answer(text: str) -> None:
    """Against finite differences, which a detached part would not agree with."""
    x, y, _ = batch()
    other = torch.rand_like(x)
    draws = torch.Generator().manual_seed(3)
    logits = [torch.randn(7, 5, generator=draws, dtype=torch.float64) for _ in range(2)]

    def loss(clean: Tensor, seen: Tensor) -> Tensor:
        return read(text)(taken(lambda at: clean if at is x else seen, x, y, other))

    assert torch.autograd.gradcheck(loss, tuple(z.requires_grad_(True) for z in logits))


def test_pairing_is_a_mean_over_the_batch_of_logits() -> None:
    model, (x, y, crafted) = net(), batch()
    step = taken(model, x, y, crafted)
    z, w = model(x).tolist(), model(crafted).tolist()
    apart = (
        sum(sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for p, q in zip(z, w, strict=True))
        / 7
    )
    usual = float(read("pairing(weight=0)")(step))
    half = float(read("cross_entropy(clean=0.5)")(step))
    assert usual == pytest.approx(half, abs=1e-6)
    assert float(read("pairing(weight=0.7)")(step)) == pytest.approx(usual + 0.7 * apart, abs=1e-5)
    # Twice the same batch is no other loss.
    twice = taken(model, x.repeat(2, 1, 1, 1), y.repeat(2), crafted.repeat(2, 1, 1, 1))
    assert float(read("pairing")(twice)) == pytest.approx(float(read("pairing")(step)), abs=1e-5)


def test_the_gradient_penalty_is_of_each_images_own_loss() -> None:
    model, (x, y, _) = net(), batch()
    usual = float(functional.cross_entropy(model(x), y))
    squares = 0.0
    for image, label in zip(x, y, strict=True):
        point = image[None].clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(point), label[None]), point)
        squares += float(slope.square().sum())

    def loss(text: str) -> Tensor:
        return read(text)(taken(model, x, y, x.clone().requires_grad_(True)))

    assert float(loss("gradient_penalty(weight=2)")) == pytest.approx(
        usual + 2 * squares / 7, abs=1e-5
    )
    assert float(loss("gradient_penalty(weight=2, per_example=False)")) == pytest.approx(
        usual + 2 * squares / 49, abs=1e-5
    )
    # Without a second derivative the penalty would not move the weights.
    slopes = [
        torch.autograd.grad(loss(f"gradient_penalty(weight={w})"), next(model.parameters()))[0]
        for w in (0, 5)
    ]
    assert float((slopes[0] - slopes[1]).abs().max()) > 1e-3


def test_distillation_divides_both_by_the_temperature() -> None:
    model, teacher, (x, y, _) = net(0), net(1), batch()
    for heat in (1.0, 20.0):
        soft = (teacher(x) / heat).softmax(1).tolist()
        logs = (model(x) / heat).log_softmax(1).tolist()
        wanted = (
            -sum(
                sum(p * q for p, q in zip(*ab, strict=True)) for ab in zip(soft, logs, strict=True)
            )
            / 7
        )
        loss = read(f"distil(temperature={heat})")(taken(model, x, y, teacher=teacher))
        assert float(loss) == pytest.approx(wanted, abs=1e-5)
    hot = read("cross_entropy(temperature=20)")(taken(model, x, y))
    assert float(hot) == pytest.approx(float(functional.cross_entropy(model(x) / 20, y)), abs=1e-6)


def test_diversity_rewards_members_that_differ_and_trains_each() -> None:
    y = torch.tensor([0, 1])
    same = torch.randn(1, 2, 6).expand(3, -1, -1)
    others = torch.randn(3, 2, 6)

    def loss(text: str, logits: Tensor) -> Tensor:
        step = taken(lambda x: logits[0], torch.zeros(2, 1), y, each=lambda x: logits)
        return read(text)(step)

    assert math.isfinite(float(loss("diversity", same)))
    spread = [
        float(loss("diversity(alpha=0)", z) - loss("diversity(alpha=0, beta=0)", z))
        for z in (same, others)
    ]
    assert spread[0] > 5 > spread[1]
    # Members are summed, not averaged, and have gradients of their own.
    logits = others.clone().requires_grad_(True)
    summed = loss("diversity(alpha=0, beta=0)", logits)
    each = sum(functional.cross_entropy(z, y) for z in others)
    assert float(summed) == pytest.approx(float(each), abs=1e-5)
    (slope,) = torch.autograd.grad(summed, logits)
    for place in range(3):
        own = others[place].clone().requires_grad_(True)
        (alone,) = torch.autograd.grad(functional.cross_entropy(own, y), own)
        assert torch.allclose(slope[place], alone, atol=1e-6)
    # Members that answer in bfloat16 are compared in float32.
    low = others.bfloat16()
    assert torch.equal(loss("diversity", low), loss("diversity", low.float()))


@pytest.mark.parametrize("lead", [0.0, 40.0, 300.0])
def test_diversity_of_confident_members_is_that_of_the_paper(lead: float) -> None:
    """The probabilities of other classes have length one, however small: from float64."""
    draws = torch.Generator().manual_seed(5)
    y = torch.arange(6) % 5
    logits = torch.randn(3, 6, 5, generator=draws)
    logits[:, range(6), y] += lead
    logits.requires_grad_(True)

    def loss(text: str) -> Tensor:
        step = taken(lambda x: logits[0], torch.zeros(6, 1), y, each=lambda x: logits)
        return read(text)(step)

    (slope,) = torch.autograd.grad(loss("diversity(alpha=2, beta=0.5)"), logits)
    assert bool(torch.isfinite(slope).all())
    likely = logits.detach().double().softmax(2)
    wanted = 0.0
    for row, label in enumerate(y.tolist()):
        rest = likely[:, row, [k for k in range(5) if k != label]]
        rest = rest / rest.norm(dim=1, keepdim=True)
        wanted -= float(torch.logdet(rest @ rest.T + 1e-6 * torch.eye(3))) / 6
    found = float(loss("diversity(alpha=0, beta=1)") - loss("diversity(alpha=0, beta=0)"))
    assert found == pytest.approx(wanted, rel=1e-3)


def test_gradients_of_diversity_pass_through_every_term() -> None:
    """Against the formula of the paper in float64, from probabilities."""
    y = torch.arange(6) % 5
    logits = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(5)).requires_grad_(True)

    def slope(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits)[0]

    def plain(alpha: float, beta: float) -> Tensor:
        likely = logits.double().softmax(2)
        loss = -likely[:, range(6), y].log().sum(0).mean()
        mean = likely.mean(0)
        loss = loss + alpha * (mean * mean.log()).sum(1).mean()
        for row, label in enumerate(y.tolist()):
            rest = likely[:, row, [k for k in range(5) if k != label]]
            rest = rest / rest.norm(dim=1, keepdim=True)
            loss = loss - beta / 6 * torch.logdet(rest @ rest.T + 1e-6 * torch.eye(3))
        return loss

    for alpha, beta in ((0.0, 0.0), (2.0, 0.0), (0.0, 0.5), (2.0, 0.5)):
        step = taken(lambda x: logits[0], torch.zeros(6, 1), y, each=lambda x: logits)
        found = slope(read(f"diversity(alpha={alpha}, beta={beta})")(step))
        assert torch.allclose(found, slope(plain(alpha, beta)), rtol=1e-3, atol=1e-5)


def test_the_accuracy_of_members_is_that_of_their_mean_probability() -> None:
    logits = torch.tensor([[[5.0, 0.0]], [[0.0, 2.0]], [[0.0, 2.0]]])  # means .37, .63
    step = taken(lambda x: logits[0], torch.zeros(1, 1), torch.tensor([1]), each=lambda x: logits)
    read("cross_entropy")(step)
    assert int(step.correct()) == 0, "that of the answer itself"
    assert step.members.shape == (3, 1, 2) and int(step.correct()) == 1


def test_the_simplex_has_the_inner_products_of_the_published_centres() -> None:
    for classes in (2, 3, 10):
        centres = torch.zeros(classes, classes - 1, dtype=torch.float64)
        centres[0, 0] = 1  # the recursion of Pang et al. 2020
        for i in range(1, classes):
            for j in range(min(i, classes - 1)):
                dot = float(centres[i] @ centres[j])
                centres[i, j] = -(1 / (classes - 1) + dot) / centres[j, j]
            if i < classes - 1:
                centres[i, i] = math.sqrt(1 - float(centres[i] @ centres[i]))
        made = simplex(classes).double()
        assert torch.allclose(made @ made.T, centres @ centres.T, atol=1e-6)


def test_centres_pull_each_output_to_that_of_its_class() -> None:
    model, (x, y, _) = net(), batch()
    total = 0.0
    for row, label in zip(model(x).tolist(), y.tolist(), strict=True):
        for k, value in enumerate(row):
            total += (value - 4 * math.sqrt(5 / 4) * ((k == label) - 1 / 5)) ** 2
    loss = read("centres(scale=4)")(taken(model, x, y))
    assert float(loss) == pytest.approx(total / 14, abs=1e-4)
    perfect = 4 * simplex(5)[y]
    assert float(read("centres(scale=4)")(taken(lambda at: perfect, x, y))) == 0


def test_reach_of_a_linear_network_is_the_distance_to_its_boundary() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x = torch.rand(9, 3, 2, 2, dtype=torch.float64)
    y = linear(x).argmax(1)
    y[0] = (y[0] + 1) % 5
    reach, right = relative_reach(linear, x, y, 5)
    assert right.tolist() == [False, *[True] * 8]
    weight, logits = next(linear.parameters()).detach(), linear(x).detach()
    for row in range(9):
        top = int(logits[row].argmax())
        nearest = min(
            float((logits[row, top] - logits[row, k]) / (weight[top] - weight[k]).norm())
            for k in range(5)
            if k != top
        )
        assert float(reach[row]) == pytest.approx(1.02 * nearest / float(x[row].norm()), rel=1e-6)


def test_reach_trains_for_distance_and_pulls_errors_back() -> None:
    model, (x, y, _) = net().double(), batch()
    x, y = x.double(), model(x.double()).argmax(1)
    y[:2] = (y[:2] + 1) % 5
    before, right = relative_reach(model, x, y, 5)
    assert right.tolist() == [False] * 2 + [True] * 5
    objective = read("reach(weight=15, right=25, wrong=5)")
    reward = torch.where(right, torch.exp(-25 * before), torch.exp(5 * before)).mean()
    loss = objective(taken(model, x, y))
    usual = functional.cross_entropy(model(x), y)
    assert float(loss) == pytest.approx(float(usual + 15 * reward), rel=1e-6)
    slopes = torch.autograd.grad(loss - usual, list(model.parameters()), materialize_grads=True)
    assert all(bool(torch.isfinite(s).all()) for s in slopes)
    with torch.no_grad():
        for p, s in zip(model.parameters(), slopes, strict=True):
            p.sub_(1e-4 * s)
    after, _ = relative_reach(model, x, y, 5)
    gain = torch.where(right, torch.exp(-25 * after), torch.exp(5 * after)).mean()
    assert float(gain) < float(reward), "a step down its gradient lowers it: it is not detached"


def test_rows_that_one_step_does_not_take_out_of_their_class_go_on() -> None:
    """Their later steps count, and gradients pass through all of them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5)).double()
        x = torch.rand(40, 6, dtype=torch.float64)
    with torch.no_grad():
        next(model.parameters()).mul_(6)
    y = model(x).argmax(1)
    once, more = (relative_reach(model, x, y, steps)[0] for steps in (1, 8))
    going = once != more
    assert 5 < int(going.sum()) < 35 and bool((more[going] > 0).all())
    weight = next(model.parameters())
    (slope,) = torch.autograd.grad(relative_reach(model, x[going], y[going], 8)[0].sum(), weight)
    way = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=weight.dtype)
    ends = []
    for side in (1e-7, -2e-7):
        with torch.no_grad():
            weight.add_(side * way)
        ends.append(float(relative_reach(model, x[going], y[going], 8)[0].sum()))
    assert (ends[0] - ends[1]) / 2e-7 == pytest.approx(float((slope * way).sum()), rel=1e-3)


def test_gradients_of_reach_are_those_of_differences() -> None:
    """Through every step of DeepFool, whose slopes depend on the weights too."""
    model, (x, y, _) = net().double(), batch()
    x, weight = x.double(), next(model.parameters())

    def reach() -> Tensor:
        return relative_reach(model, x, y, 4)[0].sum()

    (slope,) = torch.autograd.grad(reach(), weight)
    draws = torch.Generator().manual_seed(2)
    for _ in range(3):
        way = torch.randn(weight.shape, generator=draws, dtype=torch.float64)
        ends = []
        for side in (1e-6, -1e-6):
            with torch.no_grad():
                weight.add_(side * way)
            ends.append(float(reach()))
            with torch.no_grad():
                weight.sub_(side * way)
        wanted = (ends[0] - ends[1]) / 2e-6
        assert float((slope * way).sum()) == pytest.approx(wanted, rel=1e-3)


def test_reach_of_a_black_image_does_not_spoil_the_gradient() -> None:
    """Its relative distance is enormous: only the branch of correct images may be computed."""
    model, (x, _, _) = net(), batch()
    x = torch.cat([torch.zeros_like(x[:1]), x[1:]])
    loss = read("reach")(taken(model, x, model(x).argmax(1)))
    slopes = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    assert all(bool(torch.isfinite(s).all()) for s in slopes)


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_texts_read_back(name: str) -> None:
    plain = read(name)
    assert read(str(plain)) == plain
    changed = {"trades": "trades(beta=2)", "distil": "distil(teacher='zoo:digits-natural')"}
    other = read(changed.get(name, name))
    assert read(str(other)) == other


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trade", "did you mean 'trades'"),
        ("trades(beta=-1)", "from 0"),
        ("cross_entropy(clean=2)", "from 0 to 1"),
        ("reach(steps=0)", "whole number"),
        ("mart(wieght=3)", "did you mean 'weight'"),
        ("gradient_penalty(per_example=3)", "bool"),
    ],
)
def test_what_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(BesiegeError, match=said):
        read(text)


def test_diversity_refuses_models_it_cannot_train() -> None:
    with pytest.raises(InputError, match="members=9"):
        read("diversity").check(10, 10)
    read("diversity").check(10, 9)
