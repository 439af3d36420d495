"""What the stated differences between presets and their sources cost.

Every line compares a preset with a variant that does as its source, on 24 digits of a natural and
of a PGD-trained network that each classifies correctly, on one thread:

    PYTHONPATH=src:. python -m benchmarks.differences [NAME ...]

Presets of thousands of steps are cut as in `tests/peers`, which has the implementations.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from scipy.optimize import minimize
from tests.peers import test_first_order_presets as first_order
from tests.peers import test_minimum_norm_presets as minimum_norm
from tests.peers import test_score_presets as score
from tests.peers import test_weighted_presets as weighted
from tests.peers.agreement import Case, cases
from torch import Tensor
from torch.nn import functional

import besiege
from besiege.attacks.attack import parse
from besiege.attacks.universal import fit_universal, fooling
from besiege.core.ball import distances
from besiege.core.threat import Norm

Images = Callable[[Case], Tensor]


def wrong(case: Case, images: Tensor, classes: Tensor | None = None) -> Tensor:
    """Which images reach their goal once clipped to the box: any other class, or given ones."""
    found = case.victim(images.clamp(0, 1).to(case.images)).argmax(1)
    return found != case.labels if classes is None else found == classes


def shown(
    name: str, ours: Images, theirs: Images, norm: str = "l2", targeted: bool = False
) -> None:
    """Successes, and mean distances over the images on which both succeed, by network."""
    for case in cases():
        classes = weighted.goals(case, True)[2] if targeted else None
        with case.victim.held():
            points = [run(case).detach() for run in (ours, theirs)]
            good = [wrong(case, one, classes) for one in points]
        far = [distances(one.to(case.images) - case.images, Norm(norm)) for one in points]
        both = good[0] & good[1] & (far[0] > 0) & (far[1] > 0)
        means = [float(one[both].mean()) for one in far]
        print(
            f"{name}: {int(good[0].sum())} instead of {int(good[1].sum())} of {len(both)}; mean "
            f"{means[0]:.4f} instead of {means[1]:.4f} ({100 * (means[0] / means[1] - 1):+.2f} %)",
            flush=True,
        )


# Weight searches.


class Together(weighted.Search):
    """As its authors abort: on the sum over the batch."""

    def stalls(self, loss: Tensor) -> bool:
        over = bool(loss.detach().sum() > 0.9999 * self.before.sum())
        self.live, self.before = self.live & (not over), loss.detach()
        return over


class Shared(weighted.Search):
    """As DEEPSEC searches: a success stays, and a bisected weight is that of the whole batch."""

    def __init__(self, case: Case, first: float) -> None:
        super().__init__(case, first)
        self.ever = torch.zeros_like(self.c, dtype=torch.bool)

    def end(self) -> None:
        self.ever |= self.won
        for row, won in enumerate(self.ever.tolist()):
            if won:
                self.high[row] = min(self.high[row], self.c[row])
            else:
                self.low[row] = max(self.low[row], self.c[row])
            if self.high[row] < 1e9:
                self.c[:] = (self.low[row] + self.high[row]) / 2
            elif not won:
                self.c[row] *= 10


class Nearer(weighted.Search):
    """As RealSafe's code: a weight suffices if its point is at least as near as the best."""

    def note(self, x: Tensor, good: Tensor, size: Tensor) -> None:
        super().note(x, good & (size <= self.best), size)


def searching(search: type[weighted.Search], run: Images) -> Images:
    """A run with another search over the weight."""

    def changed(case: Case) -> Tensor:
        with patch.object(weighted, "Search", search):
            return run(case)

    return changed


def aborts() -> None:
    for name, steps in (("carlini", 80), ("su", 200)):
        text, constants = f"cw@{name}(steps={steps})", weighted.CW[name]
        run = partial(weighted.carlini, a=constants, steps=steps)
        shown(f"{text}: abort", partial(weighted.ours, text=text), searching(Together, run))
    for name in ("chen-en", "chen-l1"):
        text, constants = f"ead@{name}(steps=60)", weighted.EAD[name]
        norm = "l1" if name == "chen-l1" else "l2"
        mine = partial(weighted.ours, text=text, norm=norm)
        shrunk = partial(weighted.elastic, a=constants, steps=60, targeted=False)
        shown(f"{text}: abort", mine, searching(Together, shrunk), norm)
        shown(f"{text}: extrapolation", mine, partial(shrunk, ahead=1), norm)


