"""The attacks that were asked for, as the advice of findings changes them: longer, or with others.

Texts are changed, not attacks: figures are read without torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from besiege.attacks.suites import SUITES
from besiege.bench.spec import AttackSpec
from besiege.core.errors import Finding
from besiege.core.threat import Goal, Threat

MORE = "give it more"
"""The words of an advice about one attack, which the finding names."""
LEAST: Mapping[str, int] = {"steps": 100, "restarts": 2, "count": 20}
"""A longer attack has twice as much of what it needs more of, and at least so much; `count` is the
number of draws, which is not doubled."""

UNTARGETED = ("apgdt", "each_target", "fab(", "rays")
"""Attacks of suites that choose the class themselves, and have no place under a target."""


def longer(
    texts: Sequence[str], attacks: Sequence[AttackSpec], findings: Iterable[Finding]
) -> tuple[list[str], list[Finding]]:
    """The same attacks with more of what findings ask for, and the findings that this leaves open.

    `texts` are those of the request, `attacks` the same ones as the plan describes them.
    """
    changed, rest = list(texts), []
    wanted: list[set[str]] = [set() for _ in texts]
    for finding in findings:
        named = list(_named(finding, texts, attacks))
        needs = _needs(finding) if named else set()
        for place in named:
            wanted[place] |= needs
        if not needs:
            rest.append(finding)
    for place, (text, spec) in enumerate(zip(texts, attacks, strict=False)):
        if wanted[place]:
            changed[place] = _with_more(text, spec.spelled, wanted[place])
    return distinct(changed), rest


def _named(finding: Finding, texts: Sequence[str], attacks: Sequence[AttackSpec]) -> Iterator[int]:
    """The places of the attacks that a finding wants to be longer, if they can be."""
    if MORE not in finding.advice.casefold():
        return
    # Where the advice names an attack, the sentence before it names what that one missed.
    about = finding.advice if "'" in finding.advice else finding.seen
    for place, (text, spec) in enumerate(zip(texts, attacks, strict=False)):
        known = f"'{text}'" in about or f"'{spec.text}'" in about
        needs = _needs(finding)
        if known and needs and _with_more(text, spec.spelled, needs) != text:
            yield place


def _needs(finding: Finding) -> set[str]:
    """What an attack is to be given more of: by the rule, or by what the advice counts."""
    usual = {"W05": {"steps"}, "W06": {"restarts"}, "W07": {"steps"}}
    if finding.id in usual:
        return usual[finding.id]
    words = {"steps": "takes only", "count": "averages only"}
    return {name for name, said in words.items() if said in finding.advice}


def beside(texts: Sequence[str], others: Iterable[str]) -> list[str]:
    """The attacks, and after them others that are not among them."""
    return distinct([*texts, *others])


def distinct(texts: Iterable[str]) -> list[str]:
    """Each attack once, however it is written."""
    known: dict[str, str] = {}
    for text in texts:
        known.setdefault(_normal(text), text)
    return list(known.values())


def suite_attacks(name: str, threat: Threat, **traits: bool) -> tuple[str, ...]:
    """The attacks of a suite that can stand in a list under a threat, without `oblivious` ones."""
    listed = SUITES[name].attacks_for(threat.norm, **traits, defended=False)
    if threat.goal is Goal.UNTARGETED:
        return listed
    return tuple(text for text in listed if not any(word in text for word in UNTARGETED))


def _with_more(text: str, spelled: Mapping[str, Any], what: set[str]) -> str:
    """The text of an attack with more steps, restarts or draws; the same where it has none."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text
    changed = _grown(tree, spelled, what)
    return text if changed is None else ast.unparse(changed)


def _grown(node: ast.expr, spelled: Mapping[str, Any], what: set[str]) -> ast.expr | None:
    """A word or a call with larger numbers, also of the attacks inside; None where it has none."""
    if not isinstance(node, (ast.Name, ast.Call)):
        return None  # a preset: its numbers are those that were published
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name != spelled.get("name"):
        return None
    inside = list(_parts(spelled))
    found = False
    for place, one in enumerate(call.args):
        for part in inside:
            if (grown := _grown(one, part, what)) is not None:
                call.args[place], found = grown, True
                break
    for word in what:
        value = spelled.get(word)
        # One step is a choice, and a count is that of draws only in averages.
        fits = name == "averaged" if word == "count" else word != "steps" or value != 1
        if isinstance(value, int) and fits:
            more = max(value if word == "count" else 2 * value, LEAST[word])
            found |= more != value
            _set(call, word, more)
    return call if found else None


def _parts(spelled: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in spelled.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and "name" in one:
                yield one


def _set(call: ast.Call, name: str, value: int) -> None:
    """Give an argument a value, where it stands or as a new keyword before the others."""
    number = ast.Constant(value)
    for keyword in call.keywords:
        if keyword.arg == name:
            keyword.value = number
            return
    if name == "count" and len(call.args) > 1:
        call.args[1] = number
    else:
        call.keywords.insert(0, ast.keyword(name, number))


def _normal(text: str) -> str:
    """A text that is the same for all ways to write an attack with these arguments."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords.sort(key=lambda one: one.arg or "")
    return ast.unparse(tree)
