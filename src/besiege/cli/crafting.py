"""The work of ``besiege attack``: craft, judge, round to a file's pixels, judge again, write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.bench.work_estimate import Event
from besiege.cli.pictures import Inputs, file_names, write_exact, write_png
from besiege.core import presets
from besiege.core.ball import ball
from besiege.core.errors import Finding, InputError, ThreatError
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples, in_box
from besiege.core.threat import Goal, Threat
from besiege.core.victim import Victim
from besiege.data import Data
from besiege.evaluation.approach import approach
from besiege.evaluation.attacking import craft_and_judge
from besiege.evaluation.crafting import Crafted
from besiege.evaluation.judging import judge, predict_clean
from besiege.evaluation.transfer import bare_of
from besiege.evaluation.verdicts import Verdicts

_AT_A_TIME = 250
_LEVELS = 255


@dataclass(frozen=True)
class Outcome:
    """The result of an attack on some images, in the order of their ids.

    Attributes
    ----------
    rows : dict of Tensor
        One value per image: ids, labels, before (the prediction on the clean image), after,
        confidence, correct, success, distance, forwards, backwards, queries, and rounded (whether
        the image in the PNG is a success too).
    images, received : Tensor
        The images as crafted, and as a PNG stores them.
    findings : tuple of Finding
        Warnings about the result.
    """

    model: str
    attack: Attack
    threat: Threat
    seed: int
    inputs: Inputs
    box: tuple[float, float]
    rows: Mapping[str, Tensor]
    images: Tensor
    received: Tensor
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def count(self) -> int:
        return len(self.images)

    @property
    def broken(self) -> int:
        return int(self.rows["success"].sum())

    @property
    def survived(self) -> int:
        """Number of successes that are still successes after rounding."""
        return int((self.rows["success"] & self.rows["rounded"]).sum())

    def plain(self, files: Mapping[int, str]) -> dict[str, Any]:
        """All of it as plain values, with the file each image was written to."""
        listed = []
        for row in range(self.count):
            line: dict[str, Any] = {n: column[row].item() for n, column in self.rows.items()}
            number = line.pop("ids")
            if line["distance"] == float("inf"):
                line["distance"] = None
            if math.isnan(line["confidence"]):  # the model returns labels only
                line["confidence"] = None
            listed.append(
                {"name": self.inputs.names[number], "file": files.get(number), "id": number, **line}
            )
        return {
            "model": self.model,
            "attack": str(self.attack),
            "threat": str(self.threat),
            "seed": self.seed,
            "labels": self.inputs.labelled,
            "count": self.count,
            "correct": int(self.rows["correct"].sum()),
            "broken": self.broken,
            "broken_after_rounding": self.survived,
            "seconds": self.seconds,
            "warnings": [vars(finding) for finding in self.findings],
            "images": sorted(listed, key=lambda line: str(line["name"])),
        }


def besieged(
    victim: Victim,
    model: str,
    inputs: Inputs,
    attack: Attack,
    threat: Threat,
    *,
    target: int | None = None,
    seed: int = 0,
    queries: int | None = None,
    batch: int | None = None,
    watch: Callable[[Event], None] | None = None,
    written: str = "",
) -> Outcome:
    """Attack images and judge the result, both exact and as a PNG stores it."""
    target = threat.target if target is None else target
    threat = _checked(threat, target, victim, math.prod(inputs.data.shape))
    data = _labelled(victim, inputs.data, seed)
    known = Knowledge()
    if attack.oblivious:
        first = _samples(victim, data.take(torch.arange(1)), None)
        known = Knowledge(bare=bare_of(victim, first.images))
    how = approach(victim, attack, threat, known, queries=queries)
    parts: list[dict[str, Tensor]] = []
    findings = dict.fromkeys(presets.findings(written, threat, victim.box))
    seconds, done = 0.0, 0
    for shard in data.shards(_AT_A_TIME):
        samples = _samples(victim, shard, target)
        crafted, verdicts = craft_and_judge(
            victim, attack, samples, threat, how, seed=seed, batch=batch
        )
        parts.append(_rows(victim, crafted, verdicts, samples, threat, seed))
        findings |= dict.fromkeys((*crafted.findings, *verdicts.findings))
        seconds += crafted.seconds
        done += len(shard)
        if watch is not None:
            watch(Event(done, len(data), str(attack)))
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    outcome = Outcome(
        model,
        attack,
        threat,
        seed,
        replace(inputs, data=data),
        victim.box,
        {name: column for name, column in whole.items() if name not in ("images", "received")},
        whole["images"],
        whole["received"],
        (),
        seconds,
    )
    return replace(outcome, findings=(*findings, *_rounding(outcome)))


def _checked(threat: Threat, target: int | None, victim: Victim, values: int) -> Threat:
    threat.check_units(victim.box, values)
    if target is None:
        if threat.goal is Goal.GIVEN:
            raise ThreatError("the goal is 'targeted:given': name the class with --target")
        return threat
    if threat.goal not in (Goal.UNTARGETED, Goal.GIVEN) or threat.target not in (None, target):
        raise ThreatError(f"--target and the goal '{threat.aim}' disagree: give one")
    return replace(threat, goal=Goal.GIVEN)


def _labelled(victim: Victim, data: Data, seed: int) -> Data:
    """The data, with the model's predictions as labels where there are none."""
    if not bool((data.labels < 0).any()):
        return data
    seen = []
    for shard in data.shards(_AT_A_TIME):
        blank = replace(shard, labels=torch.zeros_like(shard.labels))
        seen.append(
            predict_clean(victim, _samples(victim, blank, None), seed=seed).prediction.cpu()
        )
    return replace(data, labels=torch.cat(seen))