def batches() -> None:
    for name, factor in (("deepsec", 1.0), ("deepsec-20", 8.0)):
        text, constants = f"cw@{name}(steps=60)", weighted.CW[name]

        def like(case: Case, factor: float = factor) -> Case:
            return weighted.precise(case, factor)

        def run(case: Case, a: Any = constants, like: Any = like) -> Tensor:
            return weighted.carlini(like(case), a, 60, True)

        def mine(case: Case, text: str = text, like: Any = like) -> Tensor:
            return weighted.ours(like(case), text, True)

        shown(f"{text}: batch", mine, searching(Shared, run), targeted=True)
    for name, norm in (("deepsec-en", "l2"), ("deepsec-l1", "l1")):
        text, constants = f"ead@{name}(steps=60)", weighted.EAD[name]
        run = partial(weighted.elastic, a=constants, steps=60, targeted=True)
        mine = partial(weighted.ours, text=text, targeted=True, norm=norm)
        shown(f"{text}: batch", mine, searching(Shared, run), norm, targeted=True)


def optmargin() -> None:
    for name in weighted.OPTMARGIN:
        _, size, a = weighted.OPTMARGIN[name]
        a = replace(a, rounds=4)

        def moves(case: Case, size: float = size, rms: bool = name == "he") -> Tensor:
            draw, many = torch.Generator().manual_seed(0), case.images[0].numel()
            found = torch.zeros(20, len(case.images), many)
            for row in range(len(case.images)):
                span = torch.linalg.qr(torch.randn(many, 19, generator=draw)).Q.T
                found[:19, row] = span * size * (math.sqrt(many) if rms else 1 / span.abs().max())
            return found.view(20, *case.images.shape)

        def run(case: Case, boxed: bool = True, a: Any = a, m: Any = moves) -> Tensor:
            return weighted.carlini(case, a, 60, moves=m(case), boxed=boxed)

        other = partial(run, boxed=False) if name == "he" else searching(Shared, run)
        shown(f"optmargin@{name}: {'copies' if name == 'he' else 'batch'}", run, other)


def realsafe() -> None:
    a = weighted.CW["realsafe-code"]

    def run(case: Case) -> Tensor:
        return weighted.carlini(case, a, 100)

    shown("cw@realsafe-code: sufficient", run, searching(Nearer, run))


# DeepFool, SuperDeepFool, JSMA.


def deepfool(
    case: Case, *, clip: bool = True, more: bool = False, norm: str = "l2", root: bool = False
) -> Tensor:
    """DeepFool, a step beyond the crossing perhaps; linf steps divided by the l2 norm perhaps."""
    images = []
    for x0, label in zip(case.images, case.labels.tolist(), strict=True):
        moved, at = torch.zeros_like(x0[None]), x0[None]
        stays = before = True
        count = 0
        while (before if more else stays) and count < 100:
            far, w = _onward(case, at, label, norm, root)
            way = w / w.norm() if norm == "l2" else w.sign()
            moved, count = moved + (far + 1e-4) * way, count + 1
            at = (x0 + 1.02 * moved).detach()
            at = at.clamp(0, 1) if clip else at
            before, stays = stays, int(case.victim(at).argmax()) == label
        images.append(at)
    return torch.cat(images)


def _onward(case: Case, at: Tensor, label: int, norm: str, root: bool) -> tuple[float, Tensor]:
    if norm == "l2":
        return first_order.onward(case, at, label)
    at = at.detach().requires_grad_()
    z = case.victim(at)[0]
    slopes = [torch.autograd.grad(one, at, retain_graph=True)[0] for one in z]
    order = 2 if root else 1
    steps = []
    for k, slope in enumerate(slopes):
        if k != label:
            w = slope - slopes[label]
            steps.append((float((z[k] - z[label]).detach().abs() / w.norm(p=order)), w))
    return min(steps, key=lambda pair: pair[0])


def deepfools() -> None:
    for norm in ("l2", "linf"):
        text = {"l2": "deepfool@deepsec", "linf": "deepfool@realsafe"}[norm]
        mine = partial(deepfool, norm=norm)
        given: dict[str, Any] = {"more": True} if norm == "l2" else {"root": True}
        shown(text, mine, partial(deepfool, norm=norm, **given), norm)


