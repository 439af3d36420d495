"""Which impostors an evaluation catches, and whether honest models pass.

python benchmarks/examination.py                # every impostor under the default list
python benchmarks/examination.py --only memory  # some of them
python benchmarks/examination.py --peers        # the same under other libraries' attacks
python benchmarks/examination.py --honest       # zoo: and public: models at hand: no stop
python benchmarks/examination.py --honest --before --forms float32,bfloat16  # no attacks
python benchmarks/examination.py --cost         # passes by part, CPU seconds of the examination
python benchmarks/examination.py --truths       # compute the true accuracies again and write them

An impostor is caught if the printed robust accuracy is within 5 points of the truth, if a finding
of level stop says that the figure must not be quoted, or if the evaluation refuses to give one.
A peer is deceived by a disguise if it warns of nothing and prints more than 5 points above the
truth and above its own figure for the bare network. Without that control, an attack that is weak on
any network would count as deceived: PGD on cross-entropy leaves the bare network above its truth.
`--examine short` or `full` is given to `besiege.evaluate` if it takes that option.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import besiege
from besiege.bench.kinds import KINDS
from besiege.bench.task import Task
from besiege.core.errors import BesiegeError
from besiege.core.threat import Threat
from besiege.models import load
from besiege.testing.impostors import COUNT, IMPOSTORS, THREAT, TRUTHS, Impostor, data, measure

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import honest
from benchmarks.peers import has, peers

POINTS = 0.05
"""How far a printed figure may be from the truth."""
STEPS = 40
UNDISGUISED = Impostor("large-scale", "control", "the bare network", lambda net: net)
"""The control; it borrows a name of the list, whose truth is the bare network's."""
HONEST_IMAGES = 100


@dataclass(frozen=True)
class Line:
    """What one tool printed for one impostor."""

    name: str
    truth: float
    printed: float | None
    findings: str
    caught: bool
    seconds: float

    def text(self) -> str:
        printed = "refused" if self.printed is None else f"{100 * self.printed:.1f}"
        caught = "caught" if self.caught else "MISSED"
        return f"{self.name:26s} {100 * self.truth:6.1f} {printed:>8s}  {caught}  {self.findings}"


def examining(how: str | None) -> dict[str, Any]:
    """The option of `evaluate` that switches the examination, where it exists."""
    known = "examine" in inspect.signature(besiege.evaluate).parameters
    return {"examine": how} if how is not None and known else {}


def judged(impostor: Impostor, how: str | None) -> Line:
    """One impostor under the default list."""
    began = time.process_time()
    try:
        found = besiege.evaluate(
            impostor.make(), data(), threat=impostor.threat, curve=False, **examining(how)
        )
    except BesiegeError as problem:
        said = f"{type(problem).__name__}: {str(problem)[:60]}"
        return Line(impostor.name, impostor.truth, None, said, True, time.process_time() - began)
    printed = None if found.robust is None else found.robust.value
    levels = sorted({f"{one.id} {one.level}" for one in found.warnings if one.level != "note"})
    stops = any(one.level == "stop" for one in found.warnings)
    close = printed is None or abs(printed - impostor.truth) <= POINTS
    return Line(
        impostor.name,
        impostor.truth,
        printed,
        ", ".join(levels),
        stops or close,
        time.process_time() - began,
    )


def table(chosen: list[Impostor], run: Callable[[Impostor], Line]) -> list[Line]:
    print(f"{'impostor':26s} {'truth':>6s} {'printed':>8s}")
    lines = []
    for impostor in chosen:
        lines.append(run(impostor))
        print(lines[-1].text(), flush=True)
    print(f"{sum(line.caught for line in lines)} of {len(lines)} caught\n", flush=True)
    return lines


Crafting = Callable[[nn.Module, Tensor, Tensor, float], Tensor]


def tools() -> dict[str, Crafting]:
    """The installed libraries, each with its default PGD of 40 steps, or AutoAttack."""

    def pgd(run: Any) -> Crafting:
        return lambda module, x, y, eps: run(module, x, y, eps, STEPS, eps / 10)

    found = {name: pgd(run) for name, run in peers("pgd", "linf").items() if name != "adv_lib"}
    if has("pyautoattack"):
        found["pyautoattack"] = _autoattack
    return found


