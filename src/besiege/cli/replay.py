"""``besiege replay``: judges a run's adversarial images on another model or transformed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.cli import screen
from besiege.cli.exits import FINE
from besiege.cli.grammar import AsJson, Place, examples, flowing

if TYPE_CHECKING:
    from besiege.metrics.attack_values import ReplayFigures
    from besiege.metrics.intervals import Rate

command = App(
    name="replay",
    help_epilogue=examples(
        'besiege replay run --through "pil_blur(radius=0.5)"',
        'besiege replay run --on zoo:digits-pgd-at --through "jpeg(quality=90)"',
    ),
)


@command.default
@flowing
def replay_(
    run: Annotated[Place, Parameter(metavar="RUN")],
    /,
    *,
    on: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    through: Annotated[str | None, Parameter(metavar="LAYER")] = None,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    threat: Annotated[str | None, Parameter(metavar="THREAT")] = None,
    attack: Annotated[str | None, Parameter(metavar="ATTACK")] = None,
    device: Annotated[str | None, Parameter(metavar="DEVICE")] = None,
    as_json: AsJson = False,
) -> int:
    """Judge a run's successful images on another model, or after a transformation.

    The model is attacked itself first, in the same way, unless the run has that evaluation: what
    it withstands of images made on another model is transfer, never robustness.

    Parameters
    ----------
    run
        Run folder with the images; it receives the verdicts.
    on
        Model that judges the images; by default the one they were made on.
    through
        Layer that the images pass first, such as "jpeg(quality=90)".
    model
        Only images made on this model, by its name in the report.
    threat
        Only images made against this threat.
    attack
        Only images of this attack.
    device
        Device of the models.
    """
    from besiege.bench.replaying import replay
    from besiege.bench.spec import Machine
    from besiege.cli.machine import prepare

    prepare(device, None)
    which = {"model": model, "threat": threat, "attack": attack}
    found = replay(run, on=on, through=through or "", how=Machine(device), **which)
    if as_json:
        screen.print_json([asdict(one) for one in found])
        return FINE
    for one in found:
        screen.say(screen.out(), Text(one.text, "bold"))
        screen.say(screen.out(), Text(sentence(one)))
    screen.note(f"besiege report {run} writes the pages again.")
    return FINE


def sentence(one: ReplayFigures) -> str:
    """What replayed images do, in words, with what attacks on the model itself leave."""
    count = one.still.count if one.still else 0
    text = (
        f"{count} images: {_share(one.still)} still succeed, {_share(one.right)} are classified "
        "correctly"
    )
    if one.same:
        return f"{text}."
    if one.adaptive is None:
        return f"{text}. No attack on this model itself was judged: do not quote this."
    alike = f"the same attack leaves {_share(one.same_attack)}, " if one.same_attack else ""
    return (
        f"{text}, which is transfer. On this model itself, {alike}all attacks leave "
        f"{_share(one.adaptive)} of the same samples."
    )


def _share(rate: Rate | None) -> str:
    return "none" if rate is None else f"{100 * rate.value:.1f} %"