def superdeepfool(case: Case, *, clip: bool = True, formula: bool = False) -> Tensor:
    """DeepFool, then a step along the normal: added to the last point, or from the clean image."""
    images = []
    for row, label in enumerate(case.labels.tolist()):
        x0 = case.images[row : row + 1]
        at = x0
        for _ in range(100):
            if int(case.victim(at).argmax()) != label:
                break
            one = replace(case, images=at, labels=case.labels[row : row + 1])
            end = deepfool(one, clip=clip).requires_grad_()
            z = case.victim(end)[0]
            other = int(z.scatter(0, torch.tensor(label), -torch.inf).argmax())
            (w,) = torch.autograd.grad(z[other] - z[label], end)
            w = w / w.norm()
            step = (end.detach() - x0).flatten() @ w.flatten() * w
            at = (x0 if formula else at) + step
            at = at.clamp(0, 1) if clip else at
        low, high = 0.0, 1.0
        for _ in range(10):
            middle = (low + high) / 2
            if int(case.victim(x0 + middle * (at - x0)).argmax()) != label:
                high = middle
            else:
                low = middle
        images.append(x0 + high * (at - x0))
    return torch.cat(images)


def superdeepfools() -> None:
    """The formula projects onto the boundary, not beyond: distances of all points."""
    for case in cases():
        for name, given in (
            ("ours", {}),
            ("not clipped", {"clip": False}),
            ("", {"formula": True}),
        ):
            with case.victim.held():
                found = superdeepfool(case, **given)
                raw = int((case.victim(found).argmax(1) != case.labels).sum())
                cut = int(wrong(case, found).sum())
            far = float((found - case.images).flatten(1).norm(dim=1).mean())
            name = name or "formula"
            print(f"superdeepfool, {name}: mean {far:.4f}, {raw} beyond, {cut} of 24 once clipped")


def jsmas() -> None:
    plain = minimum_norm.jsma(0.1)
    for what, given in (("pairs", {"rounded": math.ceil}), ("domain", {"full": 0.99})):
        _counts(f"jsma@deepsec: {what}", plain, minimum_norm.jsma(0.1, **given))
    text = str(parse("jsma@papernot"))
    assert "outputs" not in text
    other = text.replace(")", ", outputs='probabilities')")

    def run(case: Case, text: str) -> Tensor:
        return case.attack(text, "l0", targets=minimum_norm.second(case)).images

    _counts("jsma@papernot: map", partial(run, text=text), partial(run, text=other))


def _counts(name: str, ours: Images, theirs: Images) -> None:
    found = []
    for run in (ours, theirs):
        hits, values = 0, 0.0
        for case in cases():
            with case.victim.held():
                images = run(case)
                good = wrong(case, images, minimum_norm.second(case))
            hits += int(good.sum())
            values += float((images != case.images).flatten(1).sum(1)[good].sum())
        found.append((hits, values / hits))
    print(name, *(f"{hits} of 48, {mean:.2f} pixel values" for hits, mean in found), flush=True)


# First-order attacks.


def broken(name: str, ours: Images, theirs: Images, transfer: bool = False) -> None:
    """Images broken by last iterates, on the network itself and, crafted there, on the other."""
    counts = []
    for run in (ours, theirs):
        here = there = 0
        for case, other in zip(cases(), reversed(cases()), strict=True):
            with case.victim.held(), other.victim.held():
                images = run(case)
                here += int(wrong(case, images).sum())
                good = other.victim(case.images).argmax(1) == case.labels
                there += int((wrong(replace(case, victim=other.victim), images) & good).sum())
        counts.append(f"{here} of 48" + f" ({there} on the other network)" * transfer)
    print(f"{name}: {counts[0]} instead of {counts[1]}", flush=True)


def summed(case: Case, eps: float, share: float, ours: bool) -> Tensor:
    """Momentum of gradients, each divided by its norm or not."""
    x, held = case.images, torch.zeros_like(case.images)
    for _ in range(15):
        x = x.detach().requires_grad_()
        loss = functional.cross_entropy(case.victim(x), case.labels, reduction="sum")
        (g,) = torch.autograd.grad(loss, x)
        held = held + (g / g.abs().sum((1, 2, 3), keepdim=True).clamp_min(1e-38) if ours else g)
        change = (x + share * eps * held.sign() - case.images).clamp(-eps, eps)
        x = (case.images + change).clamp(0, 1).detach()
    return x


def uncut(case: Case, eps: float, share: float, ours: bool) -> Tensor:
    """PGD whose first gradient is taken at the uniform start, cut to the box or not."""
    draw = torch.Generator().manual_seed(0)
    noise = (2 * torch.rand(case.images.shape, generator=draw) - 1) * eps
    x = (case.images + noise).clamp(0, 1) if ours else case.images + noise
    for _ in range(15):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(functional.cross_entropy(case.victim(x), case.labels), x)
        change = (x + share * eps * g.sign() - case.images).clamp(-eps, eps)
        x = (case.images + change).clamp(0, 1).detach()
    return x


