"""Looks up a name of any kind (attack, model, data set, ...) and describes it in plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from besiege.core.errors import UnknownNameError, near
from besiege.core.rules import CODED, SURROGATE, TITLES

if TYPE_CHECKING:
    from besiege.core.presets import Preset


@dataclass(frozen=True)
class Found:
    """The description of a named object.

    Attributes
    ----------
    kind, name, about : str
        Its kind, its name, and one or two sentences.
    facts : dict
        Its properties.
    parameters : dict
        Its parameters and their defaults.
    """

    kind: str
    name: str
    about: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


def look_up(name: str) -> Found:
    """The object of a name, or an error with the nearest names of every kind.

    Examples
    --------
    >>> look_up("digits").kind
    'data set'
    """
    from besiege.attacks.suites import OTHER_NAMES, suite_name

    if name.upper() in TITLES:
        return _rule(name.upper())
    if name.lower() in ("layer", "defended"):
        return _own_layer()
    light = _light()
    if (known := suite_name(name)) in light:
        return light[known]
    heavy = _heavy()
    if name in heavy:
        return heavy[name]
    if any(sign in name for sign in ("(", ".py:", "@")):
        return _written(name)
    close = near(name, [*light, *heavy, *OTHER_NAMES])
    if not close.startswith("did you mean"):
        close = "besiege attacks, defenses, models and data list all names"
    raise UnknownNameError(f"nothing is called '{name}': {close}")


def _page(name: str) -> str:
    """A page of the documentation; the package has copies of those it shows."""
    return (Path(__file__).parent / "pages" / name).read_text("utf-8")


def _rule(id: str) -> Found:
    """A warning rule, as the documentation explains it."""
    text = _page("warnings.md").partition(f"### {id} ")[2]
    text = re.split(r"^##", text, maxsplit=1, flags=re.M)[0].partition("\n")[2]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")  # plain text
    parts = re.split(r"\*\*(Level|Fires when|What to do)[:]?\*\*|\*(Reference):", text)
    found = [part for part in parts if part is not None]
    facts = {
        title.lower(): " ".join(words.split("\n\n")[0].split()).strip(" *")
        for title, words in zip(found[1::2], found[2::2], strict=True)
    }
    second = " ".join(text.split("\n\n")[1].split())
    meaning = "" if second.startswith("**") else second
    more = {"code": SURROGATE} if id in CODED else {}
    return Found("rule", f"{id} {TITLES[id]}", meaning, {**facts, **more})


def _own_layer() -> Found:
    """A layer of one's own: the first example of the documentation."""
    page = _page("own-defense.md")
    code = page.partition("```python\n")[2].partition("```")[0]
    about = " ".join(page.partition("## A layer without a gradient\n")[2].split("\n\n")[0].split())
    ran = {"run it": "besiege evaluate my_defense.py:make --data digits --threat linf:0.1"}
    return Found("defense of your own", "Layer", about, {"code": code, **ran})


def _light() -> dict[str, Found]:
    """The objects that can be described without torch."""
    from besiege.attacks.suites import OTHER_NAMES, SUITES
    from besiege.data.catalogue import CATALOGUE as DATA
    from besiege.models.catalogue import CATALOGUE, listing, zoo_card
    from besiege.models.public import PUBLIC

    found = {}
    for name, known in CATALOGUE.items():
        arguments = dict(part.split("=") for part in known.arguments.split(", "))
        facts = {"usual images": "x".join(map(str, known.shape))}
        found[name] = Found("architecture", name, known.about, facts, arguments)
    for row in listing():
        scheme, _, short = row.name.partition(":")
        card = zoo_card(short) if scheme == "zoo" else vars(PUBLIC[short])
        properties = {key: value for key, value in card.items() if key != "name"}
        properties |= {"weights": str(row.weights or "no data root is set"), "here": row.present}
        about = f"{row.architecture}, trained on {row.data}, {row.clean} clean"
        found[short] = found[row.name] = Found("model", row.name, about, properties)
    for name, suite in SUITES.items():
        listed: dict[str, Any] = {"attacks": list(suite.attacks)}
        listed |= {f"in {norm}": list(others) for norm, others in suite.others.items()}
        listed["how"] = "each attack runs on the images that withstood the ones before"
        called = [other for other, known in OTHER_NAMES.items() if known == name]
        listed |= {"also called": called} if called else {}
        listed |= {"origin": suite.origin} if suite.origin else {}
        found[name] = Found("suite", name, suite.told, listed)
    for name, entry in DATA.items():
        found[name] = Found(
            "data set",
            name,
            entry.title,
            {
                "images": dict(entry.images),
                "shape": "x".join(map(str, entry.shape)),
                "classes": list(entry.class_names),
                "usual threats": list(entry.threats),
                "published at": list(entry.addresses) or "comes with an installed package",
            },
        )
    return found


