"""Describes recipes, and the objectives, radii and updates that fill their slots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from besiege.cli.lookup import Found, Named, defaults, described
from besiege.core.shell import shell

if TYPE_CHECKING:
    from besiege.core.registry import Registry
    from besiege.training.recipes import Recipe


def recipes() -> Iterator[Named]:
    """Every recipe, and every family that has recipes for some data sets only."""
    from besiege.training.catalogue import CATALOGUE
    from besiege.training.recipes import RECIPES

    for name, plan in RECIPES.items():
        yield Named("recipe", name, partial(recipe_found, plan))
    for family in CATALOGUE:
        if family not in RECIPES and (variants := _variants(family)):
            yield Named("recipe", family, partial(_family_found, family, variants))


def _family_found(family: str, variants: list[str]) -> Found:
    """A family of recipes, none of which is for any data."""
    facts = {"variants": variants, "run it": command(family, _data_of(variants[0]))}
    return Found("recipe", family, _about(family), _named(family) | facts)


def recipe_found(plan: Recipe) -> Found:
    """A recipe: what it is, where it differs from natural training, and its settings."""
    from besiege.training.recipes import RECIPES

    family, _, variant = plan.name.partition("@")
    data = _data_of(plan.name)
    usual = f"natural@{variant}" if f"natural@{variant}" in RECIPES else "natural"
    values, natural = settings(plan), settings(RECIPES.get(usual))
    own = {key: value for key, value in values.items() if value != natural[key]}
    facts: dict[str, Any] = _named(family)
    if plan.name != usual:
        facts[f"unlike {usual}"] = own or "no setting"
    facts["variants"] = [name for name in _variants(family) if name != plan.name]
    facts["run it"] = command(str(plan), data)
    return Found("recipe", str(plan), _about(family), facts, values)


def settings(plan: Recipe) -> dict[str, str]:
    """The settings of a recipe as texts."""
    found = {key: value for key, value in plan.settings().items() if key != "name"}
    found["layers"] = list(map(str, plan.layers))
    return {key: _plain(value) for key, value in found.items()}


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def command(text: str, data: str) -> str:
    """A command that trains by a recipe."""
    from besiege.training.catalogue import CATALOGUE, network_for

    family = text.partition("(")[0].partition("@")[0]
    arch = network_for(family if family in CATALOGUE else "natural", data)
    words = ("--data", data, "--arch", arch, "--out", f"{family}.safetensors")
    return shell(["besiege", "train", text, *words])


def slots() -> Iterator[Named]:
    """Every objective, radius and update."""
    from besiege.training.objectives import OBJECTIVES
    from besiege.training.radii import RADII
    from besiege.training.updates import UPDATES

    for registry in (OBJECTIVES, RADII, UPDATES):
        for name, kind in _items(registry):
            yield Named(registry.kind, name, partial(_slot_found, registry.kind, name, kind))


def _items(registry: Registry[Any]) -> Iterator[tuple[str, Any]]:
    return registry.items()


def _slot_found(slot: str, name: str, kind: type) -> Found:
    return slot_found(slot, name, kind, defaults(kind))


def slot_found(slot: str, name: str, kind: type, values: dict[str, str]) -> Found:
    """A value of a slot, with the recipes that have it there."""
    from besiege.training.recipes import RECIPES

    families = [
        family.partition("@")[0]
        for family, plan in RECIPES.items()
        if isinstance(getattr(plan, slot), kind)
    ]
    facts = {"written": f"RECIPE({slot}={name})", "recipes": list(dict.fromkeys(families))}
    return Found(slot, name, described(kind), facts, values)


def _about(family: str) -> str:
    from besiege.training.catalogue import CATALOGUE

    title = CATALOGUE[family].title if family in CATALOGUE else "a recipe of your own"
    return f"{title[:1].upper()}{title[1:]}."


def _named(family: str) -> dict[str, Any]:
    """What the catalogue says about a family."""
    from besiege.training.catalogue import CATALOGUE

    if family not in CATALOGUE:
        return {}
    known = CATALOGUE[family]
    facts = {"source": known.source}
    if known.needs:
        facts["architecture"] = f"{known.network.format('ARCH')}: {known.needs}"
    return {name: fact for name, fact in facts.items() if fact}


def _variants(family: str) -> list[str]:
    from besiege.training.recipes import RECIPES

    return [name for name in RECIPES.names() if name.partition("@")[0] == family]


def _data_of(name: str) -> str:
    """The data set of a variant such as pgd-at@mnist or nat@deepsec-cifar10; digits for others."""
    from besiege.training.catalogue import NETWORKS

    known = [data for data in NETWORKS if name.partition("@")[2].endswith(data)]
    return known[0] if known else "digits"