def deepsec() -> None:
    for data, eps, share in (("mnist", 0.3, 1 / 6), ("cifar10", 0.1, 0.1)):
        for name, run in (("mim", summed), ("pgd", uncut)):
            one, two = (partial(run, eps=eps, share=share, ours=yes) for yes in (True, False))
            broken(f"{name}@deepsec-{data} at {eps}", one, two)


def diverse(case: Case, often: float, per_image: bool, eps: float = 0.15) -> Tensor:
    """DIM: sizes 7 and 8 drawn for every image, or for the batch and never the full one."""
    draw = torch.Generator().manual_seed(0)

    def through(x: Tensor, _: int) -> Tensor:
        rows, side = len(x), x.shape[-1]
        small = torch.rand(rows if per_image else 1, generator=draw).expand(rows) < often
        if per_image:
            small = small & (torch.rand(rows, generator=draw) < 0.5)
        drawn = torch.randint(0, 2, (rows if per_image else 1, 2), generator=draw).expand(rows, 2)
        made = []
        for image, less, (top, left) in zip(x, small.tolist(), drawn.tolist(), strict=True):
            if not less:
                made.append(image[None])
                continue
            little = functional.interpolate(image[None], size=(side - 1,) * 2, mode="bilinear")
            made.append(functional.pad(little, (left, 1 - left, top, 1 - top)))
        return torch.cat(made)

    with patch.dict(first_order.EPS, linf=eps):
        return first_order.ascent(case, "linf", 10, 0.15, decay=1.0, through=through)


def copies(case: Case, middle: bool, eps: float = 0.1) -> Tensor:
    """SI-NI: copies scaled towards black, or towards mid-grey."""
    x, held, rest = case.images, torch.zeros_like(case.images), 0.5 if middle else 0.0
    for _ in range(10):
        ahead = (x + 0.1 * eps * held).detach().requires_grad_()
        losses = [
            functional.cross_entropy(
                case.victim((ahead - rest) / 2**i + rest), case.labels, reduction="sum"
            )
            for i in range(5)
        ]
        (g,) = torch.autograd.grad(sum(losses), ahead)  # type: ignore[arg-type]
        held = held + g / g.abs().sum((1, 2, 3), keepdim=True).clamp_min(1e-38)
        change = (x + 0.1 * eps * held.sign() - case.images).clamp(-eps, eps)
        x = (case.images + change).clamp(0, 1).detach()
    return x


def transfers() -> None:
    for often, name in ((1.0, "dim@realsafe"), (0.7, "dim@realsafe-code")):
        one, two = (partial(diverse, often=often, per_image=yes) for yes in (True, False))
        broken(f"{name} at 0.15", one, two, transfer=True)
    broken("sinifgsm@lin", partial(copies, middle=False), partial(copies, middle=True), True)


def nearly() -> None:
    """Targeted successes that only count within 0.001."""
    for text in ("fgsm@su-code", "bim@su-code"):
        counts = [0, 0]
        for case in cases():
            goal = "linf:0.15 targeted:given"
            with case.victim.held():
                images = case.last(text, goal, targets=first_order.others(case))
                z = case.victim(images)
            own = z.gather(1, first_order.others(case)[:, None])[:, 0]
            counts[0] += int((own >= z.amax(1)).sum())
            counts[1] += int((own > z.amax(1) - 0.001).sum())
        print(f"{text}: {counts[0]} instead of {counts[1]} of 48", flush=True)


def universal() -> None:
    for preset, target in (("uap@deepsec-mnist", 0.3), ("uap@deepsec-cifar10", 0.8)):
        run = partial(first_order.universal, norm="linf", target=target, passes=20, cut=True)
        with patch.dict(first_order.EPS, linf=0.3):
            broken(f"{preset} at 0.3", run, partial(run, authors=True))
    data = besiege.data.load("digits", count=397)
    for case in cases():
        some, others = data.images[:200], data.images[200:]
        with case.victim.held():
            labels = [case.victim(part).argmax(1) for part in (some, others)]
        rates = [
            fooling(
                fit_universal(case.victim, part, label, "linf:0.3", form="uap@moosavi"),
                case.victim,
                others,
                "linf:0.3",
            )
            for part, label in zip((others, some), labels[::-1], strict=True)
        ]
        print(f"uap@moosavi at 0.3: fooled {rates[0]:.3f}, fitted on others {rates[1]:.3f}")


