"""Traces of the presets: ``python -m tests.presets.traces`` records those that have none yet.

A trace is the preset with all its parameters, and what a short run of it finds on a small network
in float64. Nobody may change one: that would be another method under the paper's name.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from besiege.attacks.attack import Attack, parse, spelled
from besiege.attacks.combine import Combined
from besiege.core.attack_registry import ATTACKS
from besiege.core.knowledge import Knowledge
from besiege.core.presets import PRESETS, Preset
from besiege.core.samples import Samples
from besiege.core.threat import L0, Access, Threat
from besiege.evaluation import craft
from besiege.models import Classifier
from besiege.testing.trial import shortened

FILE = Path(__file__).parent / "traces.json"
SHORT = {"steps": 8, "rounds": 2, "restarts": 2, "targets": 2}
QUERIES = 1500
"""Enough for query-based attacks to adapt their steps and to fall back."""
_LONG = {"steps": 60, "rounds": 7}
OTHERS = {"uap": {"steps": 2}, **dict.fromkeys(("cw", "ead", "blb", "optmargin"), _LONG)}
"""Attacks whose steps are passes over all images, and those that need several weights."""
BUDGETS = {"linf": 0.1, "l2": 0.6, "l1": 3.0, "l0": 8}


@dataclass(frozen=True)
class Scene:
    """A network, its images, and what is changed of a preset so that some part of it shows."""

    about: str = ""
    side: int = 8
    channels: int = 1
    classes: int = 5
    rows: int = 4
    rounded: float = 0.0
    """Logits are multiples of this number."""
    scale: float = 1.0
    """Factor of the budget."""
    queries: int = QUERIES
    given: tuple[tuple[str, Any], ...] = ()


PLAIN = Scene()


def _large(**given: Any) -> Scene:
    """Images that are larger than the grids of attacks meant for ImageNet."""
    scale, queries = given.pop("scale", 1.0), given.pop("queries", QUERIES)
    about = ", ".join(("96 x 96 x 3", *(f"{name} {value}" for name, value in given.items())))
    return Scene(about, 96, 3, 5, 2, scale=scale, queries=queries, given=tuple(given.items()))


FURTHER: dict[str, tuple[Scene, ...]] = {
    "zoo@chen-imagenet": (
        _large(coordinates=40, steps=14, rate=0.5),
        Scene("rate 0.1", queries=10**5, given=(("steps", 30), ("rate", 0.1))),
    ),
    "zoo@chen-imagenet-targeted": (
        _large(coordinates=40, steps=14, rate=3.0, first=1000.0, grow=(3, 5)),
    ),
    "zoo@chen-mnist": (
        Scene(
            "10 weights, abort 2",
            queries=10**5,
            given=(("rounds", 10), ("steps", 6), ("abort", 2), ("rate", 0.1)),
        ),
    ),
    "evolutionary@dong": (_large(queries=300),),
    "geoda@rahmati": (_large(queries=400),),
    "nattack@li": (_large(scale=0.2, population=30, steps=8),),
    "prgf@cheng-data": (_large(scale=0.2, queries=400),),
    "bandits@ilyas": (_large(scale=0.2, queries=200),),
    "bandits@ilyas-l2": (_large(scale=0.2, queries=200),),
    "nes@ilyas": (
        Scene("many plateaus", scale=0.05, queries=10**5, given=(("pairs", 2), ("steps", 90))),
    ),
    "rgf@cheng": (Scene("rounded logits", rounded=0.05, scale=0.2),),
    "apgdt@croce": (Scene("12 classes", classes=12, scale=0.3),),
}
"""What 8 x 8 images and short runs do not reach: grids, growth, aborts, floors, many targets."""


class Rounded(nn.Module):
    """Logits as multiples of a number: small differences are not seen."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, logits: Tensor) -> Tensor:
        return torch.round(logits / self.step) * self.step


@cache
def network(seed: int = 0, scene: Scene = PLAIN) -> Classifier:
    """A small network in float64, of fixed weights."""
    draw = torch.Generator().manual_seed(seed)
    if scene.side == PLAIN.side:
        first, many = nn.Conv2d(scene.channels, 6, 3, padding=1), 6 * scene.side**2
    else:
        first, many = nn.Conv2d(scene.channels, 6, 8, stride=8), 6 * (scene.side // 8) ** 2
    net = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(many, scene.classes))
    for weights in net.parameters():
        fan = weights[0].numel() if weights.dim() > 1 else 16
        weights.data = torch.randn(weights.shape, generator=draw) * 1.5 / fan**0.5
    if scene.rounded:
        net.append(Rounded(scene.rounded))
    return Classifier(net.double().eval().requires_grad_(False), classes=scene.classes)


