"""Laws about reproducibility: 3 row-independent, 4 repeatable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.combine import Repeat
from besiege.core.dice import Dice
from besiege.core.errors import VictimError
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.threat import Goal
from besiege.evaluation.attacking import attack as attack_tensors
from besiege.evaluation.crafting import Crafted
from besiege.models.classifier import Classifier
from besiege.testing.surroundings import changed_in, state_of, surroundings
from besiege.testing.trial import HINT, Trial, changed, fresh, has, law
from besiege.testing.victims import Failing, Failure, digits, module_of

_ROWS = 40


@law(3)
def row_independent(trial: Trial) -> None:
    """Law 3: a row's draws, verdict and images do not depend on its neighbours.

    They are bitwise the same alone, permuted, in parts of the batch, in calls of other sizes, and
    when rows that leave are absent. Final iterates are compared too, since the clean images that
    failures return are equal trivially.
    """
    trial = trial.brief()
    # More rows than a vectorised loop takes at once: other code often computes the last elements
    # of a tensor than the first.
    victim, samples = trial.victim(_ROWS)
    n = len(samples)
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(0))

    def run(
        rows: Tensor,
        keep: Keep | None,
        leave: Leave,
        eps: Fraction | None,
        batch: int | None = None,
    ) -> Crafted:
        some = samples.at(rows)
        return trial.craft(victim, some, eps, keep=keep, leave=leave, batch=batch, seed=3)

    everything = torch.arange(n)
    # One partition of the permuted rows serves for alone, split, permuted and other call sizes.
    parts: list[tuple[str, Tensor, int | None]] = [
        ("alone", shuffle[:1], None),
        ("as one of five, permuted", shuffle[1:6], None),
        (f"as one of {n - 6}, permuted, in calls of 8", shuffle[6:], 8),
    ]
    budgets = trial.budgets()
    settings: list[tuple[Keep | None, Leave]] = [(None, "success"), ("last", "end")]
    for turn, (keep, leave) in enumerate(settings):
        eps = budgets[-1 - turn] if len(budgets) > 1 else budgets[0]
        whole = run(everything, keep, leave, eps)
        for how, rows, batch in parts:
            part = run(rows, keep, leave, eps, batch)
            when = f"keeping {keep or 'the default'}, leaving at {leave}"
            trial.same(whole, part, f"in the batch and {how}, {when} {HINT}", rows)
    # Final iterates of the rows that stay to the end: with and without those that leave.
    whole = run(everything, "last", "success", trial.size())
    stayed = (~whole.success).nonzero()[:, 0]
    if 0 < len(stayed) < n:
        rest = run(stayed, "last", "success", trial.size())
        trial.same(whole, rest, f"with and without rows that leave {HINT}", stayed)


@law(4)
def repeatable(trial: Trial) -> None:
    """Law 4: the same seed gives the same result, another seed other draws; nothing is touched.

    The global random states, the model's modes, parameters, buffers, their ``grad`` and
    ``requires_grad``, and the caller's tensors stay as they were: after a run, after an exception
    inside the model, and under a caller's inference mode, which changes no result either.
    """
    trial = trial.brief()
    _seeds(trial)
    victim, samples = _touchy()
    samples = trial.aimed(samples)
    plain = _untouched(trial, victim, samples, "a run", nullcontext)
    under = _untouched(trial, victim, samples, "a run under inference mode", torch.inference_mode)
    for name in ("images", "success", "queries"):
        trial.demand(
            torch.equal(getattr(plain, name), getattr(under, name)),
            f"{name} differ under inference mode",
        )
    for call in (1, 3):
        failing = Classifier(Failing(copy.deepcopy(victim.module), call), classes=10)
        _untouched(trial, failing, samples, f"an exception in call {call}", nullcontext)


def _seeds(trial: Trial) -> None:
    victim, samples = trial.victim()

    def run(some: Trial, seed: int) -> tuple[Crafted, set[bytes]]:
        with _draws() as drawn:
            crafted = some.craft(victim, samples, some.size(), keep="last", leave="end", seed=seed)
        return crafted, drawn

    first, drawn = run(trial, 0)
    # The first run is not on the shelf, so that these are always two separate runs.
    trial.same(first, trial.usual(trial.size(), "last", "end"), "between two runs of one seed")
    # The goal 'targeted:random' draws its targets once, independently of the seed.
    fixed = 1 if trial.goal is Goal.RANDOM else 0
    if len(drawn) == fixed:
        return
    trial.demand(len(drawn & run(trial, 1)[1]) == fixed, "another seed drew the same")
    again: list[Callable[[int], Attack]] = [lambda times: Repeat(trial.attack, times)]
    if has(trial.attack, "restarts"):
        again.append(lambda times: _restarting(trial.attack, times))
    for form in again:
        once, twice = (run(trial.by(form(times)), 0)[1] for times in (1, 2))
        trial.demand(len(twice - once) > 0, f"{form(2)} drew the same again")


def _restarting(attack: Attack, times: int) -> Attack:
    return changed(attack, lambda part: {"restarts": times} if hasattr(part, "restarts") else {})


@contextmanager
def _draws() -> Iterator[set[bytes]]:
    """All draws from dice inside the block.

    The draws themselves are compared, not the results: two starts may lead to the same point.
    """
    original, seen = Dice._words, set[bytes]()

    def words(dice: Dice, *arguments: Any) -> Tensor:
        drawn = original(dice, *arguments)
        seen.add(drawn.numpy().tobytes())
        return drawn

    with patch.object(Dice, "_words", words):
        yield seen


def _touchy() -> tuple[Classifier, Samples]:
    """A net in mixed modes, with some gradients set and some parameters frozen."""
    module = module_of((1, 8, 8), 10)
    victim = Classifier(module, classes=10)
    images = digits(8).images
    samples = Samples.of(images, fresh(victim, images))
    module.train()
    next(module.children()).eval()
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = None if number % 2 else torch.full_like(parameter, 0.25)
        parameter.requires_grad_(number % 3 != 0)
    return victim, samples


def _untouched(
    trial: Trial,
    victim: Classifier,
    samples: Samples,
    what: str,
    mode: Callable[[], AbstractContextManager[Any]],
) -> Any:
    """Run once through `besiege.attack`, and compare all state before and after."""
    with mode():
        given = {
            name: getattr(samples, name).clone()
            for name in ("images", "labels", "ids", "targets")
            if getattr(samples, name) is not None
        }
        before = state_of(victim.module), *surroundings()
        images, labels = given.pop("images"), given.pop("labels")
        result = None
        try:
            result = attack_tensors(
                trial.attack,
                victim,
                images,
                labels,
                threat=trial.threat(trial.size()),
                **given,
                substitute=trial.substitute(victim, samples),
            )
        except VictimError as problem:
            if not isinstance(problem.__cause__, Failure):
                raise
        after = state_of(victim.module), *surroundings()
        given |= {"images": images, "labels": labels}
        for name, tensor in given.items():
            trial.demand(
                torch.equal(tensor, getattr(samples, name)),
                f"the caller's {name} changed during {what}",
            )
    # Images made under a caller's inference mode must be usable outside of it.
    if result is not None:
        trial.demand(not result.images.is_inference(), f"the images of {what} cannot be used")
    for name, old, new in zip(("model", "random state", "mode"), before, after, strict=True):
        gone = changed_in(old, new)
        trial.demand(not gone, f"{what} changed the {name}: {', '.join(gone)}")
    return result
