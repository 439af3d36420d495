"""What layers of defenses cost: alone, and PGD-10 behind each over the twin's bare passes.

python benchmarks/layers.py [--layer TEXT ...] [--count 200] [--trials 3] [--json FILE]

ms_image    CPU milliseconds of the layer for one image, forward only, in one batch;
over_floor  PGD-10 that lets no row leave, on the network's twin behind the layer, confirming and
            judging left out, over the twin's bare passes;
bare        the same without a layer comes first: what the attack itself costs;
standing    images that PGD-10 did not break; stochastic layers are attacked with two draws a step.

For jpeg, Pillow's round trip of the same images through a file in memory is timed beside it.
"""

from __future__ import annotations

import io
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from besiege.attacks.attack import parse
from besiege.core.dice import Dice
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.defenses import Defended, Layer
from besiege.defenses.layers import LANGUAGE
from besiege.evaluation.crafting import craft

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import Bench, Seen, bench, counted, cpu, finish, parser, race

LAYERS = (
    "bits",
    "bits(levels=4)",
    "jpeg",
    "jpeg(backward='identity')",
    "median",
    "median(size=3)",
    "blur",
    "crop_rescale",
    "resize_pad",
    "tvm",
    "nlm",
)


def alone(b: Bench, layer: Layer, trials: int) -> float:
    """CPU milliseconds of a layer for one image."""
    dice = Dice.throw(0, torch.arange(len(b.images)))

    def run() -> None:
        with torch.no_grad():
            layer(b.images, b.victim.box, dice)

    run()
    return 1000 * statistics.median(cpu(run, 3) for _ in range(trials)) / len(b.images)


def pillow(b: Bench, trials: int) -> float:
    """CPU milliseconds of Pillow's JPEG round trip for one image."""
    pixels = (b.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()

    def run() -> None:
        for image in pixels:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "JPEG", quality=75, subsampling="4:2:0")
            Image.open(file).load()

    run()
    return 1000 * statistics.median(cpu(run) for _ in range(trials)) / len(b.images)


def behind(b: Bench, layers: list[Layer], trials: int, steps: int) -> dict[str, Any]:
    """PGD behind layers over the bare passes of the network's twin, which attacks search on."""
    samples = Samples.of(b.images, b.labels, box=b.victim.box, classes=10)
    threat = Threat.parse(f"linf:{b.eps['linf']}")
    network = b.victim.twin(samples, threat)
    assert network is not None
    victim = Defended(network, *layers)
    text = f"pgd(steps={steps})"
    attack = parse(f"averaged({text}, 2)" if victim.stochastic else text)
    standing = []

    def run() -> None:
        found = craft(victim, attack, samples, threat, leave="end")
        standing.append(int((~found.success).sum()))

    with counted(network) as passes:
        timed = race({"pgd": (run, passes.copy)}, Seen(network), b.images, trials)
    return timed["pgd"].facts() | {"standing": standing[-1]}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--layer", action="append", help="text of a layer; may be repeated")
    options.add_argument("--steps", type=int, default=10)
    options.set_defaults(count=200, trials=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    b = bench((given.net or ["resnet20"])[0], given.count)
    file = pillow(b, given.trials)
    rows: list[dict[str, Any]] = [
        {"layer": "bare", "ms_image": 0.0, "over_pillow": ""}
        | behind(b, [], given.trials, given.steps)
    ]
    for text in given.layer or LAYERS:
        layer = LANGUAGE.read(text)
        own = alone(b, layer, given.trials)
        over = own / file if text.startswith("jpeg") else ""
        rows.append(
            {"layer": text, "ms_image": own, "over_pillow": over}
            | behind(b, [layer], given.trials, given.steps)
        )
    finish("layers", rows, given.trials, given.json)


if __name__ == "__main__":
    main()
