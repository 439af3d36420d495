"""Cards of the zoo: one form for all, true to their weights, which are never rewritten."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
from pathlib import Path

import pytest

from besiege.core.threat import Threat
from besiege.models.catalogue import CATALOGUE, ZOO, layer_of, zoo_card, zoo_names
from besiege.training import recipe

ROOT = Path(__file__).resolve().parents[2]

BUILT = {"name", "arch"}
TRAINED = {"recipe", "settings", "seed", "data", "device", "seconds", "epoch", "command"}
NEEDED = BUILT | TRAINED | {"licence", "sha256"}
# Classifiers have accuracies; networks of layers the figure of their objective.
CLASSIFIER, NETWORK = {"classes", "threat", "accuracy"}, {"measured"}
OPTIONAL = {"arguments", "mean", "std", "layers", "start", "identity", "ended"}
OPTIONAL |= {"expected", "also", "note"}
FIGURE = re.compile(
    r"(?P<share>\d+\.\d) %(?: \[(?P<low>\d+\.\d), (?P<high>\d+\.\d)\])?, (?P<count>\d+) images"
    r"(?:, mean of (?P<draws>\d+) draws)?"
)
NETWORKS = [name for name in zoo_names() if layer_of(f"zoo:{name}") is not None]
CLASSIFIERS = [name for name in zoo_names() if name not in NETWORKS]
MOST_BYTES = 22_200_000
# Weights are never rewritten: results elsewhere refer to them by these digests.
PINNED = {
    "cifar10-pgd-at": "b85b7b9a5e51427342aef2b16c3614ec2863c9f200538dd5e1c0646d0e43237e",
    "cifar10-resnet20-pgd-at": "814dddb206d2ec1d4da46e2590e18ae656d795c8b94e13c0b157f8bdc235a0e0",
    "digits-natural": "5b8323ccab4bb2a30bbad246a511c8e8058d4e002da9f934bfd9f9250bf4d9dd",
    "digits-pgd-at": "3917079700ba6b92ab59ce712b0c08b940bbc1e5a85634679383e1893eea95de",
}


def share(text: str) -> float:
    """The percentage of a figure, which must be within its interval."""
    found = FIGURE.fullmatch(text)
    assert found is not None, text
    assert (found["low"] is None) == (found["draws"] is not None), text
    if found["low"] is not None:
        assert float(found["low"]) <= float(found["share"]) <= float(found["high"]), text
    return float(found["share"])


def met(expected: str, percent: float) -> bool:
    """Whether a figure is as expected: '>= 99.0', '<= 10' or '36 to 43'."""
    if " to " in expected:
        low, high = map(float, expected.split(" to "))
        return low <= percent <= high
    sign, bound = expected.split()
    return {">=": percent >= float(bound), "<=": percent <= float(bound)}[sign]


@pytest.mark.parametrize("name", zoo_names())
def test_a_card_has_the_form_of_all(name: str) -> None:
    card = zoo_card(name)
    needed = NEEDED | (NETWORK if name in NETWORKS else CLASSIFIER)
    assert set(card) >= needed and not set(card) - needed - OPTIONAL
    assert card["name"] == name and card["arch"] in CATALOGUE and card["command"].endswith(name)
    assert {"number", "loss", "accuracy", "clean", "robust"} <= set(card["epoch"])
    assert re.fullmatch(r"[\w-]+ train, \d+ images, sha256 [0-9a-f]{64}", card["data"])
    if name in CLASSIFIERS:
        assert set(card["accuracy"]) == {"clean", "pgd20", "autoattack"}
        assert Threat.parse(card["threat"]).eps is not None


@pytest.mark.parametrize("name", NETWORKS)
def test_the_figure_of_a_network_is_measured_again(name: str) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "train_zoo.py"))
    (stated,) = zoo_card(name)["measured"].values()
    (found,) = example["network_figures"](example["MODELS"][name], f"zoo:{name}").values()
    assert float(found.split()[0]) == pytest.approx(float(stated.split()[0]), abs=1e-3)
    assert found.partition(" ")[2] == stated.partition(" ")[2]


@pytest.mark.parametrize("name", zoo_names())
def test_the_recipe_of_a_card_reads_back_as_its_settings(name: str) -> None:
    card = zoo_card(name)
    plan = recipe(card["recipe"])
    assert str(plan) == card["recipe"]
    settings = plan.settings()
    assert settings.pop("name") == card["recipe"].partition("(")[0]
    assert card["settings"] == settings
    assert card.get("layers", "") == "+".join(map(str, plan.layers))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_figures_of_a_card_are_shares_and_as_expected_or_explained(name: str) -> None:
    card = zoo_card(name)
    found = {figure: share(text) for figure, text in card["accuracy"].items()}
    assert found["autoattack"] <= found["clean"]
    for text in card.get("also", {}).values():
        share(text)
    for figure, expected in card.get("expected", {}).items():
        assert met(expected, found[figure]) or card.get("note"), f"{figure} {expected}: no note"


@pytest.mark.parametrize("name", zoo_names())
def test_the_digest_of_a_card_is_that_of_its_weights(name: str) -> None:
    digest = hashlib.sha256((ZOO / f"{name}.safetensors").read_bytes()).hexdigest()
    assert zoo_card(name)["sha256"] == digest
    assert PINNED.get(name, digest) == digest, "weights are never rewritten"


def test_the_zoo_is_small_and_whole() -> None:
    weights = sorted(ZOO.glob("*.safetensors"))
    assert [path.stem for path in weights] == zoo_names() and set(PINNED) <= set(zoo_names())
    assert sum(path.stat().st_size for path in weights) <= MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_figure_of_a_card_is_measured_again(name: str) -> None:
    """On 200 images, as `train_zoo.py NAME --measure` does it: four deviations are allowed."""
    example = runpy.run_path(str(ROOT / "examples" / "train_zoo.py"))
    model = example["MODELS"][name]
    if model.data != "digits" and not os.environ.get("BESIEGE_DATA"):
        pytest.skip("needs BESIEGE_DATA")
    stated = zoo_card(name)["accuracy"]
    for figure, text in example["measured"](model, f"zoo:{name}", 200).items():
        share, wanted = (float(one.split()[0]) / 100 for one in (text, stated[figure]))
        allowed = 4 * (max(wanted * (1 - wanted), 0.01) / 200) ** 0.5
        assert abs(share - wanted) <= allowed, f"{figure}: {text}, stated {stated[figure]}"
