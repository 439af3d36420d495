"""Before any work: what was asked is read, checked against the victim, and made a plan."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import Attack, parse, spelled, split, told
from besiege.attacks.combine import Averaged, Combined, EachTarget, Minimal, Repeat
from besiege.attacks.suites import SUITES
from besiege.attacks.suites import suite as suite_of
from besiege.bench.aids import Aids, terms_on
from besiege.bench.reading import gather
from besiege.bench.results import strongest
from besiege.bench.spec import Asked, Curve, Plan, Sample, Shard, Subject, Weapon
from besiege.bench.store import Store, key_of
from besiege.bench.undefended import is_undefended
from besiege.bench.work import boxed
from besiege.core.dice import Dice
from besiege.core.errors import (
    AccessError,
    AttackError,
    BesiegeError,
    InputError,
    ThreatError,
    near,
)
from besiege.core.oracle import Access, Oracle, Victim, plainly
from besiege.core.record import Keep, Leave
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Threat
from besiege.data import load as load_data
from besiege.data.catalogue import CATALOGUE
from besiege.data.dataset import Data, Pixels
from besiege.defenses.defended import load as load_victim
from besiege.defenses.defended import split as split_layers
from besiege.evaluation.crafting import answers, check, check_grid, terms
from besiege.evaluation.judging import DRAWS
from besiege.models.classifier import Classifier
from besiege.models.sources import with_argument
from besiege.models.walled import accounted, walled

DEFAULT = ("fgsm", "pgd", "each_target(pgd(loss=margin), 3)")
"""What runs when nobody says: one step, many steps, and many steps to each of the likeliest wrong
classes on another loss. On the shipped digits models it comes within a sample or two of twenty
restarts."""
DEFAULT_TARGETED = ("fgsm", "pgd", "pgd(loss=margin)")
SHARD, GPU_SHARD = 100, 500
"""Samples per record: few, so that little is lost, but as many as a GPU needs to be full."""
CURVE_SHARD = 50
"""A search takes many times as long as an attack, and should not be lost by the hundred."""
CURVE_STEPS = 20
CURVE_SAMPLES = 200
CURVE_TOLERANCE = 0.01
"""Of each distance: finer than a plot can show, and a third cheaper than the search's own."""
Curves = Literal["short", "full", "none"]


def read_threat(threat: str | Threat, goal: str | None, access: str | None) -> Threat:
    """The threat, with goal and access where they are given apart."""
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


def read_attacks(
    attacks: str | Attack | Sequence[str | Attack] | None,
    suite: str | Attack | Sequence[str | Attack] | None,
    threat: Threat,
) -> tuple[dict[str, Attack], bool]:
    """The attacks by the words they were asked in, and whether each runs on what is left."""
    if attacks is not None and suite is not None:
        raise AttackError("give attacks or a suite, not both")
    given: Sequence[str | Attack]
    if suite is not None:
        given = _read_suite(suite, threat)
    elif attacks is None:
        given = DEFAULT if threat.goal is Goal.UNTARGETED else DEFAULT_TARGETED
        if threat.eps is None:
            given = (f"minimal(pgd(steps={CURVE_STEPS}))",)
    elif isinstance(attacks, str):
        given = split(attacks)
    elif isinstance(attacks, Sequence):
        given = attacks
    else:
        given = [attacks]
    if not given:
        raise AttackError("no attack is listed: write for example attacks='pgd'")
    chosen: dict[str, Attack] = {}
    for one in given:
        attack = parse(one)
        if str(attack) in map(str, chosen.values()):
            raise AttackError(f"the attack '{attack}' is listed twice: with one seed it is one")
        # A file's own attack is found again by its file alone.
        chosen[one if isinstance(one, str) and ".py:" in one else str(attack)] = attack
    # Without a budget every attack of a suite looks for the smallest change of every sample.
    return chosen, suite is not None and threat.eps is not None


def _read_suite(
    suite: str | Attack | Sequence[str | Attack], threat: Threat
) -> Sequence[str | Attack]:
    """The attacks of a suite: one that has a name, or a list of one's own."""
    if isinstance(suite, Attack):
        return [suite]
    if not isinstance(suite, str):
        return suite
    # One word is a name, perhaps a mistyped one; a list has a comma or parameters.
    if suite in SUITES or not set(suite) & set(",(:"):
        listed = suite_of(suite).attacks_for(threat.norm)
        fit = [text for text in listed if threat.goal in parse(text).goals]
        return fit or listed  # where none has the goal, the first refusal says it
    return split(suite)


