"""Examples that are run while the pages are generated, and their output."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import besiege
from besiege.attacks.attack import Attack
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.threat import Access, Goal, Linf, Norm, Threat
from besiege.evaluation import craft

MODEL, SUBSTITUTE = "zoo:digits-natural", "zoo:digits-pgd-at"
EVALUATION = f"besiege evaluate {MODEL} --data digits --threat linf:0.1"
"""The first command of README and the start page; the example report is its report."""
QUERIES = 500
_BUDGETS = {Norm.Linf: "linf:0.15", Norm.L2: "l2:0.5", Norm.L1: "l1:4", Norm.L0: "l0:10"}
_NOTHING = 1e-6


def run(code: str) -> str:
    """The output of a piece of Python."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "<example>", "exec"), {"__name__": "__example__"})
    return printed.getvalue()


def threat_of(attack: Attack) -> str:
    """A threat for an example of an attack on the digits."""
    norm = next(norm for norm in Norm if norm in attack.norms)
    size = str(norm) if attack.minimal else _BUDGETS[norm]
    return size if Goal.UNTARGETED in attack.goals else f"{size} {Goal.RANDOM}"


def in_python(text: str, attack: Attack) -> str:
    """An attack on a few images in Python."""
    model = f"{MODEL}+resize_pad" if attack.draws > 1 else MODEL
    return f'''import besiege

data = besiege.data.load("digits", count=50)
result = besiege.attack(
    "{text}",
    "{model}",
    data.images,
    data.labels,
    threat="{threat_of(attack)}",{_limit(attack)}{_advice(attack)}{_starts(attack)}
)
print(result)
'''


def _limit(attack: Attack) -> str:
    """Query-based attacks may run for long; an example is limited."""
    return "" if attack.access is Access.GRADIENT else f"\n    queries={QUERIES},"


def _advice(attack: Attack) -> str:
    return f'\n    substitute="{SUBSTITUTE}",' if attack.needs_substitute else ""


def _starts(attack: Attack) -> str:
    """An attack that must reach a class starts from images of it."""
    to_a_class = Goal.UNTARGETED not in attack.goals
    return "\n    starts=(data.images, data.labels)," if to_a_class else ""


def in_shell(text: str, attack: Attack) -> str:
    """An evaluation of a model with an attack in a shell."""
    model = f'"{MODEL}+resize_pad"' if attack.draws > 1 else MODEL
    quoted = f'"{text}"' if "(" in text else text
    threat = threat_of(attack)
    threat = f'"{threat}"' if " " in threat else threat
    return (
        f"besiege evaluate {model} --data digits --count 50 \\\n"
        f"  --threat {threat} --attacks {quoted}"
        + ("" if attack.access is Access.GRADIENT else f" --queries {QUERIES}")
        + (f" \\\n  --substitute {SUBSTITUTE}" if attack.needs_substitute else "")
    )


def cost(attack: Attack) -> tuple[int, int] | None:
    """Forward and backward passes for an image that withstands, the clean one included.

    None for an attack that searches: its cost is not known beforehand.
    """
    if attack.minimal or Linf not in attack.norms:
        return None
    model, samples = _one_image()
    queries = attack.cost(tuple(samples.images.shape[1:]), 10)
    if queries is not None:
        return queries, 0
    other = besiege.models.load(SUBSTITUTE) if attack.needs_substitute else None
    threat, knowledge = Threat(Linf, _NOTHING), Knowledge(substitute=other)
    crafted = craft(model, attack, samples, threat, knowledge=knowledge)
    return int(crafted.forwards.max()), int(crafted.backwards.max())


@cache
def _one_image() -> tuple[besiege.Classifier, Samples]:
    """A model and an image that it classifies correctly."""
    data, model = besiege.data.load("digits"), besiege.models.load(MODEL)
    row = int((model(data.images).argmax(1) == data.labels).nonzero()[0])
    return model, Samples.of(data.images[row : row + 1], data.labels[row : row + 1])


def write_report(path: Path) -> None:
    """Write the report of the example evaluation to a file."""
    with TemporaryDirectory() as folder:
        found = besiege.evaluate(MODEL, "digits", threat="linf:0.1", out=folder, command=EVALUATION)
        found.page(path)
