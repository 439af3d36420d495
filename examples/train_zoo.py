"""Make the models that come with besiege: train, measure, write weights and card.

python examples/train_zoo.py digits-trades                 # seconds on a CPU
python examples/train_zoo.py digits-pixelcnn               # a network of a layer, 2 minutes
python examples/train_zoo.py mnist-pat                     # half an hour on a CPU
python examples/train_zoo.py cifar10-trades                # 10 minutes on an H200
python examples/train_zoo.py cifar10-igr cifar10-eat       # both at once, on one GPU
python examples/train_zoo.py mnist-pat --measure           # every figure of a shipped card
python examples/train_zoo.py mnist-pat --measure --write   # ... which goes into the card
python examples/train_zoo.py --list

On a CPU, with the torch version of their cards, models are reproduced bit by bit. On a GPU sums
are taken in another order each time, so those come within a point of the ones shipped.
BESIEGE_DATA names the folder of the data. An interrupted training or measurement resumes where it
stopped; what has a card without figures is only measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import near
from besiege.core.files import replace_file
from besiege.core.threat import Threat
from besiege.defenses import load
from besiege.metrics import Rate
from besiege.models.catalogue import ZOO, layer_of, zoo_card
from besiege.models.sources import load_network
from besiege.training import fit, recipe
from besiege.training.objectives import Step

SEED = 0
PART = 256
"""Images in one batch of a measurement."""


@dataclass(frozen=True)
class Model:
    """What is trained, and what its accuracies should be.

    Attributes
    ----------
    data, arch, recipe : str
        As ``besiege train`` takes them.
    threat : str
        The threat under which it is measured; not used for the network of a layer.
    expected : dict
        What the literature leads one to expect, by figure.
    draws : int
        How often a stochastic model classifies the clean images: its accuracy is the mean.
    few : int
        Images of the measurement by AutoAttack, and of every attack on a stochastic model.
    also : tuple of str
        Further attacks and threats, such as ``"pgd(steps=20) l2:0.5"``, under which it is measured
        on all images. Without a budget the figure is the median distance of the images it broke.
    beside : tuple of str
        The same, on the images of AutoAttack.
    """

    data: str
    arch: str
    recipe: str
    threat: str
    expected: dict[str, str]
    draws: int = 50
    few: int = 1000
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


def _digits(recipe: str, arch: str = "digits_cnn") -> Model:
    return Model("digits", arch, recipe, "linf:0.15", {}, also=("pgd(steps=20) l2:0.5",))


def _mnist(recipe: str, *also: str, **expected: str) -> Model:
    return Model("mnist", "deepsec_cnn(width=16)", recipe, "linf:0.3", expected, also=also)


def _cifar(recipe: str, arch: str, clean: str, autoattack: str, *also: str) -> Model:
    expected = {"clean": clean, "autoattack": autoattack}
    return Model("cifar10", arch, recipe, "linf:8/255", expected, also=also)


def _losses(threat: str) -> tuple[str, ...]:
    """PGD with the usual cross-entropy, from which large logits hide gradients, and the margin."""
    losses = ("cross_entropy(stable=False)", "margin")
    return tuple(f"pgd(steps=20, loss={loss}) {threat}" for loss in losses)


def _families() -> dict[str, Model]:
    """Natural networks in five families: sizes differ within a family, the recipe does not."""
    nets = {
        "densenet22": "densenet(depth=22)",
        "densenet40": "densenet(depth=40)",
        "densenet64": "densenet(depth=64)",
        "inception-1": "inception_cifar(blocks=1, width=32)",
        "inception-2": "inception_cifar(blocks=2, width=48)",
        "inception-3": "inception_cifar(blocks=3, width=48)",
        "mobile-0.25": "mobile_cifar(multiplier=0.25)",
        "mobile-0.5": "mobile_cifar(multiplier=0.5)",
        "mobile-0.75": "mobile_cifar(multiplier=0.75)",
        "vgg11": "vgg(depth=11, width=12)",
        "vgg13": "vgg(depth=13, width=12)",
        "vgg19": "vgg(depth=19, width=12)",
    }
    # Without batch norm the usual rate of 0.2 diverges.
    plain = {f"plain{depth}": f"plain_cnn(depth={depth}, width=24)" for depth in (3, 6, 9)}
    found = {
        f"cifar10-{name}": _cifar("natural(epochs=25)", net, "", "") for name, net in nets.items()
    }
    slower = {
        name: _cifar("natural(epochs=25, rate=0.02)", net, "", "") for name, net in plain.items()
    }
    return found | {f"cifar10-{name}": model for name, model in slower.items()}


_NEAREST = ("deepfool l2",)
_STEPS = tuple(f"pgd(steps={steps}) linf:8/255" for steps in (10, 50, 200))
_LONGER = (
    "pgd(steps=20, schedule=constant(step=0.25)) linf:8/255",
    "pgd(steps=50, loss=dlr) linf:8/255",
)


MODELS = {
    "digits-natural": _digits("natural(epochs=80)"),
    "digits-pgd-at": _digits("pgd-at(epochs=60)"),
    # Digits have 17 pixel values, so that 17 levels hold them exactly.
    "digits-pixelcnn": _digits("pixelcnn", "pixelcnn(levels=17, width=32, blocks=3)"),
    "digits-autoencoder": _digits("reformer", "autoencoder(width=8)"),
    # Trained for 4 epochs at a higher rate, where the paper has 100 and 400.
    "mnist-autoencoder": replace(
        _mnist("reformer(epochs=4, rate=0.01, batch=128)"), arch="autoencoder"
    ),
    "cifar10-autoencoder": _cifar(
        "reformer(epochs=4, rate=0.01, batch=128)", "autoencoder(pool=False, in_channels=3)", "", ""
    ),
    "mnist-natural": _mnist("natural", clean=">= 99.0"),
    "mnist-pat": _mnist("pgd-at", clean=">= 98.3", autoattack=">= 82"),
    "mnist-nat": _mnist("nat"),
    "mnist-eat": _mnist("eat"),
    "mnist-distilled": _mnist("distilled", *_losses("linf:0.3")),
    "mnist-igr": _mnist("igr"),
    "mnist-thermometer": _mnist("thermometer"),
    "cifar10-pgd-at": _cifar("pgd-at(epochs=130)", "preact_resnet18(width=32)", "", "", *_LONGER),
    # A network this small hardly overfits: it needs less regularisation.
    "cifar10-resnet20-pgd-at": _cifar(
        "pgd-at(epochs=115, decay=2e-4, objective=cross_entropy)", "resnet20", "", "", *_LONGER
    ),
    "cifar10-trades": _cifar(
        "trades(epochs=75)", "preact_resnet18(width=32)", ">= 75.5", ">= 47.0"
    ),
    "cifar10-denoise": _cifar(
        "denoise(epochs=90, decay=2e-4, objective=cross_entropy)",
        "resnet20(denoise='gaussian')",
        ">= 74",
        ">= 41",
    ),
    "cifar10-fast-at": _cifar("fast-at", "resnet20", ">= 74", ">= 36"),
    # Fine-tuned: the first 115 epochs are those of adversarial training without pairs.
    "cifar10-alp": replace(
        _cifar(
            "alp(epochs=5, rate=0.05, decay=2e-4)",
            "zoo:cifar10-resnet20-pgd-at",
            ">= 73",
            "36 to 43",
        ),
        beside=_STEPS,
    ),
    # Fine-tuned: trained for 30 epochs from the start it reached 73.8 % clean. The gradients of a
    # natural network are ten times those of this one, which the penalty would destroy.
    "cifar10-igr": _cifar(
        # Held-out accuracy would choose the first epoch, and an average would mix them all.
        "igr(epochs=4, optimiser='adam', rate=1e-3, decay=0, held_out=0, average=0)",
        "zoo:cifar10-eat",
        ">= 75",
        "3 to 25",
    ),
    "cifar10-nat": _cifar("nat(epochs=30)", "resnet20", ">= 85", "<= 10"),
    "cifar10-eat": _cifar("eat(epochs=45)", "resnet20", ">= 85", "<= 10"),
    "cifar10-distilled": _cifar(
        "distilled(epochs=50)", "resnet20", ">= 89", "<= 1", *_losses("linf:8/255")
    ),
    "cifar10-thermometer": _cifar("thermometer(epochs=30)", "resnet20", ">= 78", "15 to 35"),
    "cifar10-adp": _cifar("adp(epochs=40)", "joint(of='resnet20', members=3)", ">= 91", "<= 0.5"),
    "cifar10-natural": _cifar("natural(epochs=50)", "resnet20", "", ""),
    "cifar10-vgg16": _cifar("natural(epochs=25)", "vgg16(width=16)", "", ""),
    # Without batch norm the usual rate of 0.2 diverges.
    "cifar10-conv5": replace(
        _cifar("natural(epochs=30, rate=0.02)", "conv5", "", ""), beside=_NEAREST
    ),
    "cifar10-deepdefense": replace(
        _cifar("deepdefense(epochs=2, schedule='linear')", "zoo:cifar10-conv5", ">= 76", "<= 0.5"),
        beside=_NEAREST,
    ),
    "cifar10-rse": _cifar("rse(epochs=40)", "vgg16(width=16, noise=(0.2, 0.1))", ">= 78", "<= 23"),
    "cifar10-gaussian-0.25": _cifar("gaussian(epochs=25)", "resnet20", ">= 66", ""),
    # Fine-tuned behind the chain that `eit@deepsec` names.
    "cifar10-eit": replace(
        _cifar(
            "natural(epochs=5, rate=0.05, precision='float32', layers=(crop_rescale(size=30, "
            "how='nearest'), tvm, jpeg(quality=85), bits(depth=4)))",
            "zoo:cifar10-natural",
            "",
            "<= 2",
        ),
        # A pass behind the minimisation of total variation takes as long as 50 of the network.
        draws=5,
        few=200,
    ),
    "cifar10-pixelcnn": _cifar("pixelcnn(epochs=30)", "pixelcnn(in_channels=3)", "", ""),
    **_families(),
}


def measured(model: Model, source: str, count: int | None, folder: Path) -> dict[str, str]:
    """Accuracies of a model with 95 % intervals: clean, under PGD-20 and under AutoAttack.

    The evaluations lie in `folder`, so that an interrupted measurement resumes.
    """
    # For measuring only: training computes in bfloat16 where its recipe says so.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    victim = load(source, device_of(model))
    test = besiege.data.load(model.data, "test", count=count)
    few = test.subset(min(model.few, len(test)), SEED)
    attack = "averaged(pgd(steps=20), 20)" if victim.stochastic else "pgd(steps=20)"
    suite = "rand" if victim.stochastic else "standard"
    found = {"clean": _clean(model, victim, test)}
    kinds: list[tuple[str, str, dict[str, Any], besiege.data.Data]] = [
        # An attack averaged over 20 draws takes 20 times as long.
        ("pgd20", model.threat, {"attacks": [attack]}, few if victim.stochastic else test),
        ("autoattack", model.threat, {"suite": suite}, few),
    ]
    for texts, samples in ((model.also, test), (model.beside, few)):
        for text in texts:
            attack, threat = text.rsplit(" ", 1)
            kinds.append((text, threat, {"attacks": [attack]}, samples))
    for number, (name, threat, given, samples) in enumerate(kinds):
        result = besiege.evaluate(
            victim,
            samples,
            threat=threat,
            out=str(folder / f"{number}"),
            examine="none",
            curve=False,
            **given,
        )
        found[name] = f"{result.robust}, {len(samples)} images"
        if Threat.parse(threat).eps is None:
            (nearest,) = result.figures.attacks
            found[name] = f"median {nearest.median_distance:.3f}, {nearest.broken} images"
    return found


def network_figures(model: Model, source: str) -> dict[str, str]:
    """What the objective of a layer's network is on test images, under its name."""
    network = load_network(source)
    network.to(device_of(model))
    test = besiege.data.load(model.data, "test")
    objective = recipe(model.recipe, model.data).objective
    name = str(objective).partition("(")[0]
    total = 0.0
    with network.held(), torch.no_grad():
        for first in range(0, len(test), PART):
            part = test.take(torch.arange(first, min(first + PART, len(test))))
            x, y, ids = (t.to(network.device) for t in (part.images, part.labels, part.ids))
            step = Step(
                x=x,
                y=y,
                crafted=x,
                ask=network,
                still=network,
                each=network.each,
                teacher=None,
                dice=Dice.throw(SEED, ids),
                epoch=1,
                network=network.answer,
            )
            total += float(objective(step)) * len(part)
    value = total / len(test)
    unit = {"likelihood": "bits per dimension", "reconstruction": "mean squared error"}[name]
    return {name: f"{value:.4f} {unit}, {len(test)} images"}


