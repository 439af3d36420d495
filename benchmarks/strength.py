"""How many images are left standing: our attacks against other libraries' at equal steps.

python benchmarks/strength.py [--net NAME ...] [--eps linf:2/255 ...] [--attack NAME ...]

Steps, step sizes and starts are equal. A peer's images are not projected, but an image outside the
budget (by more than 1e-5) or the box does not count as broken. `peer` is the best of the installed
ones; `ahead` is by how many images it leaves fewer standing than this library does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import besiege
from besiege.attacks.attack import parse
from besiege.core.ball import distances
from besiege.core.threat import Threat

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Bench, bench, finish, parser
from benchmarks.peers import peers

ATTACKS = ("fgsm", "rfgsm", "bim", "pgd", "mim", "dim", "tim", "sinifgsm")
STEPS = 10
THREATS = {
    "resnet20": ("linf:1/255", "linf:2/255", "l2:0.1", "l1:2"),
    "cnn_a": ("linf:2/255", "linf:8/255", "l2:0.25", "l2:0.5", "l1:6"),
    "digits-natural": ("linf:0.05", "linf:0.1", "l2:0.5", "l1:2"),
    "digits-pgd-at": ("linf:0.1", "linf:0.2", "l2:1", "l1:4"),
}


def text(attack: str) -> str:
    """The attack here with the same steps and step size as the peers'."""
    if attack in ("fgsm", "rfgsm"):
        return attack
    return f"{attack}(steps={STEPS}, schedule=spread({path(attack)}))"


def path(attack: str) -> float:
    """The length of all steps together, in radii."""
    return {"fgsm": 1.0, "rfgsm": 0.5, "sinifgsm": 1.0}.get(attack, 2.5)


def right(b: Bench, threat: Threat, images: Tensor) -> int:
    """How many images are still classified correctly, or are not allowed."""
    size = distances(images - b.images, threat.norm)
    flat = images.flatten(1)
    allowed = (size <= threat.radius * (1 + 1e-5)) & (flat.amin(1) >= 0) & (flat.amax(1) <= 1)
    shown = torch.where(allowed.view(-1, 1, 1, 1), images, b.images)
    with torch.no_grad(), b.victim.held():
        logits = torch.cat([b.victim(part) for part in torch.split(shown, 64)])
        clean = torch.cat([b.victim(part) for part in torch.split(b.images, 64)])
    return int(((logits.argmax(1) == b.labels) & (clean.argmax(1) == b.labels)).sum())


def compare(b: Bench, told: str, attack: str) -> dict[str, Any] | None:
    """One attack under one threat: images left right by us and by each peer."""
    threat = Threat.parse(told)
    norm = str(threat.norm)
    chosen = parse(text(attack))
    if threat.norm not in chosen.norms:
        return None
    steps = 1 if attack in ("fgsm", "rfgsm") else STEPS
    step = path(attack) * threat.radius / steps
    result = besiege.attack(chosen, b.victim, b.images, b.labels, threat=threat)
    robust = int(result.verdicts.robust.sum())
    module, left = b.module(), {}
    for library, peer in peers(attack, norm).items():
        torch.manual_seed(0)
        try:
            parts = zip(torch.split(b.images, 64), torch.split(b.labels, 64), strict=True)
            images = torch.cat([peer(module, x, y, threat.radius, steps, step) for x, y in parts])
        except Exception as problem:  # a peer that cannot (grey images, for one) is no rival
            print(
                f"{library} {attack} {told}: {type(problem).__name__}: {problem}", file=sys.stderr
            )
            continue
        left[library] = right(b, threat, images.detach())
    best = min(left.values(), default=None)
    return {
        "net": b.name,
        "threat": told,
        "attack": attack,
        "besiege": robust,
        "peer": "" if best is None else best,
        "ahead": "" if best is None else max(0, robust - best),
        "each": " ".join(f"{k}={v}" for k, v in left.items()),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--eps", action="append", metavar="THREAT", help="such as linf:2/255")
    options.add_argument("--attack", action="append", choices=ATTACKS)
    options.set_defaults(count=200)
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in given.net or THREATS:
        b = bench(name, given.count)
        for threat in given.eps or THREATS[name]:
            for attack in given.attack or ATTACKS:
                row = compare(b, threat, attack)
                if row is not None:
                    rows.append(row)
    finish(f"strength, {given.count} images, {STEPS} steps", rows, 1, given.json)


if __name__ == "__main__":
    main()
