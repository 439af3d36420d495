"""What a training costs over its floor: the forwards and backwards that its recipe asks for.

python benchmarks/training.py [--data digits] [--arch digits_cnn] [--recipes NAME ...] [--json FILE]

The floor is measured in the same process: bare passes of the same network on batches of the same
size, in the precision of the recipe, with nothing else between them, on a GPU as CUDA graphs. A
pass of the inner attack is a forward and a backward to the image with frozen weights; a step is a
forward and a backward to the weights, and a step of the optimiser. Memory is the largest of the
process over all recipes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import besiege
from besiege.core.dice import Dice
from besiege.data import Data
from besiege.models.twins import alike
from besiege.training import Recipe, recipe, train
from besiege.training.epochs import _optimiser, lay_out
from besiege.training.fitting import build

# Passes of a step beside those of the inner attack: forwards and backwards to the weights.
STEPS = {"trades": 2, "mart": 2, "alp": 2, "nat": 2, "eat": 2, "thermometer": 2, "awp": 2}


def floor(plan: Recipe, data: Data, arch: str, seed: int, device: str, compiled: bool) -> float:
    """Seconds of the bare passes of one epoch."""
    model, _ = build(arch, data, seed, plan.layers)
    model.module.to(device)
    if device == "cuda":
        lay_out(model.module, torch.channels_last)
    asked = alike(model, torch.compile(model.module)) if compiled else model
    optimiser = _optimiser(plan, model.module)
    rows = data.subset(plan.batch, seed)
    x, y = rows.images.to(device), rows.labels.to(device)
    dice = Dice.throw(0, rows.ids.to(device))
    for layer in plan.layers:
        x = layer(x, model.box, dice)
    low = plan.precision == "bfloat16"
    attack_passes = getattr(plan.attack, "steps", 0)
    replays = getattr(plan.update, "m", 1)
    steps = STEPS.get(plan.name.partition("@")[0], 1) * replays

    def inner() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=low, cache_enabled=False):
            point = x.detach().requires_grad_(True)
            loss = functional.cross_entropy(asked(point, dice), y, reduction="sum")
        torch.autograd.grad(loss, point)

    def outer() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=low, cache_enabled=False):
            loss = functional.cross_entropy(asked(x, dice), y)
        loss.backward()  # type: ignore[no-untyped-call]

    def step() -> None:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    batches = len(data) / plan.batch
    model.module.train()
    outer()  # the optimiser needs gradients
    seconds = timed(step, device) * replays + timed(captured(outer, device), device) * steps
    if attack_passes:
        with model.held():
            seconds += timed(captured(inner, device), device) * attack_passes
    return seconds * batches


def captured(work: Callable[[], None], device: str) -> Callable[[], None]:
    """On a GPU a call as one CUDA graph, since a floor has no launches between its kernels."""
    if device != "cuda":
        return work
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def timed(work: Callable[[], None], device: str, trials: int = 15) -> float:
    """The median seconds of a call."""
    for _ in range(3):
        work()
    found = []
    for _ in range(trials):
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(5):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) / 5)
    return statistics.median(found)


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """An epoch of a recipe against its floor."""
    data = besiege.data.load(given.data, "train")
    plan = recipe(name, data.name, **({"batch": given.batch} if given.batch else {}))
    plan = replace(plan, epochs=given.epochs, ramp=0, held_out=0, early=None, early_share=0.0)
    model, _ = build(given.arch, data, 0, plan.layers)
    compiled = given.device == "cuda" and not plan.objective.second_order
    history = train(model, data, plan, device=given.device, compiled=compiled)
    # The first epoch compiles and captures; the median of the others is an epoch.
    epoch = statistics.median(e.seconds for e in history[1:])
    least = floor(plan, data, given.arch, 0, given.device, compiled)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {
        "recipe": name,
        "epoch": epoch,
        "floor": least,
        "ratio": epoch / least,
        "peak_mb": peak,
    }
    print(
        f"{name:12} {epoch:8.3f} s an epoch, floor {least:8.3f} s, {epoch / least:5.2f}x, "
        f"{peak:6.0f} MB",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--arch", default="digits_cnn")
    parser.add_argument("--recipes", nargs="+", default=["natural", "pgd-at", "trades", "free-at"])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    found = [measure(name, given) for name in given.recipes]
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
