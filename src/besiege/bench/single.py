"""The public `evaluate`: the bench with one model, one set of samples and one threat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Literal
from weakref import finalize

import numpy as np
import torch
from torch import nn

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, parse, spelled, split, told
from besiege.attacks.combine import Minimal
from besiege.attacks.suites import suite as suite_of
from besiege.bench.reading import gather
from besiege.bench.results import strongest, write_figures
from besiege.bench.spec import (
    Asked,
    Curve,
    Plan,
    Run,
    Sample,
    Shard,
    Subject,
    Weapon,
    read_run,
    write_run,
)
from besiege.bench.store import Store
from besiege.bench.work import Watch, Workshop, versions
from besiege.core.dice import Dice
from besiege.core.errors import (
    AttackError,
    BesiegeError,
    Finding,
    InputError,
    ThreatError,
    VictimError,
    near,
)
from besiege.core.oracle import Access, Oracle, Victim, plainly
from besiege.core.samples import Samples
from besiege.core.threat import L0, L2, Goal, Linf, Threat
from besiege.data import load as load_data
from besiege.data.catalogue import CATALOGUE
from besiege.data.dataset import Data
from besiege.defenses.defended import load as load_victim
from besiege.evaluation.crafting import check, terms
from besiege.metrics.intervals import Rate
from besiege.metrics.rows import Rows
from besiege.models.classifier import Classifier

DEFAULT = ("fgsm", "pgd", "pgd(loss=margin)")
"""What runs when nobody says: one step, many steps, and many steps on another loss."""
SHARD = 250
CURVE_STEPS = 20
CURVE_SAMPLES = 200
CURVE_TOLERANCE = 0.01
"""Of each distance: finer than a plot can show, and a third cheaper than the search's own."""
Curves = Literal["short", "full", "none"]


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """What an evaluation found, from judged records alone.

    Attributes
    ----------
    clean, robust : Rate
        Accuracy on clean images, and the share of samples that no attack broke, each with a 95 %
        interval: ``value``, ``low``, ``high``, ``count``. Robust is None where every attack
        failed: nothing is known then.
    by_attack : dict of str to Rate
        Accuracy under each attack, by its text; in a suite, after it and those before it. An
        attack that failed is not in it.
    warnings : tuple of Finding
        Signs that a figure may not mean what it seems to.
    figures : dict
        All figures as plain values: curves, costs, the gallery.
    folder : Path
        The run folder.
    """

    clean: Rate
    robust: Rate | None
    by_attack: Mapping[str, Rate]
    warnings: tuple[Finding, ...]
    figures: Mapping[str, Any]
    folder: Path
    complete: bool
    _plan: Plan

    @property
    def rows(self) -> Rows:
        """One row per sample and attack: verdicts, distances, steps and costs."""
        gathered = gather(Store(self.folder), self._plan)
        tables = [
            trial.rows.having(attack=np.full(trial.rows.count, trial.text))
            for trial in gathered.evidence.trials
        ]
        return Rows.joined(tables)

    def page(self, path: Path | str | None = None) -> Path:
        """Write the HTML page of the run; into its folder where no path is given."""
        from besiege.report import write_page

        return Path(write_page(self.folder, path))

    def __repr__(self) -> str:
        found = self.figures
        lines = [f"{found['model']['name']} on {found['data']['name']}, {found['threat']['text']}"]
        lines.append(f"  clean     {self.clean}")
        known = self.robust or "unknown: every attack failed"
        lines.append(f"  robust    {known}")
        lines += [f"  {text}  {rate}" for text, rate in self.by_attack.items()]
        lines += [f"  {finding}" for finding in self.warnings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from besiege.report import fragment

        return str(fragment({"evaluations": [self.figures], "complete": self.complete}))


def evaluate(
    model: str | nn.Module | Victim,
    data: str | Path | Data | tuple[Any, Any],
    *,
    threat: str | Threat,
    attacks: str | Attack | Sequence[str | Attack] | None = None,
    suite: str | None = None,
    goal: str | None = None,
    access: str | None = None,
    queries: int | None = None,
    curve: str | bool = "short",
    count: int | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    split: str = "test",
    shard: int = SHARD,
    batch: int | None = None,
    device: str | None = None,
    progress: bool = False,
    watch: Watch | None = None,
    command: str | None = None,
) -> Evaluation:
    """Measure how robust a model is: attack it, judge every image afresh, keep the records.

    Parameters
    ----------
    model : str, nn.Module or Classifier
        ``zoo:NAME``, ``public:NAME``, ``ARCH(...):weights.safetensors``,
        ``path/to/file.py:factory``, any of them with ``+layer`` defenses, or the thing itself.
    data : str, path, Data or (images, labels)
        A name, a folder of class folders, an ``.npz`` with ``x`` and ``y``, or tensors.
    threat : str or Threat
        What the attacker may do: ``"linf:8/255"``, ``"l2:0.5"``, or ``"linf"`` for the smallest
        change.
    attacks : str or sequence, optional
        Attacks to run, each on every sample; ``fgsm``, ``pgd`` and ``pgd(loss=margin)`` when
        neither attacks nor a suite are given.
    suite : str, optional
        A named list of attacks, each on what the ones before left.
    goal : str, optional
        ``untargeted`` (the default), ``targeted:random``, ``targeted:least-likely`` or
        ``targeted:second``.
    access : str, optional
        ``gradient`` (the default), ``score`` or ``decision``.
    queries : int, optional
        The most answers an attack may use for one sample.
    curve : {"short", "full", "none"} or bool
        Accuracy against the budget, by the strongest attack: with 20 steps on at most 200 samples,
        with its own steps on all of them, or not at all. The short one knows each distance to 1 %.
    count, seed, split
        How many samples of which part of the data, chosen by the seed; the seed also decides
        every draw.
    out : path, optional
        The run folder. Records in it are used again, so that an interrupted evaluation goes on.
        Without one, records live as long as the result.
    shard : int
        Samples per record: what is lost at most when a run is killed.
    batch, device
        Rows per call of the model, and where it runs; a named model goes to a GPU where there is
        one.
    progress : bool
        Show a progress bar with the time left.
    watch : callable, optional
        Told how far the work is.
    command : str, optional
        What the report says reproduces it; made up from the arguments when not given.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import besiege
    >>> found = besiege.evaluate(
    ...     "zoo:digits-natural", "digits", threat="linf:0.15", attacks="pgd", count=50, curve=False
    ... )
    >>> found.robust is not None and found.robust.value <= found.clean.value
    True
    """
    terms_of_threat = _threat(threat, goal, access)
    chosen, chained = _attacks(attacks, suite, terms_of_threat)
    victim = _victim(model, device)
    samples = _data(data, split, count, seed, victim)
    plan = _plan(
        victim,
        samples,
        terms_of_threat,
        chosen,
        chained,
        Asked(
            model=model if isinstance(model, str) else _name(victim),
            data=str(data) if isinstance(data, (str, Path)) else samples.name,
            split=split,
            threat=str(terms_of_threat),
            attacks=tuple(str(attack) for attack in chosen),
            suite=suite,
            queries=queries,
            curve=_curve(curve),
            count=count,
            seed=seed,
            shard=_whole(shard, "shard"),
            command="",
        ),
    )
    plan = plan.model_copy(
        update={"asked": plan.asked.model_copy(update={"command": command or _command(plan.asked)})}
    )
    store = Store(mkdtemp(prefix="besiege-") if out is None else out)
    try:
        if progress and watch is None:
            from besiege.report import bar

            with bar(plan.model.name) as shown:
                found = _run(store, victim, samples, plan, chosen, batch, shown)
        else:
            found = _run(store, victim, samples, plan, chosen, batch, watch)
    except BaseException:
        if out is None:
            rmtree(store.folder, ignore_errors=True)
        raise
    if out is None:  # as long as somebody may read from it
        finalize(found, rmtree, store.folder, ignore_errors=True)
    return found


def _run(
    store: Store,
    victim: Victim,
    data: Data,
    plan: Plan,
    attacks: Sequence[Attack],
    batch: int | None,
    watch: Watch | None,
) -> Evaluation:
    shards = _shards(data, plan.asked.shard)
    with store.writing():
        run = read_run(store) or Run(
            created=datetime.now(UTC).isoformat(timespec="seconds"), versions=versions()
        )
        run = run.with_plan(plan)
        write_run(store, run)
        by_text = {str(attack): attack for attack in attacks}
        workshop = Workshop(store, victim, plan, by_text, shards, batch=batch, watch=watch)
        workshop.clean()
        workshop.attack()
        wanted = _curve_plan(store, victim, data, plan, by_text)
        if wanted is not None:
            plan, searcher, subset = wanted
            run = run.with_plan(plan)
            write_run(store, run)
            by_text[str(searcher)] = searcher
            workshop.extend(plan, _shards(subset, plan.asked.shard))
            workshop.search()
        found = write_figures(store.folder)
    mine = next(e for e in found["evaluations"] if e["name"] == plan.name)
    return _evaluation(mine, store.folder, plan)


def _evaluation(found: dict[str, Any], folder: Path, plan: Plan) -> Evaluation:
    def rate(figure: Mapping[str, Any]) -> Rate:
        return Rate(figure["value"], figure["low"], figure["high"], figure["count"])

    if found["clean"] is None:
        failed = next((w["seen"] for w in found["warnings"] if w["id"] == "FAILED"), "")
        raise VictimError(f"the model answered none of the clean images. {failed}")
    return Evaluation(
        rate(found["clean"]),
        None if found["robust"] is None else rate(found["robust"]),
        {a["text"]: rate(a["accuracy"]) for a in found["attacks"] if a["accuracy"] is not None},
        tuple(Finding(**finding) for finding in found["warnings"]),
        found,
        folder,
        found["complete"],
        plan,
    )


# Before any work: what was asked, read and checked.


def _threat(threat: str | Threat, goal: str | None, access: str | None) -> Threat:
    allowed = Threat.parse(threat)
    if goal is not None:
        goals = {g.value: g for g in Goal if g is not Goal.GIVEN}
        if goal not in goals:
            raise ThreatError(f"the goal is '{goal}': {near(goal, goals)}")
        if allowed.goal not in (Goal.UNTARGETED, goals[goal]):
            raise ThreatError(f"the threat '{threat}' and the goal '{goal}' disagree: give one")
        allowed = replace(allowed, goal=goals[goal])
    if access is not None:
        levels = {str(a): a for a in Access}
        if access not in levels:
            raise ThreatError(f"the access is '{access}': {near(access, levels)}")
        if allowed.access not in (Access.GRADIENT, levels[access]):
            raise ThreatError(f"the threat '{threat}' and the access '{access}' disagree: give one")
        allowed = replace(allowed, access=levels[access])
    if allowed.goal is Goal.GIVEN:
        raise ThreatError(
            "an evaluation has no targets of its own: use targeted:random, targeted:least-likely "
            "or targeted:second, or besiege.attack with targets="
        )
    return allowed


def _attacks(
    attacks: str | Attack | Sequence[str | Attack] | None, name: str | None, threat: Threat
) -> tuple[list[Attack], bool]:
    """The attacks, and whether each runs on what the ones before left."""
    if attacks is not None and name is not None:
        raise AttackError("give attacks or a suite, not both")
    if name is not None:
        return [parse(text) for text in suite_of(name).attacks], True
    given: Sequence[str | Attack]
    if attacks is None:
        given = DEFAULT if threat.eps is not None else (f"minimal(pgd(steps={CURVE_STEPS}))",)
    elif isinstance(attacks, str):
        given = split(attacks)
    else:
        given = [attacks] if isinstance(attacks, Attack) else list(attacks)
    if not given:
        raise AttackError("no attack is listed: write for example attacks='pgd'")
    chosen = [parse(attack) for attack in given]
    texts = [str(attack) for attack in chosen]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise AttackError(f"the attack '{twice}' is listed twice: with one seed it is one attack")
    return chosen, False


def _curve(curve: str | bool) -> Curves:
    if isinstance(curve, bool):
        return "short" if curve else "none"
    known: dict[str, Curves] = {"short": "short", "full": "full", "none": "none"}
    if curve not in known:
        raise InputError(f"curve is '{curve}': {near(str(curve), known)}")
    return known[curve]


def _data(
    source: str | Path | Data | tuple[Any, Any],
    split: str,
    count: int | None,
    seed: int,
    victim: Victim,
) -> Data:
    if isinstance(source, tuple):
        return load_data(source, split=split, count=count, seed=seed, box=victim.box)
    data = load_data(source, split=split, count=count, seed=seed)
    if victim.box != (0.0, 1.0) and isinstance(source, (str, Path)):
        # Named data and files are in [0, 1]; the victim says what it takes that to be.
        low, high = victim.box
        whole = data.take(torch.arange(len(data)))
        data = replace(whole, images=whole.images * (high - low) + low)
    return data


def _victim(model: str | nn.Module | Victim, device: str | None) -> Victim:
    if not isinstance(model, str):
        victim = Classifier.of(model)
        return victim if device is None else _moved(victim, device)
    if device is None and torch.cuda.is_available():
        device = "cuda"
    return load_victim(model, device)


def _moved(victim: Victim, device: str) -> Victim:
    move = getattr(victim, "to", None)
    if callable(move):
        move(device)
    elif str(victim.device) != device:
        raise InputError(f"the model is on {victim.device}: move it to '{device}' first")
    return victim


def _standard(name: str, threat: Threat) -> float | None:
    """The budget these data are usually attacked with."""
    usual = CATALOGUE[name].eps(threat.norm) if name in CATALOGUE else None
    return None if usual is None else float(usual)


def _shards(data: Data, size: int) -> list[Callable[[], Data]]:
    rows = torch.arange(len(data))
    return [partial(data.take, part) for part in rows.split(size)]  # type: ignore[no-untyped-call]


def _plan(
    victim: Victim,
    data: Data,
    threat: Threat,
    attacks: Sequence[Attack],
    chained: bool,
    asked: Asked,
) -> Plan:
    """Check that everything fits, and write down what the records will be made of."""
    first = data.take(torch.arange(min(2, len(data))))
    samples = Samples.of(
        first.images, first.labels, box=victim.box, classes=victim.classes, ids=first.ids
    )
    _in_pixels(threat, victim.box, samples)
    weapons = [_weapon(victim, attack, threat, samples, asked) for attack in attacks]
    classes = _probe(victim, samples)
    _fits(data, classes)
    shards = _described(data, asked.shard)
    return Plan(
        asked=asked,
        model=Subject(
            name=asked.model,
            digest=_digest(victim),
            kind=type(victim).__name__,
            classes=classes,
            parameters=_parameters(victim),
            box=victim.box,
            stochastic=victim.stochastic,
        ),
        data=Sample(
            name=data.name,
            split=data.split,
            count=len(data),
            total=data.total,
            seed=asked.seed if len(data) < data.total else None,
            digest=data.digest,
            class_names=tuple(data.class_names),
            shape=tuple(first.images.shape[1:]),
            standard=_standard(data.name, threat),
        ),
        threat=str(threat),
        chained=chained,
        weapons=tuple(weapons),
        shards=shards,
    )


def _in_pixels(threat: Threat, box: tuple[float, float], samples: Samples) -> None:
    """Refuse a budget in which every image fits: it was meant in other units."""
    if threat.eps is None or threat.norm is L0:
        return
    pixels, width = samples.images[0].numel(), box[1] - box[0]
    far = width * pixels ** {Linf: 0.0, L2: 0.5}.get(threat.norm, 1.0)
    if threat.radius < far * (1 - 1e-9):
        return
    meant = Threat(threat.norm, Fraction(threat.eps) / 255)
    advice = f"If it is in units of 1/255, write '{meant}'" if threat.norm in (Linf, L2) else ""
    raise ThreatError(
        f"the budget of '{threat}' is {threat.radius:g}, but {far:.4g} turns any image into any "
        f"other: pixels range from {box[0]:g} to {box[1]:g}. {advice or 'Use a smaller one'}"
    )


def _described(data: Data, size: int) -> tuple[Shard, ...]:
    return tuple(
        Shard(digest=part.digest, count=len(part))
        for part in (make() for make in _shards(data, size))
    )


def _weapon(
    victim: Victim, attack: Attack, threat: Threat, samples: Samples, asked: Asked
) -> Weapon:
    keep, leave = terms(victim, attack, threat)
    check(
        victim,
        attack,
        threat,
        samples,
        keep=keep,
        leave=leave,
        queries=asked.queries,
        seed=asked.seed,
    )
    steps = getattr(attack, "steps", None)
    return Weapon(
        text=str(attack),
        told=told(attack),
        spelled=spelled(attack),
        # Equal budgets may be written in several ways; the key knows one.
        threat=str(replace(threat, written=None)),
        keep=keep,
        leave=leave,
        queries=asked.queries,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=isinstance(attack, Ascent),
        one_step=attack.one_step,
    )


def _probe(victim: Victim, samples: Samples) -> int:
    """How many classes the victim answers with; whether it takes such images at all."""
    with victim.held(), plainly(victim.device), torch.no_grad():
        oracle = Oracle(victim, pad=False)
        dice = Dice.throw(0, samples.ids.to(victim.device)) if victim.stochastic else None
        return int(oracle.logits(samples.images.to(victim.device), dice).shape[1])


def _fits(data: Data, classes: int) -> None:
    highest = int(data.labels.max())
    if highest >= classes:
        row = int(data.labels.argmax())
        raise InputError(
            f"the data have the label {highest} (sample {int(data.ids[row])}), but the model "
            f"answers {classes} classes, 0 to {classes - 1}: these data are not what it was "
            "trained on, or their labels start at 1"
        )


def _curve_plan(
    store: Store, victim: Victim, data: Data, plan: Plan, attacks: Mapping[str, Attack]
) -> tuple[Plan, Attack, Data] | None:
    """The plan with a search for the smallest change by the strongest attack, where one fits."""
    threat = Threat.parse(plan.threat)
    if plan.asked.curve == "none" or threat.eps is None or victim.stochastic:
        return None
    best = strongest(gather(store, plan))
    if best is None:
        return None
    attack, subset = attacks[best.text], data
    if plan.asked.curve == "short":
        attack = _with_steps(attack, CURVE_STEPS)
        if len(data) > CURVE_SAMPLES:
            subset = data.subset(CURVE_SAMPLES, plan.asked.seed)
        searcher = attack if attack.minimal else Minimal(attack, tolerance=CURVE_TOLERANCE)
    else:
        searcher = attack if attack.minimal else Minimal(attack)
    free = replace(threat, eps=None, written=None)
    few = data.take(torch.arange(1))
    samples = Samples.of(few.images, few.labels, box=victim.box, ids=few.ids)
    try:
        weapon = _weapon(victim, searcher, free, samples, plan.asked)
    except BesiegeError:  # an attack that cannot search: the other figures stand without a curve
        return None
    curve = Curve(weapon=weapon, shards=_described(subset, plan.asked.shard))
    return plan.model_copy(update={"curve": curve}), searcher, subset


def _with_steps(attack: Attack, steps: int) -> Attack:
    """The attack with at most so many steps, its parts too."""
    changes: dict[str, Any] = {}
    for f in fields(attack):  # type: ignore[arg-type]  # every attack is a dataclass
        value = getattr(attack, f.name)
        if f.name == "steps" and isinstance(value, int) and value > steps:
            changes["steps"] = steps
        elif isinstance(value, Attack):
            changes[f.name] = _with_steps(value, steps)
        elif isinstance(value, tuple) and value and all(isinstance(v, Attack) for v in value):
            changes[f.name] = tuple(_with_steps(v, steps) for v in value)
    return replace(attack, **changes) if changes else attack  # type: ignore[type-var]


def _digest(victim: Victim) -> str:
    make = getattr(victim, "digest", None)
    if not callable(make):
        raise InputError(
            f"a {type(victim).__name__} has no digest(), so that its records could not be told "
            "from another's: give it one, or wrap the module in besiege.Classifier"
        )
    return str(make())


def _name(victim: Victim) -> str:
    return str(getattr(victim, "name", victim))


def _parameters(victim: Victim) -> int | None:
    inner = victim
    while not hasattr(inner, "module") and hasattr(inner, "victim"):
        inner = inner.victim
    module = getattr(inner, "module", None)
    if not isinstance(module, nn.Module):
        return None
    return sum(parameter.numel() for parameter in module.parameters())


def _whole(value: object, name: str) -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}, but a whole number from 1 is needed")
    return value


def _command(asked: Asked) -> str:
    """The command that asks the same in a shell."""
    parts = ["besiege", "evaluate", asked.model, "--data", asked.data, "--threat", asked.threat]
    if asked.suite is not None:
        parts += ["--suite", asked.suite]
    else:
        parts += ["--attacks", ", ".join(asked.attacks)]
    if asked.split != "test":
        parts += ["--split", asked.split]
    if asked.queries is not None:
        parts += ["--queries", str(asked.queries)]
    if asked.count is not None:
        parts += ["--count", str(asked.count)]
    if asked.seed:
        parts += ["--seed", str(asked.seed)]
    if asked.shard != SHARD:
        parts += ["--shard", str(asked.shard)]
    if asked.curve == "none":
        parts.append("--no-curve")
    elif asked.curve == "full":
        parts += ["--curve", "full"]
    return " ".join(map(shlex.quote, parts))