@cache
def samples(width: float = 1.0, scene: Scene = PLAIN) -> Samples:
    """Images with saturated pixel values, labelled by the network."""
    shape = (scene.rows, scene.channels, scene.side, scene.side)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    images = (1.4 * images - 0.2).clamp(0, 1)
    labels = network(0, scene)(images.double()).argmax(1)
    return Samples.of(images * width, labels, box=(0.0, width), classes=scene.classes)


class Divided(nn.Module):
    """A network of images in [0, 1] for pixel values from 0 to `width`."""

    def __init__(self, net: nn.Module, width: float) -> None:
        super().__init__()
        self.net, self.width = net, width

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / self.width)  # type: ignore[no-any-return]


@cache
def victim(seed: int = 0, width: float = 1.0, scene: Scene = PLAIN) -> Classifier:
    """The network, which receives pixel values from 0 to `width`."""
    plain = network(seed, scene)
    if width == 1.0:
        return plain
    net = Divided(plain.module, width).eval()
    return Classifier(net, box=(0.0, width), classes=scene.classes)


def attack_of(preset: Preset) -> Attack:
    """The attack of a preset; one made of attacks takes a PGD of four steps."""
    made = ATTACKS.get(preset.attack)
    combined = isinstance(made, type) and issubclass(made, Combined)
    return parse(f"{preset.name}(pgd@madry(steps=4))" if combined else preset.name)


def threats_of(
    preset: Preset, attack: Attack, width: float = 1.0, scene: Scene = PLAIN
) -> list[Threat]:
    """The norms it was published with, its first goal, and budgets that fit the network."""
    published = [Threat.parse(text) for text in preset.threats]
    goal, found = published[0].goal, []
    for norm in dict.fromkeys(threat.norm for threat in published):
        threat = Threat.parse(f"{norm}:{BUDGETS[str(norm)]}")
        radius = threat.radius * scene.scale * (1.0 if norm is L0 else width)
        eps = None if attack.minimal else radius
        found.append(replace(threat, eps=eps, goal=goal, written=None))
    return found


def trace(preset: Preset, width: float = 1.0) -> dict[str, Any]:
    """The parameters of a preset, and what a short run of it finds in every norm.

    Pixel values are from 0 to `width`; sizes are in units of it.
    """
    attack = attack_of(preset)
    named, threats = (threats_of(preset, attack, wide) for wide in (1.0, width))
    runs = {
        str(name): _run(preset, attack, threat, width)
        for name, threat in zip(named, threats, strict=True)
    }
    for scene in FURTHER.get(preset.name, ()):
        runs[scene.about] = further(preset, attack, scene, width)
    return {"attack": spelled(attack), "runs": runs}


def further(preset: Preset, attack: Attack, scene: Scene, width: float = 1.0) -> dict[str, Any]:
    """A run in which parts of a preset show that others do not reach."""
    threat = threats_of(preset, attack, width, scene)[0]
    some: Any = replace(attack, **dict(scene.given))  # type: ignore[type-var]
    return _run(preset, some, threat, width, scene)


def _run(
    preset: Preset, attack: Attack, threat: Threat, width: float, scene: Scene = PLAIN
) -> dict[str, Any]:
    substitute = victim(1, width, scene) if attack.needs_substitute else None
    if attack.access is Access.GRADIENT:
        short = SHORT | OTHERS.get(preset.attack, {})
        short |= {"targets": 99} if scene.classes > PLAIN.classes else {}
        attack = shortened(attack, short)
    given = samples(width, scene)
    crafted = craft(
        victim(0, width, scene),
        attack,
        given,
        threat,
        keep="last" if not attack.minimal else "smallest",
        leave="end",
        queries=None if attack.access is Access.GRADIENT else scene.queries,
        knowledge=Knowledge(given if attack.uses_starts else None, substitute),
    )
    moved = (crafted.images - given.images).double().flatten(1) / width
    along = torch.rand(moved.shape[1], generator=torch.Generator().manual_seed(5)).double()
    return {
        "success": crafted.success.tolist(),
        "passes": (crafted.forwards + crafted.backwards + crafted.queries).tolist(),
        "size": [round(size, 5) for size in moved.norm(dim=1).tolist()],
        "along": [round(size, 5) for size in (moved @ along).tolist()],
    }


def recorded() -> dict[str, Any]:
    """The traces on file."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def main(*names: str) -> None:
    """Record presets without a trace, and those that are named."""
    found = {name: old for name, old in recorded().items() if name in PRESETS}
    for name, preset in PRESETS.items():
        if name not in found or name in names:
            print(name, flush=True)
            found[name] = trace(preset)
    FILE.write_text(
        "{\n"
        + ",\n".join(f"{json.dumps(n)}: {json.dumps(t)}" for n, t in sorted(found.items()))
        + "\n}\n"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
