"""Published forms of minimum-norm attacks against foolbox, adv-lib, pyautoattack and a few lines.

Some end at the boundary itself, or take steps that are nearly signs: there rounding decides, and
both sides run in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from benchmarks.autoattack.reference import Plain
from benchmarks.peers import stand_in_for_adv_lib
from tests.peers.agreement import Case, agree
from tests.victims import siege
from torch import Tensor

from besiege.attacks import planes
from besiege.attacks.attack import parse
from besiege.core import oracle, record
from besiege.core.ball import distances
from besiege.core.dice import Dice
from besiege.core.threat import Norm, Threat
from besiege.models import Classifier

pytestmark = [
    pytest.mark.peer,
    # Their own calls into torch and numpy warn; that is not ours to fail on.
    pytest.mark.filterwarnings("ignore"),
]

Run = Callable[[Case], Tensor]
P = {"l2": 2, "linf": float("inf"), "l1": 1, "l0": 0}
NAMES = {"l2": "L2", "linf": "Linf", "l1": "L1"}


class Precise(Classifier):
    """A network whose logits are not rounded to float32."""

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        """Images to float64 logits."""
        answer = self._answer(self._prepared(x))
        assert isinstance(answer, Tensor)
        return answer


@dataclass(frozen=True)
class PreciseCase(Case):
    """A case in float64."""

    def attack(self, attack: str, threat: str, **given: Any) -> Any:
        """Our record of a search without a budget."""
        norm = Threat.parse(threat).norm
        terms: dict[str, Any] = {"keep": "smallest", "leave": "end", "survey": True}
        laid = siege(self.victim, self.images, self.labels, torch.inf, norm, **terms)
        parse(attack).run(laid)
        return laid.record


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Run], Run]]:
    """Runs either side in float64: casts to float32 do nothing, and rounding is float64's."""

    def full(*given: Any, made: Any = torch.full, **named: Any) -> Tensor:
        if named.get("dtype") is torch.float32:
            named["dtype"] = torch.float64
        filled: Tensor = made(*given, **named)
        return filled

    @contextmanager
    def precise() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(oracle, "to_float32", lambda logits: logits)
            for module in (record, planes):
                patch.setattr(module, "ROUNDING", 64 * torch.finfo(torch.float64).eps)
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "full", full)
            torch.set_default_dtype(torch.float64)
            try:
                yield
            finally:
                torch.set_default_dtype(torch.float32)

    def wrap(run: Run) -> Run:
        def both(case: Case) -> Tensor:
            with precise():
                victim = copy.deepcopy(case.victim)
                victim.module.double()
                victim.__class__ = Precise
                return run(PreciseCase(victim, case.images.double(), case.labels))

        return both

    yield wrap


def ours(attack: str, threat: str) -> Run:
    return lambda case: case.attack(attack, threat).images


def adv_lib(name: str, **given: Any) -> Run:
    pytest.importorskip("adv_lib", reason="adv-lib is not installed: benchmarks/peers.txt")
    stand_in_for_adv_lib()
    attack = getattr(import_module("adv_lib.attacks"), name)
    return lambda case: attack(case.victim, case.images, case.labels, **given)


def foolbox(name: str, **given: Any) -> Run:
    library = pytest.importorskip(
        "foolbox", reason="foolbox is not installed: benchmarks/peers.txt"
    )

    def run(case: Case) -> Tensor:
        model = library.PyTorchModel(Plain(case.victim).eval(), bounds=(0, 1))
        attack = getattr(library.attacks, name)(**given)
        images: Tensor = attack(model, case.images, case.labels, epsilons=None)[0]
        return images

    return run


def fab(norm: str, targets: int, eps: float = 1e6) -> Any:
    """Their attack, untargeted without targets."""
    code = pytest.importorskip("pyautoattack.fab_pt", reason="pyautoattack is not installed")
    return lambda case: code.FABAttack_PT(
        case.victim, norm=NAMES[norm], n_iter=100, eps=eps, targeted=targets > 0, device="cpu"
    )


def nearest_fab(norm: str, targets: int) -> Run:
    """The nearest of their points over the targets."""

    def run(case: Case) -> Tensor:
        attack, kind = fab(norm, targets)(case), Threat.parse(norm).norm
        best = case.images.clone()
        far = torch.full((len(best),), torch.inf, dtype=torch.float64)
        for place in range(2, max(targets, 1) + 2):
            attack.target_class = place
            found = attack.attack_single_run(case.images, case.labels, is_targeted=targets > 0)
            size = _size(case, found, kind)
            best[size < far] = found[size < far]
            far = torch.minimum(far, size)
        return best

    return run


