"""Pages of attacks, of their pieces, and of suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring

from besiege.attacks.ascent import Ascent
from besiege.attacks.attack import LANGUAGE, PIECES, Attack, parse
from besiege.attacks.combine import Combined
from besiege.attacks.suites import SUITES
from besiege.cli.lookup import Found, look_up
from besiege.core.attack_registry import ATTACKS
from besiege.core.presets import PRESETS, Preset, presets_of
from besiege.core.vocabulary import parameters

from .examples import cost, in_python, in_shell
from .markup import block, code, contents, facts, first_sentence, joined, table

Run = Callable[[str], str]
SLOTS = ("start", "loss", "direction", "schedule", "radius", "place")
_EXAMPLES = {
    "repeat": "repeat(pgd(steps=10), 3)",
    "each_target": "each_target(pgd(steps=10, loss=margin), 3)",
    "cascade": "cascade(fgsm, pgd)",
    "best_of": "best_of(fgsm, pgd(steps=10))",
    "averaged": "averaged(pgd(steps=10), 5)",
    "minimal": "minimal(pgd(steps=20))",
}
"""Examples of combinators; for others one is made up."""
_DECIDES = {
    "start": "Where the ascent starts.",
    "loss": "The function that is raised.",
    "direction": "How a gradient becomes a move; links of a `chain` are applied in order.",
    "schedule": "How far each step moves.",
    "radius": "The ball each row moves in.",
    "place": "How a move is projected.",
}


def attack_pages(run: Run) -> dict[str, str]:
    """All pages below ``attacks/`` by name; `run` returns the output of an example."""
    single = [name for name, thing in ATTACKS.items() if not _combines(thing)]
    made = [name for name, thing in ATTACKS.items() if _combines(thing)]
    pages = {f"attacks/{name}": attack_page(name, run) for name in [*single, *made]}
    return {
        "attacks/index": _index(single, made),
        "attacks/pieces": pieces_page(),
        "attacks/suites": suites_page(),
        "attacks/presets": presets_page(),
        **pages,
    }


def example(name: str) -> str:
    """The text of an attack that can be run, for a registered name."""
    thing = ATTACKS.get(name)
    if name in _EXAMPLES or not _combines(thing):
        return _EXAMPLES.get(name, name)
    many = any(f.metadata.get("each") for f in parameters(thing))
    return f"{name}(fgsm, pgd)" if many else f"{name}(pgd)"


def known(name: str) -> Found:
    """The facts about a registered name, as ``besiege show`` prints them."""
    found = look_up(name)
    if found.facts or _combines(ATTACKS.get(name)):
        return found
    # A class has facts once it is called.
    return replace(look_up(f"{name}()"), name=name, about=found.about)


def attack_page(name: str, run: Run) -> str:
    """An attack: what it needs, its parameters, its cost, and how to use it."""
    found, text = known(name), example(name)
    attack = parse(text)
    shown = in_python(text, attack)
    return joined(
        f"# {name}",
        *_introduction(found, attack),
        facts(_facts(found, attack)),
        "## Parameters",
        _parameters(found, attack),
        "## As text",
        *_texts(found, text, attack),
        *_published(name),
        "## Try it",
        block(shown, "python"),
        block(run(shown)),
        "In the shell:",
        block(in_shell(text, attack), "sh"),
        f"`besiege show {name}` prints most of this page.",
    )


def written_out(found: Found) -> str:
    """An attack with all its parameters."""
    return f"{found.name}({', '.join(f'{k}={v}' for k, v in found.parameters.items())})"


def pieces_page() -> str:
    """All pieces, slot by slot."""
    found = [look_up(f"piece:{name}") for name, _ in PIECES.items()]
    parts = []
    for slot in SLOTS:
        members = [_piece(piece) for piece in found if piece.facts.get("slot") == slot]
        parts += [f"## {slot.capitalize()}", _DECIDES[slot], *members]
    return joined(
        "# Pieces",
        "First-order attacks are one loop with six slots (see [concepts](../concepts.md)). These "
        "pieces fill them. Write a piece as the parameter of that name: "
        "`pgd(loss=margin, schedule=constant(0.25))`.",
        *parts,
    )


def suites_page() -> str:
    """The suites and the attacks in them."""
    parts = []
    for name, suite in SUITES.items():
        found = look_up(name)
        parts += [
            f"## {name}",
            f"{found.about.capitalize()}. Its attacks, {found.facts['how']}:",
            *(
                (f"{where[:1].upper()}{where[1:]}:\n\n" if where else "")
                + "\n".join(f"1. `{text}`" for text in texts)
                for where, texts in suite.lists.items()
            ),
            *([suite.origin] if suite.origin else []),
            block(
                f"besiege evaluate zoo:digits-pgd-at --data digits --threat linf:0.15 "
                f"--suite {name}",
                "sh",
            ),
        ]
    return joined(
        "# Suites",
        "A suite is a fixed list of attacks with a name, so that its figures are comparable. Each "
        "attack runs on the images that those before it left.",
        *parts,
    )


def presets_page() -> str:
    """Every published form: its source, what it was compared with, and what differs."""
    listed = [preset for _, preset in PRESETS.items()]
    rows = [
        (
            code(preset.name),
            preset.source,
            ", ".join(map(code, preset.threats)) + _elsewhere(preset),
            "; ".join(map(str, preset.checks)),
            preset.differs or "nothing known",
        )
        for preset in listed
    ]
    equal, rows_compared = (
        sum(getattr(check, what) for preset in listed for check in preset.checks)
        for what in ("equal", "rows")
    )
    return joined(
        "# Attacks as papers ran them",
        "Defaults are often stronger than what a paper ran. A paper's figures belong to the "
        "paper's method, so that method has a name: `pgd@madry` is PGD with the steps of Madry et "
        "al. A preset is an attack wherever one is written, and most may be given more steps, "
        "rounds, restarts or targets: `pgd@madry(steps=100)`. Step sizes are fractions of the "
        "budget. The threats of the publication are in the table; one without a budget stands for "
        "any. A preset is refused in other norms, but for those in which it was compared, and a "
        "note ([W44](../warnings.md)) says where its threat is another one.",
        block(
            "besiege evaluate zoo:digits-pgd-at --data digits --threat l2:0.5 "
            '--attacks "bim@realsafe, cw@carlini(steps=100)"',
            "sh",
        ),
        f"There are {len(listed)} presets. Each was compared with another implementation, usually "
        "on 24 images of each of two networks; rows that are equal to 1e-5 are counted, and in all "
        f"{equal:,} of {rows_compared:,} are. *independent* is a short implementation in the "
        "tests, written from the paper. `pytest -m peer tests/peers` repeats all comparisons. "
        "`python -m benchmarks.differences` measures what differences cost, in short runs on the "
        "same images.",
        table(("preset", "as run by", "published for", "equal rows", "what differs"), rows),
    )


def _elsewhere(preset: Preset) -> str:
    return f"; compared in {', '.join(preset.also)} too" if preset.also else ""


def _published(name: str) -> Iterator[str]:
    mine = presets_of(name)
    if mine:
        yield "## As papers ran it"
        yield joined(*(f"The default differs: {one.default}." for one in mine if one.default))
        rows = [(code(one.name), code(one.arguments), one.source) for one in mine]
        yield table(("preset", "parameters", "as run by"), rows)
        yield "[All presets](presets.md) has what each was compared with, and what differs."


def _combines(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Combined)


def _index(single: list[str], made: list[str]) -> str:
    rows = []
    for name in single:
        found = known(name)
        norms, access = found.facts["norms"], found.facts["access"]
        about = first_sentence(found.about)
        rows.append((f"[{name}]({name}.md)", " ".join(norms), str(access), about))
    combinators = [
        (f"[{name}]({name}.md)", first_sentence(look_up(name).about), code(example(name)))
        for name in made
    ]
    return joined(
        "# Attacks",
        "An attack is a value with a text form. The norm and the budget belong to the "
        "[threat](../concepts.md), never to the attack. `besiege attacks` prints this list.",
        table(("attack", "norms", "sees", "published in"), rows),
        "## Attacks made of attacks",
        table(("combinator", "what it does", "for example"), combinators),
        "## Pieces and suites",
        "First-order attacks are made of [pieces](pieces.md). [Suites](suites.md) are lists of "
        "attacks with a name. [Presets](presets.md) are attacks as papers ran them. "
        "[Your own attack](../own-attack.md) takes twenty lines.",
        contents([*single, *made, "pieces", "suites", "presets"], "hidden"),
    )


def _introduction(found: Found, attack: Attack) -> Iterator[str]:
    if not isinstance(attack, Ascent):
        yield found.about
        return
    steps = "One step" if attack.steps == 1 else f"{attack.steps} steps"
    start = {"origin": "the clean image"}.get(
        str(attack.start), f"a random start (`{attack.start}`)"
    )
    aim = " towards the least likely class of the clean image" if attack.aim != "goal" else ""
    again = "s" if attack.steps == 1 else ""
    yield (
        f"{steps} from {start} that raise{again} `{attack.loss}`{aim}, moving along "
        f"`{attack.direction}`."
    )
    yield f"*Source:* {found.about}" if found.about else ""


def _facts(found: Found, attack: Attack) -> dict[str, Any]:
    elsewhere = ("default", "presets")  # they have a section of their own
    stated = {name: fact for name, fact in found.facts.items() if name not in elsewhere}
    if not stated:
        stated["norms, goals, access"] = "those of the attacks it is made of"
    spent = cost(attack)
    of = "" if str(attack) == found.name else f" of `{attack}`"
    if spent is not None:
        early = "an image that is broken is not attacked further"
        if attack.draws > 1:
            early = "all steps are taken, because one success on a stochastic model proves little"
        stated["cost per image"] = (
            f"at most {spent[0]} forward and {spent[1]} backward passes{of}, those on the clean "
            f"image included; {early}"
        )
    elif attack.minimal:
        stated["cost per image"] = "depends on the search"
    return stated


def _parameters(found: Found, attack: Attack) -> str:
    texts = described(type(attack))
    slots = SLOTS if isinstance(attack, Ascent) else ()
    rows = [
        (code(name), code(value) if value != "required" else "*required*", texts.get(name, ""))
        for name, value in found.parameters.items()
        if name not in slots
    ]
    explained = 3 if any(text for *_, text in rows) else 2
    heads = ("parameter", "default", "what it is")
    plain = table(heads[:explained], [row[:explained] for row in rows]) or "None."
    return joined(plain, _pieces(attack)) if isinstance(attack, Ascent) else plain


def described(kind: type) -> dict[str, str]:
    """The text of a docstring about each parameter."""
    texts: dict[str, str] = {}
    parsed = parse_docstring(kind.__doc__ or "", DocstringStyle.NUMPYDOC)
    for parameter in parsed.params:
        for name in parameter.arg_name.split(","):
            texts[name.strip()] = first_sentence(parameter.description or "")
    return texts


def _pieces(attack: Ascent) -> str:
    rows = []
    for slot in SLOTS:
        value = getattr(attack, slot)
        for part in getattr(value, "links", None) or (value,):
            name = LANGUAGE.name_of(part)
            about = first_sentence(type(part).__doc__ or "")
            rows.append((code(slot), f"[{part}](pieces.md#{name.replace('_', '-')})", about))
    return joined(
        "The six slots are parameters, too, filled by [pieces](pieces.md):",
        table(("slot", "default", "what it does"), rows),
    )


def _piece(found: Found) -> str:
    usual = ", ".join(f"`{name}={value}`" for name, value in found.parameters.items())
    return joined(f"### {found.name}", found.about, f"Parameters: {usual}" if usual else "")


def _texts(found: Found, text: str, attack: Attack) -> Iterator[str]:
    if isinstance(attack, Combined):
        yield block(text)
        return
    steps = next((f for f in parameters(attack) if f.name == "steps"), None)
    yield "Only parameters that differ from the defaults are written:"
    yield block(f"{text}(steps={2 * getattr(attack, 'steps', 5)})" if steps else text)
    yield "With all parameters:"
    yield block(_wrapped(written_out(found)))


def _wrapped(text: str, width: int = 80) -> str:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) > width:
            lines.append("  ")
        lines[-1] += f" {word}" if lines[-1].strip() else word
    return "\n".join(lines)
