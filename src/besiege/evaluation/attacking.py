"""The public function `attack`: craft and judge in one call, from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor, nn

from besiege.attacks.attack import Attack, configured, parse
from besiege.core import notebook, presets
from besiege.core.errors import Finding, GradientError, InputError
from besiege.core.knowledge import Knowledge
from besiege.core.record import Keep, Leave, Record
from besiege.core.samples import Labelled, Samples, in_box
from besiege.core.text import quoted
from besiege.core.threat import Goal, Threat
from besiege.core.victim import Victim
from besiege.defenses.defended import load
from besiege.evaluation.approach import Approach, approach
from besiege.evaluation.blocking import explained
from besiege.evaluation.crafting import Crafted, craft
from besiege.evaluation.judging import judge
from besiege.evaluation.transfer import bare_of, in_place_of, read_model, transferred
from besiege.evaluation.verdicts import Verdicts
from besiege.models.classifier import Classifier


@dataclass(frozen=True, repr=False)
class AttackResult:
    """The judged result of an attack; every tensor has one row per sample.

    Attributes
    ----------
    images : Tensor
        The adversarial images, and the clean ones where the attack failed.
    success : Tensor
        Whether the image reaches the goal within the budget, by a new forward pass of the model.
    distance : Tensor
        The distance in the threat's norm, infinite where the attack failed.
    forwards, backwards, queries : Tensor
        The cost: forward passes, backward passes and queries. An image crafted on a substitute
        costs one query, that of the judge.
    first_step, first_query : Tensor
        Step and query of the first success, -1 where there was none; 0 and 1 for an image crafted
        on a substitute.
    descent : Tensor, optional
        The best distance against cost, where the attack searched for the smallest perturbation:
        within 1, 2, ... passes (`besiege.core.record.COSTS`) and in all, ``[rows, marks + 1]``.
        `besiege.metrics.against_cost` takes medians of it. These are the attack's own claims, and
        infinite where the judge confirmed no success.
    substitute_passes : Tensor, optional
        Forward and backward passes of a substitute that images were crafted on, or gradients of a
        substitute that guided the attack. They are not part of the costs above.
    verdicts : Verdicts
        The judge's verdicts: validity, distances in every norm, predictions, confidences.
    warnings : tuple of Finding
        Signs that the result may be misleading.
    """

    attack: Attack
    model: str
    threat: Threat
    seed: int
    images: Tensor
    success: Tensor
    distance: Tensor
    forwards: Tensor
    backwards: Tensor
    queries: Tensor
    first_step: Tensor
    first_query: Tensor
    verdicts: Verdicts
    warnings: tuple[Finding, ...]
    seconds: float
    descent: Tensor | None = None
    substitute_passes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.success)

    def _facts(self) -> list[tuple[str, str]]:
        n, broken = len(self), int(self.success.sum())
        correct, robust = int(self.verdicts.correct.sum()), int(self.verdicts.robust.sum())
        won = f"{broken} of {n} images ({100 * broken / n:.1f} %)"
        if self.threat.goal is Goal.UNTARGETED and correct < n:
            won += f", {n - correct} of them misclassified before the attack"
        accuracy = f"{100 * correct / n:.1f} % clean"
        if self.threat.eps is not None:
            untargeted = self.threat.goal is Goal.UNTARGETED
            still = "robust" if untargeted else "correct and not broken"
            accuracy += f", {100 * robust / n:.1f} % {still}"
        facts = [("threat", str(self.threat)), ("success", won), ("accuracy", accuracy)]
        if broken:
            sizes, norm = self.distance[self.success], self.threat.norm
            middle, largest = float(sizes.median()), float(sizes.max())
            facts.append(("distance", f"median {middle:.4g}, largest {largest:.4g} ({norm})"))
        cost = ", ".join(
            f"{float(count.double().mean()):.1f} {name}"
            for name, count in (
                ("forwards", self.forwards),
                ("backwards", self.backwards),
                ("queries", self.queries),
            )
        )
        if self.substitute_passes is not None and bool((self.substitute_passes > 0).any()):
            cost += f", {float(self.substitute_passes.double().mean()):.1f} on a substitute"
        facts.append(("cost", f"{cost} per image; {self.seconds:.2f} s"))
        facts += [("warning", str(warning)) for warning in self.warnings]
        return facts

    def __repr__(self) -> str:
        lines = [self._title()]
        for name, value in self._facts():
            first, *rest = wrap(value, 86)
            lines.append(f"  {name:<9} {first}")
            lines += [" " * 12 + more for more in rest]
        return "\n".join(lines)

    def _title(self) -> str:
        steps = getattr(self.attack, "steps", None)
        text = str(self.attack)
        if steps is not None and "steps=" not in text:
            text += f" ({steps} steps)" if steps != 1 else ""
        return f"{text} on {self.model}, seed {self.seed}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        return (
            f"<table><caption style='text-align:left'><b>{escape(self._title())}</b></caption>"
            f"{rows}</table>"
        )


def attack(
    attack: str | Attack,
    model: str | nn.Module | Classifier | Victim,
    images: Any,
    labels: Any = None,
    *,
    threat: str | Threat,
    seed: int = 0,
    targets: Any = None,
    ids: Any = None,
    queries: int | None = None,
    keep: Keep | None = None,
    leave: Leave | None = None,
    twin: bool = False,
    batch: int | None = None,
    pad: bool = True,
    starts: tuple[Any, Any] | None = None,
    substitute: str | nn.Module | Classifier | Victim | None = None,
    progress: bool = False,
    **parameters: Any,
) -> AttackResult:
    """Attack images and judge the result.

    Parameters
    ----------
    attack : str or Attack
        A registered name, a text such as ``"pgd(steps=20)"``, an attack value, or
        ``"path/to/file.py:MyAttack"``.
    model : nn.Module, Classifier or str
        Maps images to logits. Normalisation belongs inside: ``Classifier(net, mean=, std=)``. A
        text may name layers of defenses too: ``"zoo:digits-natural+bits(depth=3)"``.
    images : Tensor, array or Data
        ``[rows, channels, height, width]`` inside the model's box, by default [0, 1]. Or all of
        the data in one: ``besiege.data.load(source, count=100)``, where the source may be a
        ``DataLoader``, a ``Dataset``, arrays, files or a name; its pixels are scaled to the box.
    labels : Tensor, optional
        The true classes, ``[rows]``; the data's own where all of the data are given.
    threat : str or Threat
        Such as ``"linf:8/255"``, ``"l2:0.5"``, ``"linf"`` (the smallest perturbation), or
        ``"linf:8/255 targeted:random"``.
    seed : int
        The same seed gives the same result for any batch size.
    targets : Tensor, optional
        Target classes, ``[rows]``; they make the goal targeted.
    ids : Tensor, optional
        Stable ids of the samples; row numbers by default. Random numbers depend on them, not on
        the order.
    queries : int, optional
        Query limit per sample.
    keep, leave : str, optional
        See `besiege.evaluation.craft`.
    twin : bool
        Search on an accelerated copy of the model; every success is confirmed on the model.
    batch, pad
        Rows per call of the model, and whether calls are padded to whole blocks of rows. With
        padding no result depends on the batch size; with ``pad=False`` the last bits of logits
        may, and so may results near the boundary.
    starts : (images, labels), optional
        Images of known classes from which decision-based attacks, or attacks that see only a few
        scores, may start. Without them such an attack starts from noise, and a targeted one cannot
        start at all.
    substitute : nn.Module, Classifier or str, optional
        A model whose gradients the attacker has. Attacks that need gradients are crafted on it,
        keep their last image, and are judged on the model (transfer), with one query each;
        ``prgf`` uses its gradients as a prior.
    progress : bool
        Show a progress bar.
    **parameters
        Parameters of the attack, such as ``steps=40``.

    Returns
    -------
    AttackResult

    Examples
    --------
    >>> import besiege
    >>> data = besiege.data.load("digits", count=16)
    >>> result = besiege.attack(
    ...     "pgd", "zoo:digits-natural", data.images, data.labels, threat="linf:0.15", steps=20
    ... )
    >>> result.success.shape
    torch.Size([16])
    """
    allowed = Threat.parse(threat)
    chosen = parse(attack, allowed)
    if parameters:
        chosen = configured(chosen, str(attack), parameters, allowed)
    if targets is not None and allowed.goal is Goal.UNTARGETED:
        allowed = replace(allowed, goal=Goal.GIVEN)
    written = attack if isinstance(attack, str) else ""
    presets.check_norms(written, allowed)
    victim = load(model) if isinstance(model, str) else Classifier.of(model)
    if labels is None:
        images, labels, ids = _of_data(images, ids, victim)
    samples = Samples.of(
        images, labels, box=victim.box, classes=victim.classes, ids=ids, targets=targets
    )
    if not isinstance(twin, bool):
        raise InputError(f"twin is {quoted(twin)}, but True or False is needed")
    pair: Any = starts
    if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise InputError("starts must be a pair: pass (images, labels)")
    other = None
    if substitute is not None:
        own = read_model(substitute, victim.device)
        other = in_place_of(victim, own, samples.images[:1], victim.classes)
    begin = None
    if starts is not None:
        begin = Samples.of(*starts, box=victim.box, classes=victim.classes)
    bare = bare_of(victim, samples.images[:1]) if chosen.oblivious else None
    known = Knowledge(begin, other, bare)
    how = approach(victim, chosen, allowed, known, keep=keep, leave=leave, queries=queries)
    with _bar(progress, str(chosen), len(samples)) as watch:
        crafted, verdicts = craft_and_judge(
            victim,
            chosen,
            samples,
            allowed,
            how,
            seed=seed,
            twin=twin,
            batch=batch,
            pad=pad,
            watch=watch,
        )
    failed = ~verdicts.success
    return AttackResult(
        chosen,
        victim.name,
        allowed,
        seed,
        crafted.images,
        verdicts.success,
        verdicts.distance[allowed.norm].masked_fill(failed, torch.inf),
        crafted.forwards,
        crafted.backwards,
        crafted.queries,
        crafted.first_step,
        crafted.first_query,
        verdicts,
        (
            *presets.findings(written, allowed, victim.box),
            *crafted.findings,
            *verdicts.findings,
        ),
        crafted.seconds,
        None
        if crafted.descent is None
        else crafted.descent.masked_fill(failed[:, None], torch.inf),
        crafted.substitute_passes,
    )


def _of_data(data: Any, ids: Any, victim: Victim) -> tuple[Tensor, Tensor, Any]:
    """Images in the victim's box, labels and ids of data that were given in one."""
    if not isinstance(data, Labelled):
        raise InputError(
            f"no labels were given with the {type(data).__name__}: pass images and labels, or data "
            "that besiege.data.load has read, such as besiege.data.load(loader, count=100)"
        )
    return in_box(data.images, victim.box), data.labels, data.ids if ids is None else ids