def _size(case: Case, images: Tensor, norm: Norm) -> Tensor:
    """The distances of images that are misclassified, infinite for others."""
    wrong = case.victim(images).argmax(1) != case.labels
    return torch.where(wrong, distances(images - case.images, norm), torch.inf)


@pytest.mark.parametrize(
    ("preset", "norm", "steps"),
    [
        ("moosavi", "l2", 50),
        ("moosavi", "linf", 50),
        ("realsafe", "linf", 100),
        ("realsafe", "l2", 100),
        ("deepsec", "l2", 50),
    ],
)
def test_deepfool(preset: str, norm: str, steps: int) -> None:
    name = f"deepfool@{preset}"
    peer = foolbox(f"{'L2' if norm == 'l2' else 'Linf'}DeepFoolAttack", steps=steps, candidates=10)
    agree(name, "foolbox", ours(name, norm), peer, about=norm)


def test_superdeepfool(float64: Callable[[Run], Run]) -> None:
    name = "superdeepfool@abdollahpour"
    peer = adv_lib("sdf", steps=100, df_steps=100, overshoot=0.02, search_iter=10)
    agree(name, "adv_lib", ours(name, "l2"), peer)
    agree(name, "adv_lib", float64(ours(name, "l2")), float64(peer), about="in float64")


def test_ddn() -> None:
    name = "ddn@rony"
    agree(name, "adv_lib", ours(name, "l2"), adv_lib("ddn", steps=100, levels=None))
    agree(name, "foolbox", ours(name, "l2"), foolbox("DDNAttack", steps=100))


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_fmn(norm: str, float64: Callable[[Run], Run]) -> None:
    name, peer = "fmn@pintor", adv_lib("fmn", norm=P[norm], steps=100)
    mine = float64(ours(name, norm))
    agree(name, "adv_lib", mine, float64(peer), about=f"{norm}, in float64")


def test_fmn_in_l0() -> None:
    name = "fmn@pintor"
    agree(name, "adv_lib", ours(name, "l0"), adv_lib("fmn", norm=0, steps=100), about="l0")


def _fmn_in_l2(case: Case, steps: int = 100) -> Tensor:
    """FMN in l2 from the paper: the libraries' versions do not project onto the ball."""
    x0, y, found = case.images, case.labels, case.images.clone()
    for i in range(len(x0)):
        x, label = x0[i : i + 1], int(y[i])
        far, once, eps = torch.inf, False, torch.inf
        change = torch.zeros_like(x)
        reach = float(torch.maximum(x, 1 - x).norm())
        for k in range(steps):
            wave = (1 + float(torch.tensor(torch.pi * k / steps).cos())) / 2
            alpha, gamma = 0.01 + 0.99 * wave, 0.001 + 0.049 * wave
            at = (x + change).requires_grad_()
            logits = case.victim(at)[0]
            others = torch.cat((logits[:label], logits[label + 1 :]))
            lead = others.max() - logits[label]
            slope = torch.autograd.grad(lead, at)[0]
            size = float(change.norm())
            if int(logits.argmax()) != label:
                once = True
                if size < far:
                    far, found[i] = size, at.detach()[0]
                eps = min(eps * (1 - gamma), far)
            elif once:
                eps = eps * (1 + gamma)
            else:
                eps = size + float(lead.abs() / slope.norm())
            eps = min(eps, reach)
            change = change + alpha * slope / slope.norm()
            change = change * min(1.0, eps / float(change.norm()))
            change = (x + change).clamp(0, 1) - x
    return found


def test_fmn_in_l2(float64: Callable[[Run], Run]) -> None:
    name, about = "fmn@pintor", "l2, in float64"
    agree(name, "independent", float64(ours(name, "l2")), float64(_fmn_in_l2), about=about)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ["fab@croce", "fabt@croce"])
def test_fab(name: str, norm: str, float64: Callable[[Run], Run]) -> None:
    peer = nearest_fab(norm, 9 if name == "fabt@croce" else 0)
    mine = float64(ours(name, norm))
    agree(name, "pyautoattack", mine, float64(peer), about=f"{norm}, in float64")