def _heavy() -> dict[str, Found]:
    """The objects whose description needs torch."""
    from besiege.attacks.attack import PIECES
    from besiege.attacks.combine import Combined
    from besiege.core.attack_registry import ATTACKS
    from besiege.defenses.layers import LAYERS
    from besiege.training.recipes import RECIPES

    found = {name: _layer(name, kind, defaults(kind)) for name, kind in LAYERS.items()}
    found |= {name: _made("piece", name, kind) for name, kind in PIECES.items()}
    for name, plan in RECIPES.items():
        settings = {key: str(value) for key, value in plan.settings().items() if key != "name"}
        against = f"adversarial training against {plan.threat}"
        about = "natural training" if plan.attack is None else against
        found[name] = Found("recipe", name, about, {}, settings)
    for name, thing in ATTACKS.items():
        if isinstance(thing, type) and issubclass(thing, Combined):  # needs another attack
            found[name] = _made("attack", name, thing)
        else:
            found[name] = _attack(name, thing() if isinstance(thing, type) else thing)
    return found


def _written(text: str) -> Found:
    """An attack or a layer in its text form, with the parameters of that text."""
    from besiege.attacks.attack import parse
    from besiege.core import presets
    from besiege.core.vocabulary import parameters
    from besiege.defenses.layers import LANGUAGE, LAYERS

    if text in presets.PRESETS:
        return _preset(presets.PRESETS.get(text), text)
    if text.partition("(")[0].strip() in LAYERS:
        layer = LANGUAGE.read(text)
        values = {f.name: LANGUAGE.text(getattr(layer, f.name)) for f in parameters(layer)}
        return _layer(text, layer, values)
    attack = parse(text)
    found = presets.outermost(text)
    return _attack(text, attack) if found is None else _preset(found[0], text)


def _preset(preset: Preset, text: str) -> Found:
    """A published form of an attack, perhaps with further arguments.

    One that is made of an attack is described with the attack it was published with, unless the
    text names another.
    """
    from besiege.attacks.attack import parse
    from besiege.core import presets

    alone = text == preset.name
    attack = parse(f"{text}({preset.of})" if alone and preset.of else text)
    facts = {
        "published for": list(preset.threats),
        "also defined in": list(preset.also),
        "write": f"{preset.name}({preset.of})" if preset.of else "",
        "reads as": preset.text if alone else str(attack),
        "differs": preset.differs or "nothing known",
        "compared with": "\n".join(map(str, preset.checks)) or "nothing",
    }
    facts = {name: fact for name, fact in facts.items() if fact}
    found = _attack(text, attack)
    about = presets.described(text) or preset.source
    # It is refused in other norms than these, whatever the attack itself works in.
    norms = {"norms": [norm for norm in found.facts["norms"] if norm in map(str, preset.norms)]}
    return Found("preset", text, about, {**facts, **found.facts, **norms}, found.parameters)


def published(attack: str) -> dict[str, Any]:
    """The presets of an attack, and how its default differs from the paper's method."""
    from besiege.core.presets import presets_of

    mine = presets_of(attack)
    lines = [f"compared with {one.name}: {one.default}" for one in mine if one.default]
    facts = {"default": "\n".join(lines), "presets": [preset.name for preset in mine]}
    return {name: fact for name, fact in facts.items() if fact}


def _attack(name: str, attack: Any) -> Found:
    from besiege.attacks.attack import LANGUAGE, told
    from besiege.core.threat import Goal, Norm
    from besiege.core.vocabulary import parameters

    sought = "the smallest perturbation" if attack.minimal else "a perturbation within the budget"
    facts = {
        "norms": [str(norm) for norm in Norm if norm in attack.norms],
        "goals": [str(goal) for goal in Goal if goal in attack.goals],
        "access": str(attack.access),
        "searches for": sought,
        "revision": attack.revision,
        **published(name),
    }
    values = {f.name: LANGUAGE.text(getattr(attack, f.name)) for f in parameters(attack)}
    return Found("attack", name, told(attack), facts, values)


def _made(kind: str, name: str, cls: Any) -> Found:
    """A class of values, with the defaults of its fields."""
    text = " ".join((cls.__doc__ or "").partition("Parameters\n")[0].split()).replace("``", "`")
    facts = {"slot": _slot(cls)} if kind == "piece" else published(name)
    return Found(kind, name, text, facts, defaults(cls))


def defaults(cls: Any) -> dict[str, str]:
    """The parameters of a class of values with their defaults, as text."""
    from besiege.attacks.attack import LANGUAGE
    from besiege.core.vocabulary import parameters

    usual = {}
    for f in parameters(cls):
        value = f.default_factory() if f.default_factory is not MISSING else f.default
        usual[f.name] = "required" if value is MISSING else LANGUAGE.text(value)
    return usual


def _layer(name: str, layer: Any, values: Mapping[str, str]) -> Found:
    """A layer, by its class or with the parameters of its text."""
    from besiege.cli.defenses import described

    kind = layer if isinstance(layer, type) else type(layer)
    about = described(name, kind)
    facts = {
        "gradient": about["gradient"],
        "stochastic": about["stochastic"],
        "written": f"MODEL+{name}",
    }
    return Found("defense", name, _made("defense", name, kind).about, facts, values)


def _slot(cls: type) -> str:
    slots = {"Start": "start", "Part": "direction", "Schedule": "schedule"}
    slots |= {"Radius": "radius", "Place": "place"}
    return next((slots[base.__name__] for base in cls.__mro__ if base.__name__ in slots), "loss")