def device_of(model: Model) -> str:
    """Where a model is trained and measured: digits always on a CPU, to be the same everywhere."""
    return "cuda" if torch.cuda.is_available() and model.data != "digits" else "cpu"


def is_network(model: Model) -> bool:
    """Whether a model is the network of a layer, and no classifier."""
    return layer_of(f"{model.arch}:") is not None


def _clean(model: Model, victim: Any, test: besiege.data.Data) -> str:
    """Accuracy on clean images; of a stochastic model the mean over many draws."""
    draws = model.draws if victim.stochastic else 1
    right = torch.zeros(len(test), dtype=torch.float64)
    with victim.held(), torch.no_grad():
        for number in range(draws):
            for first in range(0, len(test), PART):
                part = test.take(torch.arange(first, min(first + PART, len(test))))
                images, ids = part.images.to(victim.device), part.ids.to(victim.device)
                dice = Dice.throw(SEED, ids).of("draw", number) if victim.stochastic else None
                answer = victim(images, dice).argmax(1).cpu()
                right[first : first + PART] += (answer == part.labels).double() / draws
    if draws == 1:
        return f"{Rate.of(int(right.sum()), len(test))}, {len(test)} images"
    # Draws of one image are not independent: the interval is that of a mean over images.
    mean, half = float(right.mean()), 1.96 * float(right.std()) / len(test) ** 0.5
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    interval = f"{100 * mean:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{interval}, {len(test)} images, mean of {draws} draws"


