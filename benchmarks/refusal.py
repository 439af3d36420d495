"""What detectors cost: an ascent on one beside its bare passes, the fold, and scores.

    python benchmarks/refusal.py [--trials 5] [--steps 10] [--count 64] [--json FILE]

- squeezed: PGD on ResNet-20 squeezed by bits and median, over its bare passes: three for an answer.
- fold: PGD on a victim that rejects nothing, over the same without the call that would fold.
- lid: the score at all layers of ResNet-20, over a forward pass of the same rows.

CPU time of one thread, contestants in turns; medians with their spread. Minutes; needs CIFAR-10.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from besiege.attacks.attack import parse
from besiege.core.oracle import Oracle
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.defenses import BitDepth, Calibration, Detected, Median, Squeezing, load
from besiege.evaluation.crafting import craft

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Bench, bench, counted, cpu, finish, forward, parser, race


def squeezed(b: Bench, trials: int, steps: int) -> dict[str, Any]:
    """PGD in which no row leaves, on classifier and detector, over its bare passes."""
    victim = Detected(b.victim, Squeezing((BitDepth(5), Median(2))), Calibration(0.5, 0.3, 5.0))
    with counted(b.victim) as passes:
        run = attack(b, victim, steps)
        found = race({"squeezed": (run, passes.copy)}, b.module(), b.images, trials)["squeezed"]
    return {"what": "squeezed", "who": f"PGD-{steps} over its passes"} | found.facts()


def fold(b: Bench, trials: int, steps: int) -> dict[str, Any]:
    """PGD on the bare model, over the same without the time of its calls that would fold.

    The calls are timed apart: they take less than two runs of the same PGD differ by.
    """
    run, calls = attack(b, b.victim, steps), list[tuple[Any, ...]]()
    usual = Oracle.fold

    def kept(*given: Any) -> Tensor:
        calls.append(given)
        return usual(*given)

    with patch.object(Oracle, "fold", kept):
        run()

    def only() -> None:
        for given in calls:
            usual(*given)

    pairs = []
    for _ in range(trials):
        whole, folds = cpu(run, 20), cpu(only, 2000)
        pairs.append((whole, whole / (whole - folds)))
    ratios = [over for _, over in pairs]
    return {
        "what": "fold",
        "who": f"PGD-{steps} over one without",
        "cpu_s": statistics.median(whole for whole, _ in pairs),
        "over_floor": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


def lid(b: Bench, trials: int) -> dict[str, Any]:
    """The score of all images over a forward pass of the same."""
    victim = load("public:cifar10_resnet20+detector('zoo:cifar10-lid')")
    assert isinstance(victim, Detected)
    module = b.module()
    with victim.held(), torch.no_grad():
        return ratio(
            "lid",
            f"score of {len(b.images)} rows over a forward pass",
            lambda: victim.score(b.images),
            partial(forward, module, b.images),
            trials,
        )


def attack(b: Bench, victim: Victim, steps: int) -> Callable[[], object]:
    """The crafting of a PGD on all images to the end, ready to run."""
    samples = Samples.of(b.images, b.labels, box=b.victim.box, classes=10)
    threat, pgd = Threat.parse(f"linf:{b.eps['linf']}"), parse(f"pgd(steps={steps})")
    return partial(craft, victim, pgd, samples, threat, leave="end")


def ratio(
    what: str, who: str, run: Callable[[], object], other: Callable[[], object], trials: int
) -> dict[str, Any]:
    """CPU time of one over another, in turns; the first turn warms up."""
    ratios, seconds = [], []
    times = max(1, round(0.5 / max(cpu(other), 1e-3)))
    for _ in range(trials + 1):
        pair = cpu(run, times), cpu(other, times)
        ratios.append(pair[0] / pair[1])
        seconds.append(pair[0])
    ratios, seconds = ratios[1:], seconds[1:]
    return {
        "what": what,
        "who": who,
        "cpu_s": statistics.median(seconds),
        "over_floor": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=10)
    given = options.parse_args()
    torch.set_num_threads(1)
    b = bench("resnet20", given.count)
    rows = [
        squeezed(b, given.trials, given.steps),
        fold(bench("digits-natural", given.count), given.trials, given.steps),
        lid(b, given.trials),
    ]
    keys = ("what", "who", "cpu_s", "over_floor", "spread")
    finish("refusal", [{k: row[k] for k in keys} for row in rows], given.trials, given.json)


if __name__ == "__main__":
    main()
