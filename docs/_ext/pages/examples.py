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
from besiege.defenses import Defended, Thermometer
from besiege.evaluation import craft
from besiege.models import ARCHITECTURES

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


_FOR_CODES = """
from besiege.defenses import Defended, Thermometer
from besiege.models import ARCHITECTURES

torch.manual_seed(0)  # untrained, in place of a network that was trained behind the layer
model = Defended(ARCHITECTURES["digits_cnn"](in_channels=16), Thermometer())
"""


def in_python(text: str, attack: Attack) -> str:
    """An attack on a few images in Python."""
    model = f'"{_victim(attack)}"'
    before, imported = ("", "")
    if attack.sends_codes:
        model, before, imported = "model", _FOR_CODES, "import torch\n\n"
    return f'''{imported}import besiege
{before}
data = besiege.data.load("digits", count=50)
result = besiege.attack(
    "{text}",
    {model},
    data.images,
    data.labels,
    threat="{threat_of(attack)}",{_limit(attack)}{_advice(attack)}{_starts(attack)}
)
print(result)
'''


def _victim(attack: Attack) -> str:
    """A model that an attack makes sense on: one with chances, or with a defense to ignore."""
    if attack.draws > 1:
        return f"{MODEL}+resize_pad"
    return f"{MODEL}+bits(depth=2)" if attack.oblivious or attack.needs_cells else MODEL


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
    victim = _victim(attack)
    model = victim if victim == MODEL else f'"{victim}"'
    if attack.sends_codes:
        model = '"digits_cnn(in_channels=16):weights.safetensors+thermometer"'
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

    None for an attack that searches, or that tries what an image allows: its cost is not known
    beforehand.
    """
    if attack.minimal or attack.needs_cells or Linf not in attack.norms:
        return None
    model, samples = _one_image(attack.sends_codes)
    queries = attack.cost(tuple(samples.images.shape[1:]), 10)
    if queries is not None:
        return queries, 0
    other = besiege.models.load(SUBSTITUTE) if attack.needs_substitute else None
    threat, knowledge = Threat(Linf, _NOTHING), Knowledge(substitute=other)
    crafted = craft(model, attack, samples, threat, knowledge=knowledge)
    return int(crafted.forwards.max()), int(crafted.backwards.max())


@cache
def _one_image(codes: bool) -> tuple[besiege.Victim, Samples]:
    """A model, perhaps behind `thermometer`, and an image that it classifies correctly."""
    data, victim = besiege.data.load("digits"), besiege.defenses.load(MODEL)
    if codes:
        net = ARCHITECTURES["digits_cnn"](in_channels=Thermometer().levels)
        victim = Defended(net, Thermometer())
    row = int((victim(data.images).argmax(1) == data.labels).nonzero()[0])
    return victim, Samples.of(data.images[row : row + 1], data.labels[row : row + 1])


def write_report(path: Path) -> None:
    """Write the report of the example evaluation to a file."""
    with TemporaryDirectory() as folder:
        found = besiege.evaluate(MODEL, "digits", threat="linf:0.1", out=folder, command=EVALUATION)
        found.page(path)