def _autoattack(module: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from pyautoattack import AutoAttack  # type: ignore[import-not-found]  # its own environment

    made = AutoAttack(module, eps=eps, norm="Linf", version="standard", seed=0)
    images = made.run_standard_evaluation(x, y, batch_size=len(x))
    answer: Tensor = images[0] if isinstance(images, tuple) else images
    return answer


@contextmanager
def heard() -> Iterator[list[str]]:
    """What a library says in Python warnings and in its log, from level warning on."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logging.getLogger().addHandler(listener)
    # `benchmarks.peers` mutes this log, and a muted warning would count as none.
    muted = logging.getLogger("art")
    level = muted.level
    muted.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(StringIO()) as out:
            warnings.simplefilter("always")
            yield said
        said += [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
        said += [line for line in out.getvalue().splitlines() if "warning" in line.lower()]
    finally:
        logging.getLogger().removeHandler(listener)
        muted.setLevel(level)


def peer_line(craft: Crafting, impostor: Impostor, control: float = 0.0) -> Line:
    """One impostor under a peer: its accuracy on the images the peer returns, in one batch.

    Clean images are asked first, as usual. An image outside the budget stays clean. `control` is
    the peer's figure for the bare network.
    """
    samples = data()
    eps = float(Threat.parse(impostor.threat).eps or 0)
    module = impostor.make().module.requires_grad_(False)
    began = time.process_time()
    printed = None
    with heard() as said:
        with torch.no_grad():
            clean = module(samples.images).argmax(1) == samples.labels
        try:
            images = craft(module, samples.images, samples.labels, eps).detach()
        except Exception as problem:  # a peer that gives no figure deceives nobody
            said.append(f"{type(problem).__name__}: {problem}")
        else:
            away = (images - samples.images).flatten(1).abs().amax(1)  # NaN is outside as well
            valid = (away <= eps + 1e-5)[:, None, None, None]
            with torch.no_grad():
                kept = torch.where(valid, images, samples.images)
                right = module(kept).argmax(1) == samples.labels
            printed = float((clean & right).float().mean())
    note = "; ".join(dict.fromkeys(line.strip()[:60] for line in said))
    above = printed is not None and printed > max(impostor.truth, control) + POINTS
    caught = bool(said) or not above
    return Line(impostor.name, impostor.truth, printed, note, caught, time.process_time() - began)


PARTS = ("examine", "again", "active", "guard")
"""What an examination consists of; everything else is there without it."""


@contextmanager
def labelled(now: deque[str], aside: deque[int]) -> Iterator[None]:
    """While it lasts, the last word of `now` is the part of the evaluation that is at work.

    `aside` gets the passes of another model, on which a guard is crafted.
    """

    def wrapped(run: Callable[[Task, Any], Any], kind: str) -> Callable[[Task, Any], Any]:
        def labelling(task: Task, context: Any) -> Any:
            about = task.identity
            if kind == "judge":
                about = context.store.read(about["crafted"]).identity
            now.append("guard" if "guard" in about else kind)
            try:
                result = run(task, context)
            finally:
                now.pop()
            if (
                kind == "craft"
                and context.victims
                and about["victim"] != next(iter(context.victims))
            ):
                aside.append(sum(int(result.totals.get(n, 0)) for n in ("forwards", "backwards")))
            return result

        return labelling

    changed: list[Any] = [kind for _, kind in KINDS.items()]
    for kind in changed:
        kind.run = wrapped(kind.run, kind.name)
    try:
        yield
    finally:
        for kind in changed:
            del kind.run


def cost(model: str, source: str, threat: str) -> dict[str, dict[str, float]]:
    """Images sent, with and without gradients, and CPU seconds, without and with examination."""
    found = {}
    for how in ("none", "short"):
        victim = load(model)
        # Deques: a digest of the model would notice a hook whose dictionary changes.
        sent: deque[tuple[str, int, bool]] = deque()
        now, aside = deque(["other"]), deque[int]()

        def count(
            module: nn.Module,
            args: tuple[Tensor, ...],
            sent: deque[tuple[str, int, bool]] = sent,
            now: deque[str] = now,
        ) -> None:
            seeing = torch.is_grad_enabled() and args[0].requires_grad
            sent.append((now[-1], len(args[0]), seeing))

        victim.module.register_forward_pre_hook(count)
        began = time.process_time()
        with labelled(now, aside):
            besiege.evaluate(victim, source, threat=threat, curve=False, **examining(how))
        found[how] = {
            "forwards": sum(rows for _, rows, _ in sent),
            "backwards": sum(rows for _, rows, wanted in sent if wanted),
            **{p: sum(n * (1 + g) for part, n, g in sent if part == p) for p in PARTS},
            "another model": sum(aside),
            "seconds": time.process_time() - began,
        }
        print(f"examine={how:6s} {found[how]}", flush=True)
    less, more = found["none"], found["short"]
    passes = [one["forwards"] + one["backwards"] + one["another model"] for one in (less, more)]
    shares = ", ".join(
        f"{part} {100 * more[part] / passes[0]:.1f}" for part in (*PARTS, "another model")
    )
    print(
        f"{100 * (passes[1] / passes[0] - 1):.1f} % more passes ({shares}), "
        f"{more['seconds'] - less['seconds']:.2f} more CPU seconds"
    )
    return found


def truths(chosen: list[Impostor]) -> None:
    """Compute the true accuracies again and write those of the chosen impostors."""
    kept = json.loads(TRUTHS.read_text())["impostors"] if TRUTHS.exists() else {}
    for impostor in chosen:
        clean, robust = measure(impostor)
        kept[impostor.name] = {"clean": round(clean, 4), "robust": round(robust, 4)}
        print(f"{impostor.name:26s} clean {clean:.3f} robust {robust:.3f}", flush=True)
        about = {
            "command": "python benchmarks/examination.py --truths",
            "data": f"first {COUNT} test images of digits",
            "threat": THREAT,
            "impostors": {name: kept[name] for name in IMPOSTORS if name in kept},
        }
        TRUTHS.write_text(json.dumps(about, indent=2) + "\n")


def honest_rows(given: argparse.Namespace) -> list[honest.Row]:
    """The rows of honest models that the options choose."""
    parts = given.models or [""]
    chosen = [one for one in honest.models() if any(part in one.model for part in parts)]
    return honest.honest(
        chosen,
        given.forms.split(","),
        given.threat,
        given.images,
        given.examine,
        attacked=not given.before,
        log=given.log,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for flag in ("peers", "honest", "cost", "truths"):
        options.add_argument(f"--{flag}", action="store_true")
    options.add_argument("--only", nargs="*", default=list(IMPOSTORS), metavar="NAME")
    options.add_argument("--examine", choices=("none", "short", "full"))
    options.add_argument("--model", default="zoo:digits-natural", help="of --cost")
    options.add_argument("--data", default="digits", help="of --cost")
    options.add_argument("--images", type=int, default=HONEST_IMAGES, help="of --honest")
    options.add_argument("--models", nargs="*", metavar="PART", help="of --honest: parts of names")
    options.add_argument(
        "--forms", default="float32", help=f"of --honest: {','.join(honest.FORMS)}"
    )
    options.add_argument("--threat", help="of --cost and --honest; by data set if not given")
    options.add_argument("--before", action="store_true", help="of --honest: no attacks")
    options.add_argument("--log", type=Path, help="of --honest: rows, one a line; these are kept")
    options.add_argument("--tools", nargs="*", help="of --peers; all by default")
    options.add_argument("--json", type=Path, metavar="FILE")
    given = options.parse_args()
    torch.set_num_threads(1)
    chosen = [IMPOSTORS[name] for name in given.only]
    result: Any
    if given.truths:
        return truths(chosen)
    if given.honest:
        result = [asdict(row) for row in honest_rows(given)]
    elif given.cost:
        result = cost(given.model, given.data, given.threat or THREAT)
    elif given.peers:
        result = {}
        for name, craft in tools().items():
            if given.tools is None or name in given.tools:
                control = peer_line(craft, UNDISGUISED).printed or 0.0
                print(f"{name}: {100 * control:.1f} % for the bare network")
                lines = table(chosen, partial(peer_line, craft, control=control))
                plain = sum((line.printed or 0) > line.truth + POINTS for line in lines)
                print(f"{plain} printed more than 5 points above the truth\n")
                result[name] = [asdict(line) for line in lines]
    else:
        result = [asdict(line) for line in table(chosen, lambda one: judged(one, given.examine))]
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