def read_curve(curve: str | bool) -> Curves:
    """How much of a curve is wanted."""
    if isinstance(curve, bool):
        return "short" if curve else "none"
    known: dict[str, Curves] = {"short": "short", "full": "full", "none": "none"}
    if curve not in known:
        raise InputError(f"curve is '{curve}': {near(str(curve), known)}")
    return known[curve]


def read_data(
    source: str | Path | Data | tuple[Any, Any],
    split: str,
    count: int | None,
    seed: int,
    victim: Victim,
) -> Data:
    """The samples: tensors in the victim's box, everything else in [0, 1].

    A victim that is sent bytes sees no others: the images are brought to its levels first, so that
    what is attacked is what it receives.
    """
    if isinstance(source, tuple):
        return load_data(source, split=split, count=count, seed=seed, box=victim.box)
    data = load_data(source, split=split, count=count, seed=seed)
    inner = walled(victim)
    if inner is None or not inner.as_bytes or inner.grid is None:
        return data
    steps = round((inner.box[1] - inner.box[0]) / inner.grid)
    if data.pixels is None:
        return replace(data, images=_on_levels(data.images, steps))
    return replace(data, images=_Levels(data.pixels, steps))  # type: ignore[arg-type]  # lazily


def _on_levels(images: Tensor, steps: int) -> Tensor:
    return (images * steps).round() / steps


@dataclass(frozen=True)
class _Levels:
    """Images that stay where they are until they are looked at, and then have so many levels."""

    pixels: Pixels
    steps: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.pixels.shape

    def at(self, rows: Sequence[int]) -> _Levels:
        return _Levels(self.pixels.at(rows), self.steps)

    def decode(self) -> Tensor:
        return _on_levels(self.pixels.decode(), self.steps)


def read_victim(
    model: str | nn.Module | Victim, device: str | None, access: str | None = None
) -> Victim:
    """The victim, from its text or as it is; a named one goes to a GPU where there is one.

    What an address answers is what is asked of it, where its own text does not say.
    """
    if not isinstance(model, str):
        victim = Classifier.of(model)
        return victim if device is None else _moved(victim, device)
    if access in ("score", "decision") and model.startswith(("http://", "https://")):
        source, layers = split_layers(model)
        model = "+".join([with_argument(source, "access", access), *layers])
    victim = load_victim(model, device)
    # One behind a wall computes nothing here, and what attacks do here is little.
    if device is None and torch.cuda.is_available() and not victim.metered:
        victim = _moved(victim, "cuda")
    return victim


def as_granted(threat: Threat, access: str | None, victim: Victim) -> Threat:
    """The threat with the access that the victim grants: no more can be asked of it."""
    if threat.access <= victim.access:
        return threat
    if access is not None or threat.access < Access.GRADIENT:
        raise AccessError(
            f"{threat.access} access was asked for, but {name_of(victim)} grants {victim.access} "
            "access only"
        )
    return replace(threat, access=victim.access)


def know_classes(victim: Victim, data: Data) -> None:
    """Tell a victim that answers labels, or the first few, how many classes the data have."""
    inner = walled(victim)
    if inner is not None and (inner.access is Access.DECISION or inner.reader.top_k is not None):
        inner.declare(max(data.classes, int(data.labels.max()) + 1, 2))


def usual_suite(threat: Threat) -> str | None:
    """The suite for an attacker without gradients, where nobody says what to run."""
    name = str(threat.access)
    return name if threat.access < Access.GRADIENT and name in SUITES else None


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


def shards_of(data: Data, size: int) -> list[Callable[[], Data]]:
    """What makes each shard of the data when it is needed."""
    rows = torch.arange(len(data))
    return [partial(data.take, part) for part in rows.split(size)]  # type: ignore[no-untyped-call]


def plan_of(
    victim: Victim,
    data: Data,
    threat: Threat,
    attacks: Iterable[Attack],
    chained: bool,
    asked: Asked,
    in_box: bool,
    aids: Aids,
) -> Plan:
    """Check that everything fits, and write down what the records will be made of."""
    scaled = victim.box != (0.0, 1.0) and not in_box
    first = boxed(data.take(torch.arange(min(8, len(data)))), victim, scaled)
    threat.check_units(victim.box, first.images[0].numel())
    weapons = [_weapon(victim, attack, threat, first, asked, aids) for attack in attacks]
    classes = _probe(victim, first)
    _fits(data, classes)
    shards = _described(data, asked.shard, victim, scaled)
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
            draws=DRAWS if victim.stochastic else 1,
            undefended=asked.textual and is_undefended(asked.model),
        ),
        data=Sample(
            name=data.name,
            split=data.split,
            count=len(data),
            total=data.total,
            seed=asked.seed if len(data) < data.total else None,
            # Undecoded images are looked at once for their shards; that says as much.
            digest=data.digest if data.decoded else key_of({"shards": [s.digest for s in shards]}),
            class_names=tuple(data.class_names),
            shape=tuple(first.images.shape[1:]),
            scaled=scaled,
            standard=_standard(data.name, threat),
        ),
        threat=str(threat),
        chained=chained,
        weapons=tuple(weapons),
        shards=shards,
        no_curve=_no_curve(asked, threat, victim),
    )


