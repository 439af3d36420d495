"""``attacks``, ``show``, ``models`` and ``data``: what there is, for people and as JSON."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex

import pytest
from cyclopts import App
from tests.cli.conftest import Besiege

from besiege import cli
from besiege.attacks.attack import PIECES, parse
from besiege.attacks.suites import SUITES
from besiege.cli.lookup import look_up
from besiege.core.attack_registry import ATTACKS
from besiege.core.presets import PRESETS
from besiege.data.catalogue import CATALOGUE as DATA
from besiege.defenses.layers import LAYERS
from besiege.defenses.presets import FORMS
from besiege.models.catalogue import CATALOGUE, listing
from besiege.training.catalogue import CATALOGUE as FAMILIES
from besiege.training.objectives import OBJECTIVES
from besiege.training.radii import RADII
from besiege.training.recipes import RECIPES, recipe
from besiege.training.updates import UPDATES

KINDS = {
    "attack": ATTACKS.names(),
    "piece": PIECES.names(),
    "defense": LAYERS.names(),
    "suite": list(SUITES),
    "recipe": RECIPES.names(),
    "data set": list(DATA),
    "architecture": list(CATALOGUE),
    "model": [row.name for row in listing()],
    "objective": OBJECTIVES.names(),
    "radius": RADII.names(),
    "update": UPDATES.names(),
}
# Names of several kinds, of which the first one is shown.
SHARED = {
    "cross_entropy": ["piece", "objective"],
    "gaussian": ["recipe", "piece"],
    "mart": ["recipe", "objective"],
    "pixelcnn": ["architecture", "recipe"],
    "smoothadv": ["recipe", "objective"],
    "thermometer": ["recipe", "defense"],
    "trades": ["recipe", "objective"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_has_a_name_can_be_shown(kind: str) -> None:
    for name in KINDS[kind]:
        found = look_up(f"{kind}:{name}" if name in SHARED else name)
        assert (found.kind, found.name) == (kind, name)
        assert found.about
        json.dumps(vars(found), default=str)


def test_few_names_have_two_meanings_and_each_names_the_other() -> None:
    kinds: dict[str, list[str]] = {}
    for kind, names in KINDS.items():
        for name in names:
            kinds.setdefault(name, []).append(kind)
    several = {name: found for name, found in kinds.items() if len(found) > 1}
    assert {name: set(found) for name, found in several.items()} == {
        name: set(found) for name, found in SHARED.items()
    }
    for name, (first, second) in SHARED.items():
        assert look_up(name).kind == first
        assert f"besiege show {second}:{name}" in look_up(name).facts["also the name of"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recipe_is_shown_with_source_differences_variants_and_a_command(family: str) -> None:
    found = look_up(f"recipe:{family}")
    assert found.about.lower() == f"{FAMILIES[family].title}.".lower()
    assert (family == "natural") == ("source" not in found.facts)
    assert family == "natural" or re.search(r", \D*20[12]\d", found.facts["source"])
    assert f"{family}@cifar10" in found.facts["variants"]
    variant = look_up(f"{family}@cifar10")
    assert variant.facts["run it"].startswith(f"besiege train {family}@cifar10 --data cifar10 ")
    own = variant.facts.get("unlike natural@cifar10", {})
    usual = look_up("natural@cifar10").parameters
    assert family == "rse" or all(variant.parameters[key] != usual[key] for key in own)
    differing = {key for key, value in variant.parameters.items() if value != usual[key]}
    assert differing == (set() if family == "rse" else set(own))


def test_every_recipe_is_in_the_catalogue() -> None:
    assert {name.partition("@")[0] for name in RECIPES.names()} == set(FAMILIES)


def test_a_text_is_shown_as_what_its_parameters_say(besiege: Besiege) -> None:
    for text, kind in (
        ("trades(beta=3)", "objective"),
        ("trades(epochs=3)", "recipe"),
        ("thermometer(levels=8)", "defense"),
        ("thermometer(epochs=8)", "recipe"),
        ("half_normal(sigma=0.1)", "radius"),
        ("replay(m=4)", "update"),
    ):
        assert (look_up(text).kind, look_up(text).name) == (kind, text)
    changed = look_up("pgd-at@cifar10(epochs=130)")
    assert changed.parameters["epochs"] == "130" and recipe(changed.name).epochs == 130
    said = besiege("show", "mart(wait=3)")
    assert said.code == 2 and "no field 'wait'" in said.flat


def test_the_command_of_a_recipe_can_be_copied(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    command = besiege("show", "adp@digits").out.partition("run it\n")[2]
    assert shlex.split(command.replace("\\\n", " ")) == [
        *("besiege", "train", "adp@digits", "--data", "digits"),
        *("--arch", "joint(of='digits_cnn', members=3)", "--out", "adp.safetensors"),
    ]
    assert "\"joint(of='digits_cnn', members=3)\"" in command


def test_the_help_of_train_names_every_recipe(besiege: Besiege) -> None:
    lines = [line.split() for line in besiege("train", "--help").out.splitlines()]
    for name, family in FAMILIES.items():
        assert [name, *family.title.split()] in lines


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
    (row,) = (line for line in besiege("data").out.splitlines() if "3x256x256" in line)
    assert row.split()[:3] == ["imagenet-sample", "-", "1,000"]
    told = {line["name"]: line for line in json.loads(besiege("data", "--json").out)}
    assert told["cifar10"]["shape"] == [3, 32, 32] and told["digits"]["where"]["test"] == "shipped"


def test_models(besiege: Besiege) -> None:
    said = besiege("models")
    assert (
        "zoo:digits-natural" in said.out and "digits_cnn" in said.out and ".py:factory" in said.out
    )
    words = said.out.split()
    assert all(row.name in words for row in listing()), "a name was folded"
    told = json.loads(besiege("models", "--json").out)
    assert {"models", "architectures", "forms"} == set(told)
    row = next(m for m in told["models"] if m["name"] == "zoo:digits-natural")
    assert row["present"] and row["parameters"] == 38282 and row["threat"] == "linf:0.15"
    assert row["recipe"] == "natural@digits(epochs=80)" and "[7.3, 13.5]" in row["autoattack"]


@pytest.mark.parametrize(
    ("width", "line", "left_out"),
    [
        (60, "zoo:digits-pgd-at digits_cnn 98.2 75.6 73.8", "show recipes, threats, numbers"),
        (80, "zoo:digits-pgd-at digits_cnn pgd-at 98.2 75.6 73.8", "show threats, numbers"),
        (
            110,
            "zoo:digits-pgd-at digits_cnn pgd-at linf:0.15 38.3 k 98.2 75.6 73.8",
            "show 95 % intervals and arguments",
        ),
        (
            200,
            "zoo:digits-pgd-at digits_cnn pgd-at linf:0.15 38.3 k "
            "98.2 [96.4, 99.3] 75.6 [71.0, 79.7] 73.8 [69.2, 78.1]",
            "",
        ),
    ],
)
def test_models_are_listed_with_what_fits_and_the_rest_is_named(
    width: int, line: str, left_out: str, besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = besiege("models").out
    assert line in [" ".join(text.split()) for text in out.splitlines()]
    assert max(map(len, out.splitlines())) <= width or width == 60
    flat = " ".join(out.split())
    assert (left_out in flat) if left_out else ("also show" not in flat)


def test_public_models_without_weights_are_listed_as_missing(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    out = besiege("models").out
    assert "public:mnist_lenet_adv lenet missing 98.64" in " ".join(out.split())
    assert "Put missing weights into BESIEGE_DATA/weights." in out


def test_a_thousand_classes_are_not_listed_one_by_one(besiege: Besiege) -> None:
    said = besiege("show", "imagenet-sample").out
    assert "1,000, from tench to toilet tissue" in said and "goldfish" not in said
    assert "goldfish" in besiege("data", "--json").out


def test_defenses(besiege: Besiege) -> None:
    said = besiege("defenses")
    assert said.code == 0 and max(map(len, said.out.splitlines())) <= 80
    told = {
        line["name"]: line for line in json.loads(besiege("defenses", "--json").out)["defenses"]
    }
    assert list(told) == LAYERS.names() and all(name in said.out for name in told)
    assert told["bits"]["gradient"] == "of a surrogate" and told["adapt"]["gradient"] == "its own"
    assert told["resize_pad"]["stochastic"] and not told["bits"]["stochastic"]
    assert told["bits"]["parameters"] == {"depth": "4", "levels": "None", "how": "'round'"}


def test_numbers_of_255ths_are_shown_as_they_are_written(besiege: Besiege) -> None:
    shown = besiege("defenses").out
    assert "eps=16/255" in shown and "sigma=16/255" in shown and "0.0627" not in shown
    assert json.loads(besiege("show", "randmix", "--json").out)["parameters"]["sigma"] == "16/255"
    assert json.loads(besiege("show", "pgd@madry-mnist", "--json").out)["parameters"][
        "schedule"
    ] == ("constant(step=1/30)")


def test_names_of_listings_are_not_broken(besiege: Besiege) -> None:
    """At 80 columns, where the tests run: a broken name can be neither read nor copied."""
    presets = {line.split()[0] for line in besiege("attacks", "--presets").out.splitlines() if line}
    assert set(PRESETS.names()) <= presets
    forms = {line.split()[0] for line in besiege("defenses").out.splitlines() if line}
    assert set(FORMS) <= forms


def test_examples_of_help_pages_fit_into_80_columns() -> None:
    """A longer line is folded, and what is copied of it is two commands."""
    for module in pkgutil.iter_modules(cli.__path__):
        found = vars(importlib.import_module(f"{cli.__name__}.{module.name}")).values()
        for app in (one for one in found if isinstance(one, App)):
            for line in (app.help_epilogue or "").splitlines():
                assert len(line) <= 80, f"besiege {app.name[0]}: {line}"


def test_a_layer_is_shown_with_its_parameters(besiege: Besiege) -> None:
    told = json.loads(besiege("show", "bits(depth=3)", "--json").out)
    assert told["kind"] == "defense"
    assert told["parameters"] == {"depth": "3", "levels": "None", "how": "'round'"}
    assert told["facts"]["written"] == "MODEL+bits(depth=3)"
    said = besiege("show", "bits(dept=3)")
    assert said.code == 2 and "did you mean 'depth'" in said.flat


def test_autoattack_is_shown_as_the_suite_that_it_is(besiege: Besiege) -> None:
    for name in ("autoattack", "AA", "standard"):
        said = " ".join(besiege("show", name).out.split())
        assert said.startswith("standard suite") and "also called autoattack, aa" in said
        assert "An independent implementation of AutoAttack" in said
