"""Which named models have no defense, by the settings of their cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from besiege.bench import undefended
from besiege.bench.undefended import is_undefended
from besiege.models import PUBLIC, catalogue
from besiege.training import RECIPES, recipe


def card(text: str, **more: Any) -> dict[str, Any]:
    """The entries of a card that a training by this recipe writes."""
    plan = recipe(text)
    layers = {"layers": "+".join(map(str, plan.layers))} if plan.layers else {}
    return {"arch": "resnet20", "recipe": str(plan), "settings": plan.settings(), **layers, **more}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)

    def judge(entries: dict[str, Any]) -> bool:
        (tmp_path / "one.json").write_text(json.dumps({"name": "one", **entries}))
        return is_undefended("zoo:one")

    return judge


# Their defense is an argument of the architecture; the training is natural.
IN_THE_NETWORK = {"rse"}


@pytest.mark.parametrize("name", RECIPES.names())
def test_only_natural_training_leaves_a_model_undefended(name: str, judged: Any) -> None:
    family = name.partition("@")[0]
    more = {"arguments": {"noise": [0.2, 0.1]}} if family in IN_THE_NETWORK else {}
    assert judged(card(name, **more)) == (family == "natural")


def test_what_is_around_natural_training_decides_as_well(judged: Any) -> None:
    assert judged(card("natural@cifar10(epochs=3, average=0.99)", arguments={"width": 32}))
    assert judged(card("natural", arguments={"noise": None, "denoise": None}))
    assert not judged(card("natural", arguments={"denoise": "gaussian"}))
    assert not judged(card("natural", start="zoo:digits-pgd-at"))
    assert not judged(card("natural(layers=bits(depth=3))"))
    assert not judged({"arch": "resnet20", "recipe": "natural"}), "a card without settings"


def test_shipped_and_public_models() -> None:
    assert is_undefended("zoo:digits-natural") and not is_undefended("zoo:digits-pgd-at")
    assert not is_undefended("zoo:digits-natural+bits(depth=3)")
    assert is_undefended("public:mnist_lenet_clean")
    assert not is_undefended("public:mnist_lenet_adv") and not is_undefended("digits_cnn:a.pt")


def test_networks_for_imagenet_are_known_to_have_no_defense() -> None:
    assert set(PUBLIC) >= undefended.PUBLIC
    for name, entry in PUBLIC.items():
        if entry.data == "imagenet-sample":
            assert is_undefended(f"public:{name}")
            assert not is_undefended(f"public:{name}+bits(depth=2)")
