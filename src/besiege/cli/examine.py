"""``besiege examine``: checks a model before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE, STOP
from besiege.cli.grammar import (
    AsJson,
    DataSource,
    Device,
    Model,
    Seed,
    ThreatText,
    examples,
    flowing,
)
from besiege.cli.image_options import AS_THEY_ARE, ImageOptions

if TYPE_CHECKING:
    from besiege.core.examination import Examination

IMAGES = 16
_THREAT = "linf:8/255"
"""The scale of the examination for images that are not a named data set."""
_STYLES = {"passed": "green", "failed": "bold red"}
command = App(
    name="examine",
    help_epilogue=examples(
        "besiege examine model.py:make --data path/to/images --threat linf:8/255",
        "besiege examine zoo:digits-natural --data digits --json",
    ),
)


@command.default
@flowing
def examine(
    model: Model,
    /,
    *,
    data: DataSource,
    threat: ThreatText | None = None,
    seed: Seed = 0,
    split: str = "test",
    files: ImageOptions = AS_THEY_ARE,
    device: Device = None,
    as_json: AsJson = False,
) -> int:
    """Check a model before it is attacked: are its gradients and its answers what they seem?

    It takes seconds, and `besiege evaluate` does the same and more. A black-box model is queried a
    few hundred times. The exit code is 4 if a check fails: figures of attacks on this model could
    not be quoted.

    Parameters
    ----------
    model
        Model to examine, written as for evaluate.
    data
        Data set, folder or file; a few images are used.
    threat
        Norm and budget, the scale of the examination; by default the usual budget of the data set,
        or linf:8/255.
    seed
        Seed of the choice of images and of random directions.
    split
        Part of a named data set.
    device
        Device of the model.
    """
    from besiege.bench.request import resolve
    from besiege.bench.spec import Request
    from besiege.core.examination import Examination
    from besiege.evaluation.examining import examine as examined

    request = Request.of(
        model=model,
        data=data,
        threat=threat or _usual(data),
        attacks="fmn",  # none is run; there are default attacks for some threats only
        seed=seed,
        split=split,
        **vars(files),
        examine="full",
    )
    resolved = resolve(request, device=device)
    checks = examined(
        resolved.victim,
        resolved.first(IMAGES),
        resolved.threat,
        fresh=resolved.fresh,
        seed=seed,
        full=True,
    )
    found = Examination(tuple(checks))
    if as_json:
        screen.print_json({"enough": found.enough, "checks": [vars(one) for one in checks]})
    else:
        _print(found)
    return STOP if found.findings else FINE


def _usual(data: str) -> str:
    """The usual threat of a named data set."""
    from besiege.data.catalogue import CATALOGUE

    return CATALOGUE[data].threats[0] if data in CATALOGUE else _THREAT


def _print(found: Examination) -> None:
    console = screen.out()
    table = screen.columns("check", "outcome", "measured")
    for check in found.checks:
        outcome = Text(check.outcome, _STYLES.get(check.outcome, "dim"))
        table.add_row(check.name, outcome, Text(check.number, "dim"))
    console.print(table)
    for check in found.checks:
        words = [one for one in (check.seen, check.advice) if one and check.outcome != "passed"]
        if words:
            said = " ".join(f"{one[0].upper()}{one[1:].rstrip('.')}." for one in words)
            screen.say(console, Text(f"\n{check.name}: {check.outcome}", "bold"))
            screen.say(console, Text(said))
    screen.say(console, Text())
    failed = [one.id for one in found.findings]
    verdict = {
        "no": f"Attacks on this model say nothing about its robustness ({', '.join(failed)}).",
        "yes": "Nothing speaks against attacking this model.",
        "unknown": "Not everything could be checked.",
    }
    screen.say(console, Text(verdict[found.enough], "bold"))
