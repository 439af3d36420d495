"""Traces of the presets: ``python -m tests.presets.traces`` records those that have none yet.

A trace is the preset with all its parameters, and what a short run of it finds on a small network
in float64. Nobody may change one: that would be another method under the paper's name.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
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
ROWS = 4
BUDGETS = {"linf": 0.1, "l2": 0.6, "l1": 3.0, "l0": 8}


@cache
def network(seed: int = 0) -> Classifier:
    """A small network in float64, of fixed weights."""
    draw = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 64, 5)
    )
    for weights in net.parameters():
        fan = weights[0].numel() if weights.dim() > 1 else 16
        weights.data = torch.randn(weights.shape, generator=draw) * 1.5 / fan**0.5
    return Classifier(net.double().eval().requires_grad_(False), classes=5)


@cache
def samples(width: float = 1.0) -> Samples:
    """Images with saturated pixel values, labelled by the network."""
    images = torch.rand(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    images = (1.4 * images - 0.2).clamp(0, 1)
    labels = network()(images.double()).argmax(1)
    return Samples.of(images * width, labels, box=(0.0, width), classes=5)


class Divided(nn.Module):
    """A network of images in [0, 1] for pixel values from 0 to `width`."""

    def __init__(self, net: nn.Module, width: float) -> None:
        super().__init__()
        self.net, self.width = net, width

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x / self.width)  # type: ignore[no-any-return]


@cache
def victim(seed: int = 0, width: float = 1.0) -> Classifier:
    """The network, which receives pixel values from 0 to `width`."""
    plain = network(seed)
    if width == 1.0:
        return plain
    return Classifier(Divided(plain.module, width).eval(), box=(0.0, width), classes=5)


def attack_of(preset: Preset) -> Attack:
    """The attack of a preset; one made of attacks takes a PGD of four steps."""
    made = ATTACKS.get(preset.attack)
    combined = isinstance(made, type) and issubclass(made, Combined)
    return parse(f"{preset.name}(pgd@madry(steps=4))" if combined else preset.name)


def threats_of(preset: Preset, attack: Attack, width: float = 1.0) -> list[Threat]:
    """The norms it was published with, its first goal, and budgets that fit the network."""
    published = [Threat.parse(text) for text in preset.threats]
    goal, found = published[0].goal, []
    for norm in dict.fromkeys(threat.norm for threat in published):
        threat = Threat.parse(f"{norm}:{BUDGETS[str(norm)]}")
        eps = None if attack.minimal else threat.radius * (1.0 if norm is L0 else width)
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
    return {"attack": spelled(attack), "runs": runs}


def _run(preset: Preset, attack: Attack, threat: Threat, width: float) -> dict[str, Any]:
    substitute = victim(1, width) if attack.needs_substitute else None
    if attack.access is Access.GRADIENT:
        attack = shortened(attack, SHORT | OTHERS.get(preset.attack, {}))
    given = samples(width)
    crafted = craft(
        victim(0, width),
        attack,
        given,
        threat,
        keep="last" if not attack.minimal else "smallest",
        leave="end",
        queries=None if attack.access is Access.GRADIENT else QUERIES,
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