def make(name: str, folder: Path, count: int | None) -> None:
    """Train a model, measure what is stored, and write its card."""
    model = MODELS[name]
    device = device_of(model)
    if device == "cpu":
        torch.set_num_threads(1)
    path = folder / f"{name}.json"
    if not path.exists():
        begun = time.monotonic()
        fit(
            model.recipe,
            model.data,
            model.arch,
            path.with_suffix(".safetensors"),
            seed=SEED,
            device=device,
            watch=lambda epoch: print(name, epoch, flush=True),
            half=model.data != "digits" or is_network(model),
            about={"command": f"python examples/train_zoo.py {name}", "licence": "MIT"},
        )
        print(f"{name}: trained in {time.monotonic() - begun:.0f} s", flush=True)
    card = json.loads(path.read_text())
    if "source" not in card:  # it goes when the figures come
        print(name, card.get("accuracy") or card["measured"])
        return
    source = card.pop("source")
    if is_network(model):
        figures = network_figures(model, source)
    else:
        figures = measured(model, source, count, folder / f"{name}-measured")
    card = with_figures(model, card, figures)
    replace_file(path, (json.dumps(card, indent=2) + "\n").encode())
    print(name, figures)


def measure_again(name: str, count: int | None, folder: Path, write: bool) -> None:
    """Show every figure of a shipped card beside what is measured now; or write what is measured.

    Evaluations lie in the folder, so that an interrupted measurement resumes.
    """
    model, card = MODELS[name], zoo_card(name)
    if is_network(model):
        figures, stated = network_figures(model, f"zoo:{name}"), card["measured"]
    else:
        place = folder / f"{name}-measured-{count or 'all'}"
        figures = measured(model, f"zoo:{name}", count, place)
        stated = card["accuracy"] | card.get("also", {})
    print(name, "stated  ", stated)
    print(name, "measured", figures)
    if write:
        card = with_figures(model, card, figures)
        replace_file(ZOO / f"{name}.json", (json.dumps(card, indent=2) + "\n").encode())


