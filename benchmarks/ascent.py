"""What an attack costs: over its floor, against other libraries, and with the twin.

python benchmarks/ascent.py [--what floor|peers|twin|all] [--net NAME ...] [--json FILE]

floor   PGD-40 that lets no row leave, over its bare passes, for linf, l2 and l1;
peers   PGD-40 to the same verdict: rows leave at success here, which no peer does (peers.txt);
twin    forwards and gradients of the twin against the original, and whole attacks at equal passes.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import besiege
from besiege.attacks.attack import parse
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation.crafting import craft
from besiege.models import twin

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import (
    Bench,
    Passes,
    bench,
    counted,
    cpu,
    finish,
    forward,
    gradient,
    parser,
    race,
)
from benchmarks.peers import peers

PATH = 2.5


def ours(b: Bench, norm: str, steps: int, **given: Any) -> Callable[[], object]:
    """The crafting of a PGD on a bench, ready to run; the judge is timed with the peers only."""
    samples = Samples.of(b.images, b.labels, box=b.victim.box, classes=10)
    threat, attack = Threat.parse(f"{norm}:{b.eps[norm]}"), parse(f"pgd(steps={steps})")
    return lambda: craft(b.victim, attack, samples, threat, **given)


def over_floor(b: Bench, trials: int, steps: int) -> list[dict[str, Any]]:
    """Every norm's PGD over its bare passes, no row leaving."""
    rows = []
    for norm in ("linf", "l2", "l1"):
        with counted(b.victim) as passes:
            run = ours(b, norm, steps, leave="end")
            timed = race({norm: (run, passes.copy)}, b.module(), b.images, trials)
        rows.append(
            {"what": "floor", "net": b.name, "who": f"besiege {norm}"} | timed[norm].facts()
        )
    return rows


def against_peers(b: Bench, norm: str, trials: int, steps: int) -> list[dict[str, Any]]:
    """PGD to the same verdict, ours with the judge's confirmation, in turns with the peers."""
    eps = b.eps[norm]
    step = PATH * eps / steps
    module, made = b.module(), {}

    def judged() -> None:
        made["besiege"] = besiege.attack(
            "pgd", b.victim, b.images, b.labels, threat=f"{norm}:{eps}", steps=steps
        ).images

    with counted(b.victim) as passes:
        contestants: dict[str, tuple[Callable[[], object], Callable[[], Passes]]] = {
            "besiege": (judged, lambda: passes)
        }
        for library, peer in peers("pgd", norm).items():

            def attack(library: str = library, peer: Any = peer) -> None:
                made[library] = peer(module, b.images, b.labels, eps, steps, step)

            contestants[library] = (attack, lambda: module.passes)
        # The floor's own passes go through another module, so that they are not counted.
        found = race(contestants, b.module(), b.images, trials)
    first = statistics.median(found["besiege"].seconds)
    return [
        {"what": "peers", "net": b.name, "who": f"{library} {norm}"}
        | timed.facts()
        | {
            "times_ours": statistics.median(timed.seconds) / first,
            "still_right": int((b.victim(made[library]).argmax(1) == b.labels).sum()),
        }
        for library, timed in found.items()
    ]


def with_twin(b: Bench, trials: int, steps: int) -> list[dict[str, Any]]:
    """The twin against the original: single passes by batch size, then a whole attack."""
    copy = twin(b.victim, b.images[:8])
    if copy is None:
        return [{"what": "twin", "net": b.name, "who": "has no twin"}]
    rows = []
    with b.victim.held(), copy.held():
        for ask in (forward, gradient):
            for size in (8, 32, 64, 128):
                x = b.images.repeat(2, 1, 1, 1)[:size].contiguous()
                ratios = [_quicker(ask, b.victim, copy, x) for _ in range(trials + 1)][1:]
                rows.append(
                    {"what": "twin", "net": b.name, "who": f"{ask.__name__} {size} rows"}
                    | {"quicker": statistics.median(ratios), "spread": [min(ratios), max(ratios)]}
                )
    plain, quick = (ours(b, "linf", steps, leave="end", twin=use) for use in (False, True))
    ratios = [cpu(plain) / cpu(quick) for _ in range(trials + 1)][1:]
    threat = f"linf:{b.eps['linf']}"
    told = [
        besiege.attack("pgd", b.victim, b.images, b.labels, threat=threat, steps=steps, twin=use)
        for use in (False, True)
    ]
    verdicts = " and ".join(f"{int(t.success.sum())} broken" for t in told)
    rows.append(
        {"what": "twin", "net": b.name, "who": f"PGD-{steps} ({verdicts}, judged)"}
        | {"quicker": statistics.median(ratios), "spread": [min(ratios), max(ratios)]}
    )
    return rows


def _quicker(ask: Callable[[Any, Tensor], None], original: Any, copy: Any, x: Tensor) -> float:
    many = max(1, 256 // len(x))
    slow, fast = (cpu(partial(ask, v, x), many) for v in (original, copy))
    return slow / fast


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--what", choices=("floor", "peers", "twin", "all"), default="floor")
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--norm", choices=("linf", "l2", "l1"), default="linf", help="for peers")
    given = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in given.net or ("resnet20", "digits_cnn", "digits_mlp"):
        b = bench(name, given.count)
        if given.what in ("floor", "all"):
            rows += over_floor(b, given.trials, given.steps)
        if given.what in ("peers", "all"):
            rows += against_peers(b, given.norm, given.trials, given.steps)
        if given.what in ("twin", "all"):
            rows += with_twin(b, given.trials, given.steps)
    keys = list(Counter(key for row in rows for key in row))
    finish("ascent", [{k: row.get(k, "") for k in keys} for row in rows], given.trials, given.json)


if __name__ == "__main__":
    main()
