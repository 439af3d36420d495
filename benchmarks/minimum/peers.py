"""Record the smallest changes that foolbox and adv-lib find, in an environment of their own.

    PYTHONPATH=src python benchmarks/minimum/peers.py [words of cells] [--only WORD ...]

Every image they give back is looked at again here: it counts if the network misreads it and it
lies in the box. Passes are counted at the network, images each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from besiege.core.ball import ball

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.autoattack.reference import Plain
from benchmarks.minimum.cells import COUNT, HERE, Book, Cell, chosen
from benchmarks.peers import stand_in_for_adv_lib

Run = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Counting(Plain):
    """A network that counts the images it reads, and those whose gradient is taken."""

    forwards = backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        self.forwards += len(x)
        logits = super().forward(x)
        if logits.requires_grad:
            logits.register_hook(self._seen)  # type: ignore[no-untyped-call]  # torch's own
        return logits

    def _seen(self, gradient: Tensor) -> None:
        self.backwards += int((gradient != 0).flatten(1).any(1).sum())


def adv_lib(norm: str) -> dict[str, Run]:
    """Its attacks in a norm, about a hundred gradients each unless the name says more."""
    stand_in_for_adv_lib()
    a: Any = import_module("adv_lib.attacks")
    p = {"l2": 2, "linf": float("inf"), "l1": 1, "l0": 0}[norm]

    def with_(name: str, **given: object) -> Run:
        return lambda net, x, y: getattr(a, name)(net, x, y, **given)

    runs = {"fmn": with_("fmn", norm=p, steps=100)}
    if norm == "l2":
        runs["ddn"] = with_("ddn", steps=100, levels=None)
        once = {"binary_search_steps": 4, "max_iterations": 25, "abort_early": False}
        runs["cw 4x25"] = with_("carlini_wagner_l2", **once)
        long = {"binary_search_steps": 9, "max_iterations": 100, "abort_early": False}
        runs["cw 9x100"] = with_("carlini_wagner_l2", **long)
        runs["superdeepfool"] = with_("sdf")
    if norm in ("l2", "linf"):
        runs["deepfool"] = with_("df", norm=p)
    if norm in ("l2", "l1"):
        far = {"l2": 0.1, "l1": 0.5}[norm]
        runs["alma"] = with_("alma", num_steps=100, distance=norm, α=0.5, init_lr_distance=far)
    if norm == "l0":
        for steps in (100, 300, 1000):
            runs[f"sigma_zero {steps}"] = with_("sigma_zero", num_steps=steps)
    return {f"adv-lib {name}": run for name, run in runs.items()}


def foolbox(norm: str) -> dict[str, Run]:
    """Its attacks in a norm."""
    fb: Any = import_module("foolbox")

    def with_(name: str, **given: object) -> Run:
        def run(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            model = fb.PyTorchModel(net, bounds=(0, 1))
            found: Tensor = getattr(fb.attacks, name)(**given)(model, x, y, epsilons=None)[0]
            return found

        return run

    runs: dict[str, Run] = {}
    if norm == "l2":
        runs["ddn"] = with_("DDNAttack", steps=100)
    if norm == "l1":
        once = {"binary_search_steps": 9, "steps": 100, "abort_early": False}
        runs["ead 9x100"] = with_("EADAttack", decision_rule="L1", **once)
        runs["fmn"] = with_("L1FMNAttack", steps=100)
    if norm == "linf":
        runs["fmn"] = with_("LInfFMNAttack", steps=100)
    return {f"foolbox {name}": run for name, run in runs.items()}


def record(cell: Cell, count: int, only: list[str], device: str, folder: Path) -> None:
    """Run all of them on one cell."""
    victim, samples = cell.load(count, device)
    x, y = samples.images, samples.labels
    around = ball(cell.threat.norm, x, torch.inf, victim.box)
    book = Book(folder, cell, len(samples), "adv-lib 0.2.8, foolbox 3.3.4")
    for name, run in {**adv_lib(cell.norm), **foolbox(cell.norm)}.items():
        wanted = not only or any(word in name for word in only)
        if not wanted or name in book.figures["attacks"]:
            continue
        with victim.held():
            net = Counting(victim).eval()
            begin = time.process_time()
            parts = [
                run(net, a, b)
                for a, b in zip(torch.split(x, 100), torch.split(y, 100), strict=True)
            ]
            found, seconds = torch.cat(parts).detach(), time.process_time() - begin
            with torch.no_grad():
                wrong = torch.cat([victim(a) for a in torch.split(found, 100)]).argmax(1) != y
        counts = wrong & around.boxed(found)
        far = torch.where(counts, around.distance(found), torch.inf)
        book.note(name, far, net.forwards / len(x), net.backwards / len(x), seconds)


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--only", action="append", default=[], help="attacks named by this word")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "recorded")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    for cell in chosen(given.words):
        record(cell, given.count, given.only, given.device, given.out)


if __name__ == "__main__":
    main()