def _no_curve(asked: Asked, threat: Threat, victim: Victim) -> str | None:
    """Why no curve of accuracy against the budget is to be expected, if none is."""
    if asked.curve == "none":
        return "It was not asked for."
    if threat.eps is None:
        return "Every attack looks for the smallest change: their own distances are the curve."
    if victim.stochastic:
        return "The smallest change that fools a model which answers by chance is one draw of luck."
    if asked.substitute:
        return "What is crafted on a substitute is tried once: a search would be many queries."
    if asked.queries is not None:
        return "A search for the smallest change takes more answers than were allowed."
    if victim.metered and asked.curve != "full":
        return "A search for the smallest change takes many answers, which are counted here."
    return None


def _described(data: Data, size: int, victim: Victim, scaled: bool) -> tuple[Shard, ...]:
    """The shards of the data, every sample checked on the way."""
    if len(torch.unique(data.ids)) < len(data):
        raise InputError("the ids are not unique: every sample needs an id of its own")
    shards = []
    for make in shards_of(data, size):
        part = make()
        samples = boxed(part, victim, scaled)
        check_grid(victim, samples)
        # The same pixels mean something else where they are brought to another box.
        digest = key_of({"digest": part.digest, "box": victim.box}) if scaled else part.digest
        shards.append(Shard(digest=digest, count=len(part)))
    return tuple(shards)


def check_fit(
    victim: Victim,
    attack: Attack,
    threat: Threat,
    samples: Samples,
    queries: int | None,
    seed: int,
    aids: Aids,
) -> tuple[Victim, Threat, Keep, Leave]:
    """Refuse what does not fit; whom the attack asks, within what, and on which terms."""
    searched, on = victim, threat
    keep, leave = terms(victim, attack, threat)
    if aids.crafts(attack):
        assert aids.substitute is not None
        searched, on = aids.substitute, terms_on(threat)
        if threat.eps is not None:
            # What just crosses the substitute's boundary does not cross another's.
            keep, leave = "last", "end"
    check(
        searched,
        attack,
        on,
        samples,
        keep=keep,
        leave=leave,
        queries=None if searched is not victim else queries,
        seed=seed,
        substitute=aids.substitute,
    )
    return searched, on, keep, leave


def _weapon(
    victim: Victim, attack: Attack, threat: Threat, samples: Samples, asked: Asked, aids: Aids
) -> Weapon:
    searched, on, keep, leave = check_fit(
        victim, attack, threat, samples, asked.queries, asked.seed, aids
    )
    steps = getattr(attack, "steps", None)
    return Weapon(
        text=str(attack),
        told=told(attack),
        spelled=spelled(attack),
        # Equal budgets may be written in several ways; the key knows one.
        threat=str(replace(on, written=None)),
        keep=keep,
        leave=leave,
        queries=None if searched is not victim else asked.queries,
        steps=steps if isinstance(steps, int) else None,
        restarts=int(getattr(attack, "restarts", 1)),
        plain=isinstance(attack, Ascent) and asked.queries is None and searched is victim,
        one_step=attack.one_step and not isinstance(attack, Combined),
        passes=passes(attack),
        access=str(attack.access),  # type: ignore[arg-type]  # one of the three
        source=_digest(searched) if searched is not victim else None,
        advice=_digest(aids.substitute) if aids.advises(attack) and aids.substitute else None,
        starts=aids.starts.digest if aids.begins(attack) and aids.starts else None,
    )


def passes(attack: Attack) -> int:
    """About how many answers an attack takes for a sample it does not break: for time left."""
    inner = [passes(part) for part in getattr(attack, "parts", ())]
    match attack:
        case Minimal():
            return 10 * inner[0]
        case EachTarget():
            return (attack.count or 9) * inner[0]
        case Repeat():
            return attack.times * inner[0]
        case Averaged():
            return attack.count * inner[0]
    if inner:
        return sum(inner)
    steps, again = getattr(attack, "steps", 100), getattr(attack, "restarts", 1)
    return max(1, int(steps) * int(again) * int(getattr(attack, "targets", 1)))