def test_fabt_in_float32() -> None:
    name = "fabt@croce"
    agree(name, "pyautoattack", ours(name, "linf"), nearest_fab("linf", 9), about="linf")


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.13), ("l2", 0.55)])
def test_fabt_breaks_the_same_images(norm: str, eps: float) -> None:
    name = "fabt@croce"

    def broken(case: Case) -> Tensor:
        return case.attack(name, f"{norm}:{eps}").success

    def theirs(case: Case) -> Tensor:
        images = fab(norm, 9, eps)(case).perturb(case.images, case.labels)
        return _size(case, images, Threat.parse(norm).norm) <= eps

    about = f"broken at half of the distances, {norm}"
    agree(name, "pyautoattack", broken, theirs, about=about)


@pytest.mark.parametrize(
    ("form", "steps", "decay", "first"),
    [
        ("l2", 20, 0.5, 0.1),
        ("l1", 30, 0.5, 0.5),
        ("l2-1000", 100, 0.9, 0.1),
        ("l1-1000", 100, 0.9, 0.5),
    ],
)
def test_alma(
    form: str, steps: int, decay: float, first: float, float64: Callable[[Run], Run]
) -> None:
    name, norm = f"alma@rony-{form}", form[:2]
    given = {"num_steps": steps, "distance": norm, "α": decay, "init_lr_distance": first}
    # The form fixes its steps, since other numbers have another decay; the first ones are compared.
    few: Any = replace(parse(name), steps=steps)  # type: ignore[type-var]
    mine, peer = ours(few, norm), adv_lib("alma", **given)
    about = f"{steps} steps, in float64"
    agree(name, "adv_lib", float64(mine), float64(peer), about=about)


def test_sigma_zero(float64: Callable[[Run], Run]) -> None:
    name, peer = "sigmazero@cina", adv_lib("sigma_zero", num_steps=100)
    mine = ours(f"{name}(steps=100)", "l0")
    agree(name, "adv_lib", float64(mine), float64(peer), about="100 steps, in float64")

    def counted(run: Run) -> Run:
        return lambda case: (run(case) != case.images).flatten(1).sum(1)

    about = "number of pixel values, 100 steps"
    agree(name, "adv_lib", counted(mine), counted(peer), about=about)


def second(case: Case) -> Tensor:
    """The runner-up of every clean image: a target that is often within reach."""
    return case.victim(case.images).detach().topk(2, dim=1).indices[:, 1]


def jsma(gamma: float, rounded: Callable[[float], int] = int, full: float = 1.0) -> Run:
    """JSMA with the map of all pairs, written out; pixel values from `full` on do not move."""

    def run(case: Case) -> Tensor:
        images = []
        for clean, target in zip(case.images, second(case).tolist(), strict=True):
            x = clean.flatten().clone()
            found, many = False, rounded(gamma * len(x) / 2)
            for _ in range(many + 1):
                at = x.view(1, *clean.shape).requires_grad_()
                logits = case.victim(at)[0]
                found = int(logits.argmax()) == target
                rest = logits.sum() - logits[target]
                up = torch.autograd.grad(logits[target], at, retain_graph=True)[0].flatten()
                down = torch.autograd.grad(rest, at)[0].flatten()
                both, others = up[:, None] + up, down[:, None] + down
                free = x.detach() < full
                good = (both > 0) & (others < 0) & free[:, None] & free
                good.fill_diagonal_(False)
                if found or not good.any():
                    break
                score = torch.where(good, -both * others, -torch.inf)
                pair = [int(score.argmax()) // len(x), int(score.argmax()) % len(x)]
                x = x.detach().clone()
                x[pair] = 1.0
            images.append(x.detach().view_as(clean) if found else clean)
        return torch.stack(images)

    return run


@pytest.mark.parametrize(
    ("name", "gamma", "rounded"), [("jsma@papernot", 0.145, int), ("jsma@deepsec", 0.1, math.ceil)]
)
def test_jsma(name: str, gamma: float, rounded: Callable[[float], int]) -> None:
    def mine(case: Case) -> Tensor:
        found = case.attack(name, "l0", targets=second(case))
        assert found.success.sum() >= 12
        return found.images

    agree(
        name, "independent", mine, jsma(gamma, rounded), about="towards the likeliest wrong class"
    )