def craft_and_judge(
    victim: Victim,
    attack: Attack,
    samples: Samples,
    threat: Threat,
    how: Approach,
    *,
    seed: int = 0,
    twin: bool = False,
    batch: int | None = None,
    pad: bool = True,
    watch: Callable[[Record], None] | None = None,
) -> tuple[Crafted, Verdicts]:
    """Craft on the model that the approach names, and judge on the victim."""
    try:
        crafted = craft(
            how.searched,
            attack,
            samples,
            how.threat,
            seed=seed,
            keep=how.terms.keep,
            leave=how.terms.leave,
            queries=how.terms.queries,
            twin=twin,
            batch=batch,
            pad=pad,
            watch=watch,
            knowledge=how.terms.knowledge,
        )
    except GradientError as problem:
        raise explained(problem, how.searched, samples, seed) from problem.__cause__
    if how.transfer:
        crafted = transferred(crafted, victim.device)
    verdicts = judge(victim, crafted, samples, threat, seed=seed)
    if how.transfer:
        failed = ~verdicts.success
        crafted = replace(
            crafted,
            first_step=crafted.first_step.masked_fill(failed, -1),
            first_query=crafted.first_query.masked_fill(failed, -1),
        )
    return crafted, verdicts


@contextmanager
def _bar(wanted: bool, title: str, samples: int) -> Iterator[Callable[[Record], None] | None]:
    """A progress bar that counts broken samples and passes; one line in a notebook."""
    if not wanted:
        yield None
        return
    if (cell := notebook.line()) is not None:
        said = ""

        def tell(record: Record) -> None:
            nonlocal said
            broken, passes = int(record.success.sum()), _passes(record)
            said = f"{title}: {broken} of {samples} broken, {passes:,} passes"
            cell.show(said)

        yield tell
        cell.show(said or title, last=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} broken, {task.fields[passes]} passes"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=samples, passes=0)

        def watch(record: Record) -> None:
            bar.update(task, completed=int(record.success.sum()), passes=_passes(record))

        yield watch


def _passes(record: Record) -> int:
    return int(record.meter.forwards.sum() + record.meter.backwards.sum())
