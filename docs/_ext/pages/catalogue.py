"""Pages of everything with a name besides attacks: data sets, models, recipes, defenses, laws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from typing import Any

from besiege.cli.lookup import Found, look_up
from besiege.core.registry import Registry
from besiege.data.catalogue import CATALOGUE as DATA
from besiege.defenses.layers import LAYERS
from besiege.models.catalogue import CATALOGUE as ARCHITECTURES
from besiege.models.catalogue import FORMS, listing
from besiege.testing import LAWS
from besiege.training.catalogue import CATALOGUE as FAMILIES
from besiege.training.objectives import OBJECTIVES
from besiege.training.radii import RADII
from besiege.training.recipes import RECIPES, Recipe
from besiege.training.updates import UPDATES

from .attacks import described
from .markup import code, facts, joined, table

_OF_THIS_MACHINE = ("weights", "here")
_LONG = ("sha256", "entries", "settings", "identity")


def catalogue_pages() -> dict[str, str]:
    """All pages below ``reference/`` that list names."""
    return {
        "reference/data": data_page(),
        "reference/models": models_page(),
        "reference/recipes": recipes_page(),
        "reference/defenses": defenses_page(),
        "reference/laws": laws_page(),
    }


def data_page() -> str:
    """The named data sets, and how to use your own."""
    return joined(
        "# Data sets",
        "A data set is a name, the path of a folder with one folder of images per class, the path "
        "of an `.npz` file with `x` and `y`, or a pair of tensors (see "
        "[the start](../start.md)). Named sets that do not come with besiege are searched below "
        "the folder that `BESIEGE_DATA` names, then in the user's cache. A set in neither is "
        "downloaded when it is used, and checked, unless `BESIEGE_OFFLINE` is set; only "
        "`imagenet-sample` is not downloaded. `besiege data` lists where each one is.",
        *(_section(look_up(name)) for name in DATA),
    )


def models_page() -> str:
    """The forms of a model, the models with a name, and the architectures."""
    figures = [
        (code(row.name), row.built, row.recipe, row.threat, row.clean, row.pgd20, row.autoattack)
        for row in listing()
    ]
    cards = [look_up(row.name) for row in listing() if row.name.startswith("zoo:")]
    return joined(
        "# Models",
        "## How a model is written",
        table(("form", "what it is"), [(code(form), about) for form, about in FORMS.items()]),
        "Defenses are written after a plus sign: `zoo:digits-natural+bits(depth=3)` "
        "(see [defenses](defenses.md)).",
        "## Models with a name",
        "Accuracies on test images of its data, with 95 % intervals: clean, under PGD with 20 "
        "steps and under AutoAttack; a part of the images is drawn with seed 0, and `besiege "
        "evaluate MODEL --data D --threat THREAT --count N --suite standard` repeats the last. "
        "The cards below say what the literature led to expect. `imagenet-sample` "
        "may hold training images, so accuracies on it run above published ones. Put public "
        "weights into `BESIEGE_DATA/weights`; `besiege show MODEL` names the file.",
        table(
            ("model", "architecture", "recipe", "threat", "clean", "pgd20", "autoattack"), figures
        ),
        "## Cards of the zoo",
        *(joined(f"### {card.name}", card.about, _known(card)) for card in cards),
        "## Architectures",
        table(
            ("architecture", "what it is", "arguments", "images"),
            [
                (code(name), known.about, code(known.arguments), "x".join(map(str, known.shape)))
                for name, known in ARCHITECTURES.items()
            ],
        ),
    )


def recipes_page() -> str:
    """The recipes, their fields, and the values of their slots."""
    texts = described(Recipe)
    usual = look_up("natural").parameters
    slots: dict[str, Registry[Any]] = {
        "Objectives": OBJECTIVES,
        "Radii": RADII,
        "Updates": UPDATES,
    }
    return joined(
        "# Recipes",
        "A recipe says how a model is trained. Change fields in its text, such as "
        "`\"pgd-at(epochs=30, threat='linf:0.1')\"`, or with options of "
        "[`besiege train`](commands.md#besiege-train). A recipe given by name is the "
        "variant of its data, if there is one: `pgd-at` on `cifar10` is `pgd-at@cifar10`. "
        "[Training defenses](../training.md) says what each needs.",
        table(
            ("recipe", "what it is", "source"),
            [(code(name), family.title, family.source) for name, family in FAMILIES.items()],
        ),
        "## Fields",
        table(
            ("field", "default", "what it is"),
            [(code(name), code(value), texts.get(name, "")) for name, value in usual.items()],
        ),
        "## All recipes",
        *(_recipe(look_up(f"recipe:{name}"), usual) for name in RECIPES.names()),
        *(
            part
            for title, registry in slots.items()
            for part in (f"## {title}", *_values(registry.kind, registry.names()))
        ),
    )


def _recipe(found: Found, usual: Mapping[str, str]) -> str:
    """A recipe by what differs from the default."""
    own = {name: value for name, value in found.parameters.items() if value != usual[name]}
    listed = ", ".join(code(f"{name}={value}") for name, value in own.items())
    return joined(
        f"### {found.name}",
        found.about,
        f"Fields that differ: {listed}." if own else "All fields have their defaults.",
    )


def _values(kind: str, names: Iterable[str]) -> Iterator[str]:
    """The values of a slot of recipes, with their parameters."""
    for name in names:
        found = look_up(f"{kind}:{name}")
        usual = ", ".join(code(f"{key}={value}") for key, value in found.parameters.items())
        yield joined(f"### {kind} {name}", found.about, f"Parameters: {usual}." if usual else "")


def defenses_page() -> str:
    """The layers that can be put in front of a model."""
    parts = []
    for name, kind in LAYERS.items():
        note = "Stochastic: attack it with `averaged(...)`." if kind.stochastic else ""
        parts.append(
            joined(_section(look_up(f"defense:{name}")), note, f"`zoo:digits-natural+{name}`")
        )
    return joined(
        "# Defenses",
        "A defense is a layer in front of a model, written after a plus sign: "
        "`zoo:digits-natural+bits(depth=3)`. Several layers are applied in order. "
        "`besiege defenses` prints this list. [Your own defense](../own-defense.md) is a class of "
        "a few lines.",
        *parts,
    )


def laws_page() -> str:
    """What every attack must obey."""
    parts = []
    for name, law in LAWS.items():
        about = cleandoc(law.__doc__ or "").partition(": ")[2]
        first, _, rest = about.replace("``", "`").partition("\n")
        parts.append(
            joined(f"## {law.number}. {name}", f"**{first[:1].upper()}{first[1:]}**", rest)
        )
    return joined(
        "# The laws",
        "Every registered attack is tested against these laws, in every norm and for every goal it "
        "declares. `besiege.testing.conform` tests [your own](../own-attack.md). A law that an "
        "attack cannot obey needs a written reason.",
        *parts,
    )


def _section(found: Found) -> str:
    parameters = [(code(name), code(str(value))) for name, value in found.parameters.items()]
    return joined(
        f"## {found.name}",
        found.about,
        _known(found),
        table(("parameter", "default"), parameters),
    )


def _known(found: Found) -> str:
    left_out = (*_OF_THIS_MACHINE, *_LONG)
    return facts(
        {k: v for k, v in found.facts.items() if k not in left_out and v not in (None, "", {}, ())}
    )
