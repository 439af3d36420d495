"""How the shipped digits models were made: train, measure, write weights and card.

python examples/train_zoo.py digits-pgd-at --folder zoo
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import besiege
from besiege.attacks import parse
from besiege.metrics import Rate
from besiege.models import ARCHITECTURES, Classifier, save_zoo
from besiege.training import Recipe, fresh, natural, pgd_at, train

MODELS: dict[str, Recipe] = {
    "digits-natural": replace(natural, epochs=80),
    "digits-pgd-at": replace(pgd_at, epochs=60).within("linf:0.15"),
}
ARCH, SEED = "digits_cnn", 0


def main(name: str, folder: Path, measure: bool) -> None:
    torch.set_num_threads(1)
    recipe = MODELS[name]
    data, test = besiege.data.load("digits", "train"), besiege.data.load("digits", "test")
    if measure:
        victim = besiege.models.load(f"zoo:{name}")
    else:
        module = fresh(ARCHITECTURES[ARCH], SEED)
        train(module, data, recipe, seed=SEED, watch=print)
        victim = Classifier(module, classes=data.classes)
    attack = parse("pgd(steps=20)")
    accuracy = {}
    for threat in ("linf:0.15", "l2:0.5"):
        verdicts = besiege.attack(
            attack, victim, test.images, test.labels, ids=test.ids, threat=threat
        ).verdicts
        accuracy["clean"] = str(Rate.of(int(verdicts.correct.sum()), len(test)))
        accuracy[f"{attack} {threat}"] = str(Rate.of(int(verdicts.robust.sum()), len(test)))
    card = {
        "name": name,
        "arch": ARCH,
        "classes": data.classes,
        "recipe": recipe.name,
        "epochs": recipe.epochs,
        "batch": recipe.batch,
        "optimiser": f"{recipe.optimiser}, rate {recipe.rate}",
        "attack": None if recipe.attack is None else str(recipe.attack),
        "threat": None if recipe.threat is None else str(recipe.threat),
        "ramp": recipe.ramp,
        "seed": SEED,
        "command": f"python examples/train_zoo.py {name}",
        "data": f"digits train, {len(data)} images, sha256 {data.digest}",
        "device": f"CPU, one thread, torch {torch.__version__.partition('+')[0]}",
        "measured on": f"digits test, {len(test)} images, 95 % intervals, seed 0",
        "accuracy": accuracy,
        "licence": "MIT",
    }
    print(save_zoo(victim.module, card, folder))
    print(accuracy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("--folder", type=Path, default=Path("zoo"))
    parser.add_argument("--measure", action="store_true", help="only measure the shipped weights")
    given = parser.parse_args()
    main(given.name, given.folder, given.measure)
