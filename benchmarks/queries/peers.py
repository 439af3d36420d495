"""Record what foolbox and ART find within so many queries, in an environment of their own.

    PYTHONPATH=src python benchmarks/queries/peers.py [cells] [--queries 2000] [--only WORD ...]

Neither knows a budget: the network itself counts the images it is shown on behalf of each sample,
keeps the nearest one it misreads, and ends the attack when the queries are spent. Samples are
attacked one by one: ART does so itself, and foolbox's HopSkipJump, which divides its gradients by
a norm over the whole batch, is several times weaker with many at once. Both start as they like,
and every image shown counts, the search for a start included.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from besiege.core.ball import Ball, ball
from besiege.models import Classifier

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.minimum.cells import Book
from benchmarks.queries.cells import (
    COUNT,
    HERE,
    MARKS,
    QUERIES,
    SKIP,
    Cell,
    chosen,
    medians,
    rounded,
)

Run = Callable[["Watched", Tensor, Tensor], None]


class SpentError(Exception):
    """The queries are spent."""


class Watched(nn.Module):
    """A network that counts what it is shown for each sample and remembers what fooled it."""

    def __init__(self, victim: Classifier, around: Ball, labels: Tensor, queries: int) -> None:
        super().__init__()
        self.victim, self.inner = victim, victim.module
        self.around, self.labels, self.queries = around, labels, queries
        self.best = torch.full((len(labels),), torch.inf, dtype=torch.float64).to(labels.device)
        self.used = torch.zeros(len(labels), dtype=torch.int64, device=labels.device)
        self.first = torch.full_like(self.used, -1)
        self.marks = [mark for mark in MARKS if mark <= queries]
        self.after = self.best.repeat(len(self.marks), 1)
        self.only = 0
        """The sample that images are charged to."""
        self.idle = True
        """Whether images are not charged."""

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        with torch.no_grad():
            logits = self.victim(x.float())
        if self.idle:
            return logits
        rows = torch.full((len(x),), self.only, device=x.device)
        order = torch.arange(len(x), device=x.device)
        paid = self.used[rows] + order < self.queries
        if not bool(paid.any()):
            raise SpentError
        number = self.used[rows] + order + 1
        self.used.index_add_(0, rows[paid], torch.ones_like(rows[paid]))
        wrong = paid & (logits.argmax(1) != self.labels[rows])
        where = wrong.nonzero()[:, 0]
        if len(where):
            here = self.around.at(rows[where])
            far = here.distance(x[where].float())
            far = torch.where(here.boxed(x[where].float()), far, torch.inf)
            self.best.scatter_reduce_(0, rows[where], far, "amin")
            for mark, best in zip(self.marks, self.after, strict=True):
                early = number[where] <= mark
                best.scatter_reduce_(0, rows[where][early], far[early], "amin")
            inside = where[far <= here.radius * (1 + 1e-6)]
            fresh = inside[self.first[rows[inside]] < 0]
            for row in fresh.flip(0).tolist():  # the first of several is written last
                self.first[rows[row]] = number[row]
        return logits


def foolbox(norm: str, eps: float | None) -> dict[str, Run]:
    """Its decision attacks, without an end of their own."""
    fb: Any = import_module("foolbox")

    def with_(name: str, **given: object) -> Run:
        def run(net: Watched, x: Tensor, y: Tensor) -> None:
            model = fb.PyTorchModel(net.eval(), bounds=(0, 1), device=x.device)
            for row in range(len(x)):
                net.only, net.idle = row, False
                one = slice(row, row + 1)
                with contextlib.suppress(SpentError):
                    getattr(fb.attacks, name)(**given)(model, x[one], y[one], epsilons=None)
                net.idle = True

        return run

    runs: dict[str, Run] = {}
    if eps is None and norm in ("l2", "linf"):
        runs["hopskipjump"] = with_("HopSkipJumpAttack", constraint=norm, steps=10000)
    if eps is None and norm == "l2":
        runs["boundary"] = with_("BoundaryAttack", steps=10**6, source_step_convergance=0.0)
    return {f"foolbox {name}": run for name, run in runs.items()}


def art(norm: str, eps: float | None, queries: int) -> dict[str, Run]:
    """Its decision and score attacks, one sample after the other."""
    np.mat = np.asmatrix  # type: ignore[attr-defined]  # its GeoDA still calls it so
    evasion: Any = import_module("art.attacks.evasion")
    estimators: Any = import_module("art.estimators.classification")
    order = {"l2": 2, "linf": np.inf}[norm]

    def with_(name: str, **given: object) -> Run:
        def run(net: Watched, x: Tensor, y: Tensor) -> None:
            classes = int(net(x[:1]).shape[1])
            kind = "gpu" if x.is_cuda else "cpu"
            estimator = estimators.PyTorchClassifier(
                net.eval(),
                nn.CrossEntropyLoss(),
                tuple(x.shape[1:]),
                classes,
                clip_values=(0.0, 1.0),
                device_type=kind,
            )
            for row in range(len(x)):
                net.only, net.idle = row, False
                attack = getattr(evasion, name)(estimator, verbose=False, **given)
                one_hot = np.eye(classes, dtype=np.float32)[y[row : row + 1].cpu().numpy()]
                with contextlib.suppress(SpentError):
                    attack.generate(x[row : row + 1].cpu().numpy(), y=one_hot)
                net.idle = True

        return run

    runs: dict[str, Run] = {}
    if eps is None:
        runs["hopskipjump"] = with_("HopSkipJump", norm=order, max_iter=10000)
        runs["geoda"] = with_("GeoDA", norm=order, max_iter=queries)
    if eps is None and norm == "l2":
        runs["boundary"] = with_("BoundaryAttack", targeted=False, max_iter=10**6)
        runs["signopt"] = with_("SignOPTAttack", targeted=False, max_iter=10**6)
        whole = {"use_resize": False, "use_importance": False, "nb_parallel": 32}
        runs["zoo"] = with_("ZooAttack", max_iter=10**4, **whole)
    if eps is not None and norm == "linf":
        runs["square"] = with_("SquareAttack", norm=order, eps=eps, max_iter=queries)
    return {f"art {name}": run for name, run in runs.items()}


def record(cell: Cell, given: argparse.Namespace) -> None:
    """Run all of them on one cell."""
    victim, samples = cell.load(given.count, given.device, SKIP)
    first, last = (int(edge) for edge in given.rows.split(":"))
    x, y, threat = samples.images[first:last], samples.labels[first:last], cell.threat
    book = Book(given.out, cell, len(samples), "foolbox 3.3.4, ART 1.20.1")
    book.figures["queries"] = given.queries
    eps = None if threat.eps is None else float(threat.eps)
    for name, run in {**foolbox(cell.norm, eps), **art(cell.norm, eps, given.queries)}.items():
        wanted = not given.only or any(word in name for word in given.only)
        if not wanted or name in book.figures["attacks"]:
            continue
        torch.manual_seed(first)
        np.random.seed(first)
        radius = torch.inf if eps is None else eps
        net = Watched(victim, ball(threat.norm, x, radius, victim.box), y, given.queries)
        begin = time.perf_counter()
        with victim.held():
            try:
                run(net, x, y)
            except SpentError:
                pass
            except Exception as problem:  # a peer that fails is said to
                print(f"{cell.name} {name} failed: {type(problem).__name__}: {problem}"[:300])
                continue
        seconds = time.perf_counter() - begin
        entry: dict[str, Any] = {}
        if eps is None:
            entry["after"] = {
                str(mark): rounded(best) for mark, best in zip(net.marks, net.after, strict=True)
            }
            print(" ", medians(entry["after"]), flush=True)
        else:
            spent = net.first.masked_fill(net.first < 0, 10**9)
            entry["robust"] = {str(m): int((spent > m).sum()) for m in net.marks}
            print("  robust", entry["robust"], flush=True)
        book.note(name, net.best, float(net.used.double().mean()), 0.0, seconds, **entry)


def main() -> None:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--only", action="append", default=[], help="attacks named by this word")
    parser.add_argument("--rows", default=f"0:{COUNT}", help="so many of the images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=HERE / "recorded")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    for cell in chosen(given.words):
        record(cell, given)


if __name__ == "__main__":
    main()