def with_figures(model: Model, card: dict[str, Any], figures: dict[str, str]) -> dict[str, Any]:
    """A card with what was measured and what was expected."""
    if is_network(model):
        return card | {"measured": figures}
    also = {text: figures[text] for text in model.also + model.beside}
    accuracy = {name: text for name, text in figures.items() if name not in also}
    expected = {figure: text for figure, text in model.expected.items() if text}
    found = {"threat": model.threat, "accuracy": accuracy, "also": also, "expected": expected}
    return card | {name: value for name, value in found.items() if value}


def together(names: list[str], options: list[str], many: int) -> int:
    """So many models at once, each in a process of its own: small ones leave a GPU idle."""

    def one(name: str) -> int:
        part = [sys.executable, __file__, name, *options]
        return subprocess.run(part, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode

    begun = time.monotonic()
    with ThreadPoolExecutor(many) as lanes:
        codes = list(lanes.map(one, names))
    print(f"{len(names)} models in {time.monotonic() - begun:.0f} s")
    return max(codes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    parser.add_argument("--measure", action="store_true", help="only measure the shipped weights")
    parser.add_argument("--write", action="store_true", help="and write the figures to their cards")
    parser.add_argument("--count", type=int, help="measure on this many test images only")
    parser.add_argument("--at-once", type=int, default=10, help="processes of several models")
    parser.add_argument("--list", action="store_true", help="list the models")
    given = parser.parse_args()
    if given.list or not given.names:
        for name, model in MODELS.items():
            print(f"{name:26} {model.recipe:24} {model.arch}")
        return 0
    for name in given.names:
        if name not in MODELS:
            parser.error(f"no model is called '{name}': {near(name, MODELS)}")
    if len(given.names) > 1:
        options = [word for word in sys.argv[1:] if word not in given.names]
        return together(given.names, options, given.at_once)
    (name,) = given.names
    if given.measure:
        measure_again(name, given.count, given.folder, given.write)
    else:
        make(name, given.folder, given.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