def _samples(victim: Victim, data: Data, target: int | None) -> Samples:
    images = in_box(data.images, victim.box)
    targets = None
    if target is not None:
        if bool((data.labels == target).any()):
            row = int((data.labels == target).nonzero()[0, 0])
            raise InputError(
                f"--target {target} is the label of an image (id {int(data.ids[row])}): choose "
                "another class, or leave those images out"
            )
        targets = torch.full_like(data.labels, target)
    samples = Samples.of(
        images, data.labels, box=victim.box, classes=victim.classes, ids=data.ids, targets=targets
    )
    return samples.to(victim.device)


def _rows(
    victim: Victim,
    crafted: Crafted,
    verdicts: Verdicts,
    samples: Samples,
    threat: Threat,
    seed: int,
) -> dict[str, Tensor]:
    """The reported values of every image, as crafted and as a PNG stores it."""
    width = victim.box[1] - victim.box[0]
    around = ball(threat.norm, samples.images, threat.radius, victim.box, width / _LEVELS)
    received = around.received(crafted.images)
    again = judge(victim, replace(crafted, images=received), samples, threat, seed=seed)
    # Where clean and adversarial image have 8-bit pixels, the budget counts whole grey levels.
    within = torch.where(around.boxed(samples.images), around.inside(received), again.within)
    distance = verdicts.distance[threat.norm]
    made = {
        "ids": samples.ids,
        "labels": samples.labels,
        "before": predict_clean(victim, samples, seed=seed).prediction,
        "after": verdicts.prediction,
        "confidence": verdicts.certainty.confidence,
        "correct": verdicts.correct,
        "success": verdicts.success,
        "distance": distance.where(verdicts.success, torch.full_like(distance, torch.inf)),
        "rounded": again.valid & again.reached & within,
        "forwards": crafted.forwards,
        "backwards": crafted.backwards,
        "queries": crafted.queries,
        "images": crafted.images,
        "received": received,
    }
    return {name: value.cpu() for name, value in made.items()}


def _rounding(outcome: Outcome) -> list[Finding]:
    lost = outcome.broken - outcome.survived
    if lost * 100 <= outcome.count:
        return []
    return [
        Finding(
            "W18",
            f"{lost} of {outcome.broken} successes do not survive the rounding of pixel values to "
            "multiples of 1/255 that a PNG needs.",
            "Their PNG files are not adversarial: --exact npz keeps the exact images.",
            "note",
        )
    ]


def write(
    outcome: Outcome, out: Path, *, png: bool, exact: str | None, every: bool
) -> dict[str, Any]:
    """Write images and ``results.json``, and return the content of the latter."""
    if png and outcome.images.shape[1] not in (1, 3):
        raise InputError(
            f"the images have {outcome.images.shape[1]} channels, and a PNG has 1 or 3: add "
            "--no-png --exact npz"
        )
    out.mkdir(parents=True, exist_ok=True)
    files: dict[int, str] = {}
    if png:
        names = file_names(outcome.inputs.names)
        wanted = torch.ones_like(outcome.rows["success"]) if every else outcome.rows["success"]
        for row in wanted.nonzero()[:, 0].tolist():
            number = int(outcome.rows["ids"][row])
            files[number] = names[number]
            write_png(out / names[number], outcome.received[row], outcome.box)
    if exact is not None:
        kept = {"x": outcome.images, "y": outcome.rows["labels"], "ids": outcome.rows["ids"]}
        write_exact(out / f"adversarial.{exact}", {**kept, "success": outcome.rows["success"]})
    summary = outcome.plain(files)
    (out / "results.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary
