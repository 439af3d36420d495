"""Looks up a name of any kind (attack, model, data set, ...) and describes it in plain values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from besiege.core.errors import BesiegeError, UnknownNameError, near
from besiege.core.rules import CODED, SURROGATE, TITLES
from besiege.core.text import fractions

if TYPE_CHECKING:
    from besiege.core.presets import Preset
    from besiege.defenses.presets import Form

_MOST_CLASSES = 100
"""How many names of classes are listed."""


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


@dataclass(frozen=True)
class Named:
    """An object that can be looked up. To describe all of them takes a while, to name them none."""

    kind: str
    name: str
    describe: Callable[[], Found]


def look_up(name: str) -> Found:
    """The object of a name, or an error with the nearest names of every kind.

    Examples
    --------
    >>> look_up("digits").kind
    'data set'
    """
    from besiege.attacks.suites import OTHER_NAMES, suite_name
    from besiege.core.presets import PRESETS

    if name.upper() in TITLES:
        return _rule(name.upper())
    if name.lower() in ("layer", "defended"):
        return _own_layer()
    light = _light()
    if (known := suite_name(name)) in light:
        return _with_recipe(light[known])
    kind, _, short = name.partition(":")
    if short in light and light[short].kind == kind:
        return _with_recipe(light[short])
    if name in PRESETS:  # no name of another kind is like these
        return _written(name)
    heavy = list(_heavy())
    meanings = [found for found in heavy if name in (found.name, f"{found.kind}:{found.name}")]
    if meanings:
        return _with_others(meanings[0].describe(), heavy)
    if any(sign in name for sign in ("(", ".py:", "@")):
        return _written(name)
    close = near(name, [*light, *(found.name for found in heavy), *OTHER_NAMES])
    if not close.startswith("did you mean"):
        close = "besiege attacks, defenses, models and data list all names"
    raise UnknownNameError(f"nothing is called '{name}': {close}")


def _with_recipe(found: Found) -> Found:
    """The object, and how to see the recipe of the same name; torch is not needed for it."""
    from besiege.training.catalogue import CATALOGUE

    return _with_others(found, (Found("recipe", family, "") for family in CATALOGUE))


def _with_others(found: Found, known: Iterable[Found | Named]) -> Found:
    """The object, and how to see the ones of other kinds with the same name."""
    others = [one.kind for one in known if one.name == found.name and one.kind != found.kind]
    if not others:
        return found
    told = [f"{kind}: besiege show {kind}:{found.name}" for kind in others]
    return replace(found, facts={**found.facts, "also the name of": "\n".join(told)})


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
    from besiege.models.catalogue import CATALOGUE, layer_of, listing, zoo_card
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
        about = f"{row.built} for {row.data}"
        if row.clean:
            about += f", {row.clean.partition('%')[0]}% clean"
        elif layer := layer_of(row.name):
            about += f", the network of the layer {layer}"
        found[short] = found[row.name] = Found("model", row.name, about, properties)
    for name, suite in SUITES.items():
        listed: dict[str, Any] = {
            where or "attacks": list(texts) for where, texts in suite.lists.items()
        }
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
                "classes": _classes(entry.class_names),
                "usual threats": list(entry.threats),
                "published at": list(entry.addresses) or "comes with an installed package",
            },
        )
    return found


def _classes(names: tuple[str, ...]) -> list[str] | str:
    """The names of the classes, or how many there are where a list would fill pages."""
    if len(names) <= _MOST_CLASSES:
        return list(names)
    return f"{len(names):,}, from {names[0]} to {names[-1]} (besiege data --json lists them)"


def _heavy() -> Iterator[Named]:
    """The objects whose description needs torch; of equal names the first one is shown."""
    from besiege.attacks.attack import PIECES
    from besiege.attacks.combine import Combined
    from besiege.cli.recipes import recipes, slots
    from besiege.core.attack_registry import ATTACKS
    from besiege.defenses.detecting import DETECTORS
    from besiege.defenses.layers import LAYERS
    from besiege.defenses.pooling import POOLS

    def attack(name: str, thing: Any) -> Found:
        if isinstance(thing, type) and issubclass(thing, Combined):  # needs another attack
            return _made("attack", name, thing)
        return _attack(name, thing() if isinstance(thing, type) else thing)

    def layer(name: str, kind: Any) -> Found:
        return _layer(name, kind, defaults(kind))

    for name, thing in ATTACKS.items():
        yield Named("attack", name, partial(attack, name, thing))
    yield from recipes()
    for name, kind in LAYERS.items():
        yield Named("defense", name, partial(layer, name, kind))
    for name, pool in POOLS.items():
        yield Named("defense", name, partial(_made, "defense", name, pool))
    for name, detector in DETECTORS.items():
        yield Named("detector", name, partial(_detector, name, detector))
    for name, piece in PIECES.items():
        yield Named("piece", name, partial(_made, "piece", name, piece))
    yield from slots()


def _written(text: str) -> Found:
    """An attack, a layer, a recipe or a part of one in its text form, with these parameters."""
    from besiege.attacks.attack import parse
    from besiege.core import presets
    from besiege.defenses.presets import FORMS

    if text in presets.PRESETS:
        return _preset(presets.PRESETS.get(text), text)
    if text in FORMS:
        return _form(FORMS[text])
    if (other := _no_attack(text)) is not None:
        return other
    attack = parse(text)
    found = presets.outermost(text)
    return _attack(text, attack) if found is None else _preset(found[0], text)


def _no_attack(text: str) -> Found | None:
    """What a text other than an attack's is, by its name and parameters; None if it may be one."""
    from besiege.cli.recipes import recipe_found, slot_found
    from besiege.core.vocabulary import parameters
    from besiege.defenses.layers import LANGUAGE as LAYERS
    from besiege.training import objectives, radii, updates
    from besiege.training.recipes import RECIPES, recipe

    name, problem = text.partition("(")[0].strip(), None
    # A name may be of several kinds: the parameters tell which one is meant.
    if name in RECIPES:
        try:
            return recipe_found(recipe(text))
        except BesiegeError as error:
            problem = error
    for language in (LAYERS, objectives.LANGUAGE, radii.LANGUAGE, updates.LANGUAGE):
        if name not in language.names():
            continue
        try:
            value = language.read(text)
        except BesiegeError as error:
            problem = problem or error
            continue
        values = {f.name: language.text(getattr(value, f.name)) for f in parameters(value)}
        if language is LAYERS:
            return _layer(text, value, values)
        return slot_found(language.registries[0].kind, text, type(value), values)
    if problem is not None:
        raise problem
    return None


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
    values = {f.name: fractions(LANGUAGE.text(getattr(attack, f.name))) for f in parameters(attack)}
    return Found("attack", name, told(attack), facts, values)


def _made(kind: str, name: str, cls: Any) -> Found:
    """A class of values, with the defaults of its fields."""
    facts = {"slot": _slot(cls)} if kind == "piece" else published(name)
    return Found(kind, name, described(cls), facts, defaults(cls))


def described(cls: Any) -> str:
    """What the docstring of a class says before its parameters."""
    return " ".join((cls.__doc__ or "").partition("Parameters\n")[0].split()).replace("``", "`")


def defaults(cls: Any) -> dict[str, str]:
    """The parameters of a class of values with their defaults, as text."""
    from besiege.attacks.attack import LANGUAGE
    from besiege.core.vocabulary import parameters

    usual = {}
    for f in parameters(cls):
        value = f.default_factory() if f.default_factory is not MISSING else f.default
        usual[f.name] = "required" if value is MISSING else fractions(LANGUAGE.text(value))
    return usual


def _layer(name: str, layer: Any, values: Mapping[str, str]) -> Found:
    """A layer, by its class or with the parameters of its text."""
    from besiege.cli.defenses import described as about_layer

    kind = layer if isinstance(layer, type) else type(layer)
    about = about_layer(name, kind)
    facts = {
        "gradient": about["gradient"],
        "stochastic": about["stochastic"],
        "written": f"MODEL+{name}",
    }
    return Found("defense", name, described(kind), facts, values)


def _detector(name: str, kind: Any) -> Found:
    """A kind of detector."""
    facts = {
        "make one": f"besiege detector {name} --model MODEL --data DATA --fpr 0.05 --out FILE",
        "written": "MODEL+detector('FILE')",
    }
    return Found("detector", name, described(kind), facts, defaults(kind))


def _form(form: Form) -> Found:
    """A published form of a layer."""
    facts = {
        "reads as": form.text,
        "differs": form.differs or "nothing known",
        "written": f"MODEL+{form.name}",
        "attack it": f'besiege evaluate "MODEL+{form.name}" --data DATA --suite adaptive',
    }
    return Found("published form of a defense", form.name, f"{form.source}.", facts)


def _slot(cls: type) -> str:
    slots = {"Start": "start", "Part": "direction", "Schedule": "schedule"}
    slots |= {"Radius": "radius", "Place": "place"}
    return next((slots[base.__name__] for base in cls.__mro__ if base.__name__ in slots), "loss")