# Queries.


def boxes() -> None:
    """BLB with the distance instead of its square."""
    for case in cases():
        _, _, targets = weighted.goals(case, True)
        means = []
        for plain in (False, True):
            found = [
                _boxed(weighted.precise(case), plain, r, targets[r : r + 1]) for r in range(24)
            ]
            means.append(torch.tensor(found))
        good = torch.isfinite(means[0]) & torch.isfinite(means[1])
        one, two = (float(mean[good].mean()) for mean in means)
        print(f"blb@szegedy: mean {one:.4f} instead of {two:.4f}, {int(good.sum())} of 24")


def _boxed(case: Case, plain: bool, row: int, target: Tensor) -> float:
    x0, net = case.images[row : row + 1].double(), case.victim.module

    def objective(flat: Any, c: float) -> Any:
        x = torch.from_numpy(flat).view_as(x0).requires_grad_()
        size = (x - x0).square().sum()
        size = (size + 1e-12).sqrt() if plain else size
        value = size + c * functional.cross_entropy(net(x), target)
        (slope,) = torch.autograd.grad(value, x)
        return float(value.detach()), slope.double().flatten().numpy()

    c, low, high, best = 0.01, 0.0, 1e10, math.inf
    for _ in range(10):
        start = x0.flatten().numpy()
        limits: Any = {"bounds": [(0.0, 1.0)] * len(start), "options": {"maxfun": 1000}}
        x = torch.from_numpy(minimize(objective, start, (c,), "L-BFGS-B", jac=True, **limits).x)
        won = bool(net(x.view_as(x0)).argmax(1) == target)
        best = min(best, float((x - x0.flatten()).norm())) if won else best
        high, low = (min(high, c), low) if won else (high, max(low, c))
        c = (low + high) / 2 if high < 1e9 else 10 * c
    return best


def zoo() -> None:
    """Distances of the nearest iterate, probes clipped or not; and with probes that count."""
    steps, rounds = 30, 4
    for name in ("chen-mnist", "chen-cifar10", "chen-newton"):
        for case in cases():
            near = weighted.precise(weighted.near(case))
            draw = torch.Generator().manual_seed(0)
            at = [
                {row: torch.randperm(64, generator=draw) for row in range(24)}
                for _ in range(steps * rounds)
            ]
            found = []
            for boxed in (True, False):
                a = replace(weighted.ZOOS[name], boxed=boxed)
                far = []
                for row in range(24):
                    path = weighted.coordinatewise(near, a, (steps, rounds), at, row)
                    good = near.victim(path.view(-1, *near.images.shape[1:])).argmax(1)
                    good = (good != near.labels[row]) & (path.abs().sum(1) > 0)
                    sizes = (path - near.images[row].flatten()).norm(dim=1)
                    far.append(float(sizes[good].min()) if bool(good.any()) else math.inf)
                found.append(torch.tensor(far))
            text = f"zoo@{name}(steps={steps}, rounds={rounds})"
            found.append(near.attack(text, "l2").distance.float())
            fine = torch.isfinite(torch.stack(found)).all(0)
            means = [round(float(one[fine].mean()), 5) for one in found]
            print(f"{text}: clipped, not, ours {means}, {int(fine.sum())} of 24", flush=True)


def hidden() -> None:
    data = besiege.data.load("digits", count=200)
    for attack, steps in (("nes_partial", 60), ("nes_labels", 8)):
        found = []
        for authors in (False, True):
            sizes = []
            for case in cases():
                right = score.double(score.number_of(case))(data.images).argmax(1) == data.labels
                starts = [data.images[right & (data.labels == k)][-1] for k in range(10)]
                with case.victim.held():
                    x = score.closed(case, attack, steps, torch.stack(starts), authors)
                sizes.append((x - case.images[: len(x)]).abs().flatten(1).amax(1))
            found.append(torch.cat(sizes))
        one, two = (float(part.mean()) for part in found)
        print(f"{attack}@ilyas, {steps} steps: mean linf distance {one:.4f} instead of {two:.4f}")


ALL: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        *(aborts, batches, optmargin, realsafe, deepfools, superdeepfools, jsmas),
        *(deepsec, transfers, nearly, universal, boxes, zoo, hidden),
    )
}


def main(names: Iterable[str]) -> None:
    """Print the named comparisons, or all."""
    torch.set_num_threads(1)
    for name in names or ALL:
        ALL[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