def _probe(victim: Victim, samples: Samples) -> int:
    """How many classes the victim answers with; whether it takes such images at all."""
    with victim.held(), plainly(victim.device), torch.no_grad(), accounted(victim, "probe"):
        oracle = Oracle(victim, pad=False)
        dice = Dice.throw(0, samples.ids.to(victim.device)) if victim.stochastic else None
        scores = oracle.logits(samples.images.to(victim.device), dice)
        answers(victim, scores)
        return int(scores.shape[1])


def _fits(data: Data, classes: int) -> None:
    highest = int(data.labels.max())
    if highest >= classes:
        row = int(data.labels.argmax())
        raise InputError(
            f"the data have the label {highest} (sample {int(data.ids[row])}), but the model "
            f"answers {classes} classes, 0 to {classes - 1}: these data are not what it was "
            "trained on, or their labels start at 1"
        )


def with_curve(
    store: Store, victim: Victim, data: Data, plan: Plan, attacks: Mapping[str, Attack], aids: Aids
) -> tuple[Plan, Attack | None, Data]:
    """The plan with a search for the smallest change by the strongest attack, where one fits."""
    best = strongest(gather(store, plan)) if plan.no_curve is None else None
    if best is None:
        return plan, None, data
    attack, subset, tolerance = attacks[best.text], data, Minimal.tolerance
    if plan.asked.curve == "short":
        attack, tolerance = _with_steps(attack, CURVE_STEPS), CURVE_TOLERANCE
        if len(data) > CURVE_SAMPLES:
            subset = data.subset(CURVE_SAMPLES, plan.asked.seed)
    searcher = attack if attack.minimal else Minimal(attack, tolerance=tolerance)
    free = replace(Threat.parse(plan.threat), eps=None, written=None)
    few = boxed(data.take(torch.arange(1)), victim, plan.data.scaled)
    try:
        weapon = _weapon(victim, searcher, free, few, plan.asked, aids)
    except BesiegeError as problem:  # the other figures stand without a curve
        said = f"The strongest attack cannot search: {problem}"
        return plan.model_copy(update={"curve": None, "no_curve": said}), None, data
    size = min(plan.asked.shard, CURVE_SHARD)
    shards = _described(subset, size, victim, plan.data.scaled)
    curve = Curve(weapon=weapon, shards=shards)
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


def name_of(victim: Victim) -> str:
    """What reports call a victim."""
    return str(getattr(victim, "name", victim))


def _parameters(victim: Victim) -> int | None:
    inner = victim
    while not hasattr(inner, "module") and hasattr(inner, "victim"):
        inner = inner.victim
    module = getattr(inner, "module", None)
    if not isinstance(module, nn.Module):
        return None
    return sum(parameter.numel() for parameter in module.parameters())


def check_numbers(**given: object) -> None:
    """Refuse what is no whole number from 1, or for the seed no whole number; None is unset."""
    for name, value in given.items():
        if value is None and name != "seed":
            continue
        if type(value) is not int or (name != "seed" and value < 1):
            least = "" if name == "seed" else " from 1"
            raise InputError(f"{name} is {value!r}, but a whole number{least} is needed")


def command_of(asked: Asked) -> str:
    """What asks the same again: a command where everything has a name, else a call."""
    if not asked.textual:
        given = [f"threat={asked.threat!r}"]
        given.append(f"suite={asked.suite!r}" if asked.suite else f"attacks={[*asked.attacks]!r}")
        usual: dict[str, object] = {"split": "test", "queries": None, "count": None}
        usual |= {"seed": 0, "shard": SHARD, "curve": "short", "substitute": (), "fuse": "logits"}
        given += [f"{k}={getattr(asked, k)!r}" for k, v in usual.items() if getattr(asked, k) != v]
        return f"besiege.evaluate(<{asked.model}>, <{asked.data}>, {', '.join(given)})"
    parts = ["besiege", "evaluate", asked.model, "--data", asked.data, "--threat", asked.threat]
    if asked.suite is not None:
        parts += ["--suite", asked.suite]
    else:
        parts += ["--attacks", ", ".join(asked.attacks)]
    for one in asked.substitute:
        parts += ["--substitute", one]
    if len(asked.substitute) > 1 and asked.fuse != "logits":
        parts += ["--fuse", asked.fuse]
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
