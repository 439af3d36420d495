"""``attacks``, ``show``, ``models`` and ``data``: what there is, for people and as JSON."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Besiege

from besiege.attacks.attack import PIECES, parse
from besiege.attacks.suites import SUITES
from besiege.cli.lookup import look_up
from besiege.core.attack_registry import ATTACKS
from besiege.core.presets import PRESETS
from besiege.data.catalogue import CATALOGUE as DATA
from besiege.defenses.layers import LAYERS
from besiege.models.catalogue import CATALOGUE, listing
from besiege.training.recipes import RECIPES

KINDS = {
    "attack": ATTACKS.names(),
    "piece": PIECES.names(),
    "defense": LAYERS.names(),
    "suite": list(SUITES),
    "recipe": list(RECIPES),
    "data set": list(DATA),
    "architecture": list(CATALOGUE),
    "model": [row.name for row in listing()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_has_a_name_can_be_shown(kind: str) -> None:
    for name in KINDS[kind]:
        found = look_up(name)
        assert (found.kind, found.name) == (kind, name)
        assert found.about
        json.dumps(vars(found), default=str)


def test_no_name_has_two_meanings() -> None:
    names = [name for names in KINDS.values() for name in names]
    assert len(names) == len(set(names))


def test_an_attack_is_shown_with_slots_defaults_and_source(besiege: Besiege) -> None:
    said = besiege("show", "pgd")
    for word in ("Madry", "steps", "40", "schedule", "cosine(first=1.0)", "loss", "cross_entropy"):
        assert word in said.out
    told = json.loads(besiege("show", "minimal(pgd(steps=20))", "--json").out)
    assert told["parameters"]["attack"] == "pgd(steps=20)"
    assert told["facts"]["searches for"] == "the smallest perturbation"


def test_a_preset_is_shown_with_the_arguments_that_were_written(besiege: Besiege) -> None:
    plain, longer = (
        json.loads(besiege("show", text, "--json").out)
        for text in ("pgd@madry", "pgd@madry(steps=100)")
    )
    assert plain["kind"] == longer["kind"] == "preset"
    assert plain["about"].endswith("20 steps of 2/255 from a uniform start")
    assert longer["about"] == f"{plain['about']} (here steps=100)"
    for fact in ("published for", "differs", "compared with"):
        assert longer["facts"][fact] == plain["facts"][fact]
    assert plain["facts"]["norms"] == longer["facts"]["norms"] == ["linf", "l2"]
    assert (plain["parameters"]["steps"], longer["parameters"]["steps"]) == ("20", "100")


def test_a_preset_made_of_an_attack_says_what_to_write(besiege: Besiege) -> None:
    told = json.loads(besiege("show", "minimal@realsafe", "--json").out)
    assert told["facts"]["write"] == "minimal@realsafe(bim@realsafe-code)"
    assert parse(told["facts"]["reads as"]) == parse(told["facts"]["write"])
    assert "minimal@realsafe: the found distance" in besiege("show", "minimal").out


def test_every_preset_can_be_shown() -> None:
    for name in PRESETS.names():
        found = look_up(name)
        assert (found.kind, found.name) == ("preset", name)
        json.dumps(vars(found), default=str)


def test_a_model_may_be_shown_without_its_scheme(besiege: Besiege) -> None:
    assert besiege("show", "digits-pgd-at").out == besiege("show", "zoo:digits-pgd-at").out


def test_what_is_shown_has_whole_paths(besiege: Besiege, monkeypatch: pytest.MonkeyPatch) -> None:
    path = json.loads(besiege("show", "digits-natural", "--json").out)["facts"]["weights"]
    monkeypatch.setenv("COLUMNS", "40")
    assert path in besiege("show", "digits-natural").out


def test_attacks(besiege: Besiege) -> None:
    said = besiege("attacks")
    assert all(name in said.out for name in ATTACKS.names())
    told = {line["name"]: line for line in json.loads(besiege("attacks", "--json").out)["attacks"]}
    assert set(told) == set(ATTACKS.names())
    assert told["rfgsm"]["norms"] == ["linf"] and told["rfgsm"]["access"] == "gradient"
    assert told["llc"]["goals"] == ["untargeted", "targeted:least-likely"]
    assert told["minimal"]["made_of_attacks"]


def test_a_suite_tells_its_lists_in_every_norm(besiege: Besiege) -> None:
    shown = [line.split() for line in besiege("show", "decision").out.splitlines()]
    assert ["attacks", "rays,", "hopskipjump"] in shown
    assert ["in", "l2", "geoda,", "evolutionary"] in shown
    listed = " ".join(besiege("attacks").out.split())
    assert "rays, hopskipjump; in l2: geoda, evolutionary; in l1: geoda" in listed
    told = json.loads(besiege("attacks", "--json").out)["suites"]
    assert told["decision"]["others"]["l2"] == ["geoda", "evolutionary"]
    assert told["plus"]["others"] == {}


def test_data(besiege: Besiege) -> None:
    assert "digits: shipped" in besiege("data").out
    told = {line["name"]: line for line in json.loads(besiege("data", "--json").out)}
    assert told["cifar10"]["shape"] == [3, 32, 32] and told["digits"]["where"]["test"] == "shipped"


def test_models(besiege: Besiege) -> None:
    said = besiege("models")
    assert (
        "zoo:digits-natural" in said.out and "digits_cnn" in said.out and ".py:factory" in said.out
    )
    told = json.loads(besiege("models", "--json").out)
    assert {"models", "architectures", "forms"} == set(told)
    assert next(m for m in told["models"] if m["name"] == "zoo:digits-natural")["present"]


def test_defenses(besiege: Besiege) -> None:
    said = besiege("defenses")
    assert said.code == 0 and max(map(len, said.out.splitlines())) <= 80
    told = {
        line["name"]: line for line in json.loads(besiege("defenses", "--json").out)["defenses"]
    }
    assert list(told) == LAYERS.names() and all(name in said.out for name in told)
    assert told["bits"]["gradient"] == "of a surrogate" and told["adapt"]["gradient"] == "its own"
    assert told["resize_pad"]["stochastic"] and not told["bits"]["stochastic"]
    assert told["bits"]["parameters"] == {"depth": "4"}


def test_a_layer_is_shown_with_its_parameters(besiege: Besiege) -> None:
    told = json.loads(besiege("show", "bits(depth=3)", "--json").out)
    assert (told["kind"], told["parameters"]) == ("defense", {"depth": "3"})
    assert told["facts"]["written"] == "MODEL+bits(depth=3)"
    said = besiege("show", "bits(dept=3)")
    assert said.code == 2 and "did you mean 'depth'" in said.flat


def test_autoattack_is_shown_as_the_suite_that_it_is(besiege: Besiege) -> None:
    for name in ("autoattack", "AA", "standard"):
        said = " ".join(besiege("show", name).out.split())
        assert said.startswith("standard suite") and "also called autoattack, aa" in said
        assert "An independent implementation of AutoAttack" in said
