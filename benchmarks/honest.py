"""Honest models in the forms that users give them: none may be called an impostor.

`examination.py --honest` runs it. Models are those of the zoo and the public weights at
hand; forms are number types, memory layouts and compilation.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import besiege
from besiege.bench.model_spec import fresh_copies
from besiege.core.errors import BesiegeError
from besiege.core.examination import Check
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data import Data
from besiege.data import load as load_data
from besiege.data.catalogue import CATALOGUE
from besiege.evaluation.examining import examine, examine_again
from besiege.models import PUBLIC, Classifier, load, zoo_names

THREATS = {"digits": "linf:0.1", "mnist": "linf:0.1", "fashion": "linf:0.1"}
"""Budgets by data set; others have 2/255."""
EXAMINED = 16
"""Images that `--before` uses, as an evaluation does."""


@dataclass(frozen=True)
class Honest:
    """A model, its data, and the height and width that images are cropped to."""

    model: str
    data: str
    crop: int | None = None

    @property
    def threat(self) -> str:
        return THREATS.get(self.data.partition("-")[0], "linf:2/255")

    def samples(self, count: int) -> Data:
        """So many images, or all where there are fewer."""
        most = CATALOGUE[self.data].images["test"] if self.data in CATALOGUE else count
        return load_data(self.data, count=min(count, most), crop=self.crop)


def models() -> Iterator[Honest]:
    """Every shipped and published model."""
    for name in zoo_names():
        yield Honest(f"zoo:{name}", name.partition("-")[0])
    for name, about in PUBLIC.items():
        yield Honest(f"public:{name}", about.data, about.crop)


class ChannelsLast(nn.Module):
    """A network whose weights and images are in the layout channels-last."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x.contiguous(memory_format=torch.channels_last))
        return logits


class Autocast(nn.Module):
    """A network with float32 weights that computes in bfloat16 where autocast chooses it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits: Tensor = self.net(x)
        return logits.float()


def _compiled(net: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    compiled: nn.Module = torch.compile(net)  # type: ignore[assignment]  # a module for a module
    return compiled


FORMS: Mapping[str, Callable[[nn.Module], nn.Module] | None] = {
    "float32": None,
    "float64": nn.Module.double,
    "bfloat16": nn.Module.bfloat16,
    "float16": nn.Module.half,
    "autocast": Autocast,
    "channels_last": ChannelsLast,
    "compiled": _compiled,
}
"""What a user does with a network before it is evaluated; None: it is named as a text."""


def in_form(model: str, form: str) -> str | Victim:
    """A model in a form: the text itself, or a classifier in memory."""
    change = FORMS[form]
    if change is None:
        return model
    victim = load(model)
    assert isinstance(victim, Classifier)
    changed = copy.copy(victim)
    changed.module = change(copy.deepcopy(victim.module))
    return changed


@dataclass(frozen=True)
class Row:
    """What one honest model in one form was told."""

    model: str
    form: str
    threat: str
    asked: int
    attacked: bool
    images: int
    robust: float | None
    stops: list[str]
    open: list[str]
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int, bool]:
        """What is not run twice."""
        return self.model, self.form, self.threat, self.asked, self.attacked

    def text(self) -> str:
        robust = "-" if self.robust is None else f"{100 * self.robust:.1f}"
        said = ", ".join(self.stops) or "no stop"
        said += "".join(f"; {one}" for one in self.open)
        return (
            f"{self.model:34s} {self.form:13s} {self.threat:10s} {self.images:5d} {robust:>6s} "
            f"{self.seconds:6.0f} s  {said}"
        )


def evaluated(one: Honest, form: str, threat: str, count: int, how: str | None) -> Row:
    """A whole evaluation under the default list."""
    began = time.process_time()
    data = one.samples(count)
    found = besiege.evaluate(
        in_form(one.model, form), data, threat=threat, curve=False, examine=how or "short"
    )
    stops = sorted({f.id for f in found.warnings if f.level == "stop"})
    checks = found.examination.checks if found.examination is not None else ()
    robust = None if found.robust is None else found.robust.value
    row = _row(one, form, threat, (count, True, len(data)), robust, stops, checks, began)
    doubts = found.examination.doubts if found.examination is not None else ()
    return replace(row, open=[*row.open, *(f"open warning: {rule}" for rule in doubts)])


def before(one: Honest, form: str, threat: str) -> Row:
    """The examination only, before and after no attack at all."""
    began = time.process_time()
    model, data = in_form(one.model, form), one.samples(EXAMINED)
    victim = load(model) if isinstance(model, str) else model
    fresh = fresh_copies(model, victim, None)
    samples, limits = Samples.of(data.images, data.labels), Threat.parse(threat)
    checks = [
        *examine(victim, samples, limits, fresh=fresh),
        *examine_again(victim, samples, limits, fresh=fresh),
    ]
    stops = sorted({c.rule for c in checks if c.outcome == "failed" and c.level == "stop"})
    return _row(one, form, threat, (EXAMINED, False, len(data)), None, stops, checks, began)


def _row(
    one: Honest,
    form: str,
    threat: str,
    counts: tuple[int, bool, int],
    robust: float | None,
    stops: list[str],
    checks: Sequence[Check],
    began: float,
) -> Row:
    named = [c for c in checks if c.outcome in ("failed", "not run")]
    left = [f"{c.name}: {c.outcome}, {c.number} {c.seen}"[:160] for c in named]
    seconds = round(time.process_time() - began, 1)
    return Row(Path(one.model).name, form, threat, *counts, robust, stops, left, seconds)


def honest(
    chosen: Sequence[Honest],
    forms: Sequence[str],
    threat: str | None,
    count: int,
    how: str | None,
    *,
    attacked: bool = True,
    log: Path | None = None,
) -> list[Row]:
    """Findings of level stop on honest models: there must be none. Rows in `log` are kept."""
    kept = _kept(log)
    rows: list[Row] = []
    for one in chosen:
        for form in forms:
            limits = threat or one.threat
            asked = count if attacked else EXAMINED
            row = kept.get((Path(one.model).name, form, limits, asked, attacked))
            if row is None:
                try:
                    row = (
                        evaluated(one, form, limits, count, how)
                        if attacked
                        else before(one, form, limits)
                    )
                except BesiegeError as problem:
                    print(f"{one.model:34s} {form:13s} refused: {str(problem)[:200]}", flush=True)
                    continue
                print(row.text(), flush=True)
                if log is not None:
                    with log.open("a") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
            rows.append(row)
    stopped, left = sum(bool(row.stops) for row in rows), sum(bool(row.open) for row in rows)
    print(
        f"{len(rows)} rows, {stopped} with a stop, {left} with a check or a warning that is open\n"
    )
    return rows


def _kept(log: Path | None) -> dict[tuple[str, str, str, int, bool], Row]:
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {row.key: row for row in rows}
