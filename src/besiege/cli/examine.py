"""``besiege examine``: checks a model before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE, STOP
from besiege.cli.grammar import (
    AsJson,
    Channels,
    DataSource,
    Device,
    Layout,
    Model,
    Seed,
    Size,
    ThreatText,
    examples,
    flowing,
)

if TYPE_CHECKING:
    from besiege.core.examination import Examination

IMAGES = 16
_STYLES = {"passed": "green", "failed": "bold red"}
command = App(
    name="examine",
    help_epilogue=examples(
        "besiege examine model.py:make --data path/to/images --threat linf:8/255",
        "besiege examine zoo:digits-natural --data digits --threat linf:0.1 --json",
    ),
)


@command.default
@flowing
def examine(
    model: Model,
    /,
    *,
    data: DataSource,
    threat: ThreatText,
    seed: Seed = 0,
    split: str = "test",
    resize: Size = None,
    crop: Size = None,
    channels: Channels = None,
    layout: Layout = None,
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
        Norm and budget, the scale of the examination.
    seed
        Seed of the choice of images and of random directions.
    split
        Part of a named data set.
    resize
        Resize images of a folder, as for evaluate.
    crop
        Crop them.
    channels
        Colour channels of the images.
    layout
        Order of the axes of an array, as for evaluate.
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
        threat=threat,
        attacks="fmn",  # none is run; there are default attacks for some threats only
        seed=seed,
        split=split,
        resize=resize,
        crop=crop,
        channels=channels,
        layout=layout,
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


def _print(found: Examination) -> None:
    console = screen.out()
    for check in found.checks:
        line = Text(f"{check.outcome:15}", _STYLES.get(check.outcome, "dim"))
        line.append(check.name, "default")
        line.append(f"  {check.number}" if check.number else "", "dim")
        screen.say(console, line)
        if check.outcome != "passed":
            for words in filter(None, (check.seen, check.advice)):
                screen.say(console, Text(f"{'':15}{words}", "dim"))
    failed = [one.id for one in found.findings]
    verdict = {
        "no": f"Attacks on this model say nothing about its robustness ({', '.join(failed)}).",
        "yes": "Nothing speaks against attacking this model.",
        "unknown": "Not everything could be checked.",
    }
    screen.say(console, Text(verdict[found.enough], "bold"))
