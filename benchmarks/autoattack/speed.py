"""AutoAttack's standard suite against the reference, in one run.

    python benchmarks/autoattack/speed.py                      # CPU: 60 images, process CPU time
    python benchmarks/autoattack/speed.py --device cuda --count 1000 --compile

Ours runs the suite as `evaluate` does: each attack on what is left, searching on the twin, every
success judged by the network itself. The reference gets all images in one batch, its best case.
Making the twin (compiling included) and capturing graphs are stated apart. The floor is what the
passes made would take if nothing else did: bare passes of the twin, from graphs on a GPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from besiege.attacks import parse
from besiege.attacks.losses import margin
from besiege.attacks.suites import suite
from besiege.core.answer import Aim
from besiege.core.cuda_graphs import Captured
from besiege.core.oracle import allow_tf32
from besiege.core.samples import Samples
from besiege.evaluation import craft, judge
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.cells import COMPONENTS, Cell
from benchmarks.autoattack.reference import NAMES, Plain

MODELS = ("zoo:cifar10-pgd-at", "zoo:cifar10-resnet20-pgd-at")
BATCH = 432
"""Rows at which bare passes are timed on a GPU; the CPU's are timed at 64."""


@dataclass(frozen=True)
class Clock:
    """Seconds as the device counts them: of the process on a CPU, of the wall on a GPU."""

    device: str

    def __call__(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


def reference(cell: Cell, victim: Classifier, samples: Samples, device: str) -> tuple[float, int]:
    """The seconds of the reference, and how many images it leaves."""
    package: Any = import_module("pyautoattack")  # it has no types
    clock, threat = Clock(device), cell.within
    said = logging.StreamHandler()
    with victim.held():
        auto = package.AutoAttack(
            Plain(victim).eval(),
            eps=float(threat.radius),
            norm=NAMES[str(threat.norm)],
            device=device,
            seed=0,
        )
        auto.logger.addHandler(said)
        auto.logger.setLevel(logging.DEBUG)
        begin = clock()
        found, _ = auto.run_standard_evaluation(
            samples.images, samples.labels, batch_size=len(samples)
        )
        seconds = clock() - begin
        auto.logger.removeHandler(said)
        with torch.no_grad():
            left = victim(found).argmax(1) == samples.labels
    return seconds, int(left.sum())


def timed(function: Callable[[], object], clock: Clock, times: int = 10) -> float:
    """Seconds of a call."""
    function()
    begin = clock()
    for _ in range(times):
        function()
    return (clock() - begin) / times


def floor(twin: Classifier, samples: Samples, clock: Clock) -> tuple[float, float]:
    """Seconds of a bare forward and of a forward with its backward, per image."""
    rows = BATCH if clock.device == "cuda" else 64
    x = samples.images.repeat(-(-rows // len(samples)), 1, 1, 1)[:rows].clone()
    aim = Aim(samples.labels.repeat(-(-rows // len(samples)))[:rows])

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return (twin(x),)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            image = x.detach().requires_grad_(True)
            return torch.autograd.grad(margin(twin(image), aim).sum(), image)

    with twin.held(), allow_tf32():
        passes: list[Callable[[], object]] = []
        for function in (forward, both):
            if clock.device == "cuda":
                graph = Captured(function, (x,))
                passes.append(graph.graph.replay)
            else:
                passes.append(partial(function, x))
        return timed(passes[0], clock) / rows, timed(passes[1], clock) / rows


def ours(
    cell: Cell,
    victim: Classifier,
    samples: Samples,
    name: str,
    compiled: bool,
    rough: tuple[str, ...],
    device: str,
) -> tuple[float, int]:
    """The seconds of a suite, and how many images it leaves."""
    clock, threat = Clock(device), cell.within
    texts = suite(name).attacks_for(threat.norm)
    names = COMPONENTS if name == "standard" else texts
    begin = clock()
    exact = victim.twin(samples, threat, compiled=compiled)
    lower = (
        victim.twin(samples, threat, compiled=compiled, precision=torch.bfloat16) if rough else None
    )
    for twin in (exact, lower):
        if twin is not None and compiled:  # what an attack asks for is compiled when it first asks
            craft(victim, parse("apgd(steps=2)"), samples, threat, twin=twin)
    print(f"  making twins {clock() - begin:.1f} s", flush=True)
    bare = floor(exact or victim, samples, clock)
    faint = floor(lower, samples, clock) if lower is not None else bare
    standing = torch.arange(len(samples), device=samples.images.device)
    whole = capturing = least = 0.0
    for component, text in zip(names, texts, strict=True):
        some = samples.at(standing)
        twin, (one, two) = (lower, faint) if component in rough else (exact, bare)
        captures = None if twin is None else twin.captures
        spent = 0.0 if captures is None else captures.seconds
        begin = clock()
        crafted = craft(victim, parse(text), some, threat, twin=twin)
        verdicts = judge(victim, crafted, some, threat)
        seconds = clock() - begin
        spent = 0.0 if captures is None else captures.seconds - spent
        standing = standing[~verdicts.success]
        forwards, backwards = int(crafted.forwards.sum()), int(crafted.backwards.sum())
        bound = (forwards - backwards) * one + backwards * two
        whole, capturing, least = whole + seconds, capturing + spent, least + bound
        print(
            f"  {text:18} {len(standing):4} left  {seconds - spent:6.1f} s  floor {bound:5.1f} s"
            f"  forwards {forwards:8} backwards {backwards:7}  captured {spent:.1f} s",
            flush=True,
        )
    print(f"  floor {least:.1f} s, capturing {capturing:.1f} s")
    return whole - capturing, len(standing)


def main() -> None:
    """Read the command line, run both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--threat", default="linf:8/255")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rough", default="", help="components searched in bfloat16, by commas")
    parser.add_argument("--reference", help="seconds and images left, where they are known")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    for model in given.models or MODELS[given.device == "cpu" :]:
        cell = Cell(model, "cifar10", given.threat)
        victim, samples = cell.load(given.count, given.device)
        print(f"{model}, {given.threat}, {given.count} images, {given.device}", flush=True)
        if given.reference:
            seconds, left = (float(v) for v in given.reference.split(","))
        else:
            seconds, left = reference(cell, victim, samples, given.device)
        print(f"reference: {left:.0f} left, {seconds:.1f} s", flush=True)
        rough = tuple(filter(None, given.rough.split(",")))
        for name in given.suite or ["standard"]:
            how = "compiled" if given.compile else "plain"
            took, ended = ours(cell, victim, samples, name, given.compile, rough, given.device)
            print(
                f"{name} ({how}{', rough ' + given.rough if rough else ''}): {ended} left, "
                f"{took:.1f} s, {seconds / took:.2f} times as fast",
                flush=True,
            )


if __name__ == "__main__":
    main()
