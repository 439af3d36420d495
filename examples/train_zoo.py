"""Make the models that come with besiege: train, measure, write weights and card.

One command each:

python examples/train_zoo.py digits-natural             # seconds on a CPU
python examples/train_zoo.py digits-pgd-at              # half a minute on a CPU
python examples/train_zoo.py cifar10-pgd-at             # 10 minutes on an H200
python examples/train_zoo.py cifar10-resnet20-pgd-at    # 8 minutes on an H200

On a CPU, with the torch version of their cards, the digits models are reproduced bit by bit. On a
GPU sums are taken in another order each time, so the others come within a point of those shipped.
BESIEGE_DATA names the folder of their data. An interrupted training resumes where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import besiege
from besiege.attacks import parse
from besiege.metrics import Rate
from besiege.models import Classifier, save_zoo
from besiege.training import Epoch, Recipe, natural, pgd_at, pgd_at_cifar, train
from besiege.training.fitting import build


@dataclass(frozen=True)
class Model:
    """What is trained, how, and under which threats and attacks it is measured."""

    data: str
    arch: str
    recipe: Recipe
    threats: tuple[str, ...]
    attacks: tuple[str, ...] = ("pgd(steps=20)",)
    half: bool = False


# Falling steps are besiege's own; equal steps are those of most papers' PGD-20.
_PGDS = ("pgd(steps=20)", "pgd(steps=20, schedule=constant(0.25))", "pgd(steps=50, loss=dlr)")
MODELS = {
    "digits-natural": Model(
        "digits", "digits_cnn", replace(natural, epochs=80), ("linf:0.15", "l2:0.5")
    ),
    "digits-pgd-at": Model(
        "digits",
        "digits_cnn",
        replace(pgd_at, epochs=60).within("linf:0.15"),
        ("linf:0.15", "l2:0.5"),
    ),
    "cifar10-pgd-at": Model(
        "cifar10",
        "preact_resnet18(width=32)",
        replace(pgd_at_cifar, epochs=130),
        ("linf:8/255",),
        _PGDS,
        half=True,
    ),
    # A network this small hardly overfits: it needs less regularisation.
    "cifar10-resnet20-pgd-at": Model(
        "cifar10",
        "resnet20",
        replace(pgd_at_cifar, epochs=115, decay=2e-4, smoothing=0.0),
        ("linf:8/255",),
        _PGDS,
        half=True,
    ),
}
SEED = 0


def measured(model: Model, victim: Classifier, test: besiege.data.Data) -> dict[str, str]:
    """Clean accuracy and accuracy under attack, with intervals."""
    x, y, ids = (t.to(victim.device) for t in (test.images, test.labels, test.ids))
    accuracy = {}
    for threat in model.threats:
        for attack in map(parse, model.attacks):
            verdicts = besiege.attack(attack, victim, x, y, ids=ids, threat=threat).verdicts
            accuracy["clean"] = str(Rate.of(int(verdicts.correct.sum()), len(test)))
            accuracy[f"{attack} {threat}"] = str(Rate.of(int(verdicts.robust.sum()), len(test)))
    return accuracy


def card_of(
    name: str, about: Mapping[str, Any], data: besiege.data.Data, device: str, history: list[Epoch]
) -> dict[str, Any]:
    """The card of a model before it is measured."""
    model = MODELS[name]
    recipe = model.recipe
    card = {
        "name": name,
        **about,
        "recipe": recipe.name,
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "optimiser": f"{recipe.optimiser}, rate {recipe.rate}",
        "attack": None if recipe.attack is None else str(recipe.attack),
        "threat": None if recipe.threat is None else str(recipe.threat),
        "ramp": recipe.ramp,
        "seed": SEED,
        "command": f"python examples/train_zoo.py {name}",
        "data": f"{data.name} train, {len(data)} images, sha256 {data.digest}",
        "device": device,
    }
    if model.half:
        card["stored"] = "half precision, which loads as float32; all figures are of these weights"
    if recipe.held_out:
        best = max(history, key=lambda epoch: (epoch.robust or 0.0, epoch.number))
        card["text"] = str(recipe)
        card["settings"] = {k: v for k, v in recipe.settings().items() if k not in ("name", *card)}
        card["chosen"] = (
            f"epoch {best.number}, best on {recipe.held_out} training images held out: "
            f"{100 * (best.clean or 0):.1f} % clean, {100 * (best.robust or 0):.1f} % under attack"
        )
    return card


def main(name: str, folder: Path, measure: bool, count: int | None) -> None:
    model = MODELS[name]
    test = besiege.data.load(model.data, "test", count=count)
    if measure:
        print(measured(model, besiege.models.load(f"zoo:{name}"), test))
        return
    data = besiege.data.load(model.data, "train")
    victim, about = build(model.arch, data, SEED)
    version = torch.__version__.partition("+")[0]
    if model.data == "digits" or not torch.cuda.is_available():
        torch.set_num_threads(1)
        where, device = "cpu", f"CPU, one thread, torch {version}"
    else:
        # Only for measuring: training computes in bfloat16 where its recipe says so.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        where, device = "cuda", f"{torch.cuda.get_device_name()}, torch {version}"
    history = train(
        victim,
        data,
        model.recipe,
        seed=SEED,
        watch=print,
        checkpoint=folder / f"{name}.checkpoint",
        device=where,
    )
    if model.half:
        victim.module.half().float()  # the rounded weights are stored, so they are what is measured
    card = card_of(name, about, data, device, history)
    card["measured on"] = f"{data.name} test, {len(test)} images, 95 % intervals, seed 0"
    card["accuracy"] = measured(model, victim, test)
    card["licence"] = "MIT"
    print(save_zoo(victim.module, card, folder, half=model.half))
    print(card["accuracy"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    parser.add_argument("--measure", action="store_true", help="only measure the shipped weights")
    parser.add_argument("--count", type=int, help="measure on this many test images only")
    given = parser.parse_args()
    main(given.name, given.folder, given.measure, given.count)
