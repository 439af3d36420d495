"""Break one line of the library at a time, and see that the fast tests named for it fail.

python benchmarks/mutants.py [--only TEXT ...] [--no-plain]

Each mutant is a text of one source file and what is put in its place, in a copy of `src`. A mutant
that passes its tests is a line that no fast test guards; a text that is not found exactly once has
moved, and its mutant must be written again. Exits with 1 in both cases, and where a test fails
without any mutant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bounds_mutants import SLIPS as BOUNDS
from benchmarks.defense_mutants import SLIPS as DEFENSES
from benchmarks.detector_mutants import SLIPS as DETECTORS
from benchmarks.smoothing_mutants import SLIPS as SMOOTHING
from benchmarks.training_mutants import SLIPS as TRAINING

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """A change of one line, and arguments of pytest that select the tests which must fail."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def laws(which: str) -> tuple[str, ...]:
    """Cases of the laws that hold every one of some words."""
    return ("tests/laws/test_laws.py", "-k", " and ".join(["registered", *which.split()]))


MUTANTS = (
    Mutant(
        "l2 moves and projections point the other way",
        "core/ball.py",
        "return torch.copysign(filled, v)",
        "return torch.copysign(filled, -v)",
        ("tests/core/test_ball.py",),
    ),
    Mutant(
        "the dual norm of l2 is l2's",
        "core/ball.py",
        "return distances(g, L2)\n\n    def _direction",
        "return distances(g, L1)\n\n    def _direction",
        ("tests/core/test_ball.py",),
    ),
    Mutant(
        "a budget may be exceeded by a thousandth",
        "core/region.py",
        "TOLERANCE = 1e-6",
        "TOLERANCE = 1e-3",
        ("tests/core/test_ball.py", "tests/evaluation/test_judging.py"),
    ),
    Mutant(
        "randomness depends on the place in the batch, not on the id",
        "core/dice.py",
        "key = ids.to(torch.int64) * _GOLDEN",
        "key = torch.arange(len(ids), device=ids.device) * _GOLDEN",
        laws("pgd row_independent linf"),
    ),
    Mutant(
        "a random target may be the label",
        "core/dice.py",
        "return (labels + 1 + offset) % classes",
        "return (labels + offset) % classes",
        ("tests/core/test_dice.py", "tests/evaluation/test_crafting.py"),
    ),
    Mutant(
        "of several images of a sample the worst is kept",
        "core/record.py",
        "where = where[score[where].argsort(descending=True, stable=True)]",
        "where = where[score[where].argsort(descending=False, stable=True)]",
        ("tests/core/test_record.py", "tests/core/test_siege.py"),
    ),
    Mutant(
        "an equal loss wins over an earlier one",
        "core/record.py",
        "(loss[pick] > held)",
        "(loss[pick] >= held)",
        ("tests/core/test_record.py", "tests/core/test_siege.py"),
    ),
    Mutant(
        "one query more than allowed",
        "core/meter.py",
        "return self.budget - self.queries[samples]",
        "return self.budget + 1 - self.queries[samples]",
        laws("pgd honest_accounts linf"),
    ),
    Mutant(
        "backward passes are not charged",
        "core/queries.py",
        "price = meter.price(n, backwards * n)",
        "price = meter.price(n, 0)",
        laws("pgd honest_accounts linf"),
    ),
    Mutant(
        "rows that are done stay in the siege",
        "core/siege.py",
        "rows = self._queries.staying(self._active)",
        "rows = None",
        ("tests/core/test_siege.py",),
    ),
    Mutant(
        "a success outside of the ball counts",
        "core/tracker.py",
        "inside = distance <= limit[samples]",
        "inside = ~torch.isnan(distance)",
        laws("fab feasible linf"),
    ),
    Mutant(
        "a model stays in evaluation mode",
        "core/victim.py",
        "part.training = mode",
        "part.training = False",
        laws("fgsm repeatable linf"),
    ),
    Mutant(
        "the judge accepts images outside of the budget",
        "evaluation/judging.py",
        "success = valid & within & reached",
        "success = valid & reached",
        ("tests/evaluation/test_judging.py",),
    ),
    Mutant(
        "successes on a twin are not confirmed",
        "evaluation/confirming.py",
        "again = again[~self._breaks(self.crafted.images[again], again)]",
        "again = again[:0]",
        ("tests/models/test_twins.py", "tests/evaluation/test_crafting.py"),
    ),
    Mutant(
        "apgd stalls where its loss rose often",
        "attacks/pieces.py",
        "else rose < self.rho * since",
        "else rose > self.rho * since",
        ("tests/attacks/test_apgd.py",),
    ),
    Mutant(
        "the cosine schedule begins one step late",
        "attacks/pieces.py",
        "math.cos(math.pi * step / steps)",
        "math.cos(math.pi * (step + 1) / steps)",
        ("tests/attacks/test_pieces.py", "tests/attacks/test_ascent.py"),
    ),
    Mutant(
        "momentum forgets",
        "attacks/directions.py",
        "summed = self.decay * memory[0] + g",
        "summed = 0.5 * self.decay * memory[0] + g",
        ("tests/attacks/test_pieces.py", "tests/attacks/test_ascent.py"),
    ),
    Mutant(
        "square halves its windows a step early",
        "attacks/square.py",
        "return tuple(-(-(last + 1) * self.steps // 10000) for last in HALVINGS)",
        "return tuple(-(-last * self.steps // 10000) for last in HALVINGS)",
        ("tests/attacks/test_square.py",),
    ),
    Mutant(
        "fab leans to the farther of its two projections",
        "attacks/fab.py",
        "(near / (near + far))",
        "(far / (near + far))",
        ("tests/attacks/test_fab.py",),
    ),
    Mutant(
        "the weight of cw rises after a success",
        "attacks/weighting.py",
        "high = torch.where(won, torch.minimum(self.high, self.c), self.high)",
        "high = torch.where(won, self.high, torch.minimum(self.high, self.c))",
        ("tests/attacks/test_cw.py",),
    ),
    Mutant(
        "hopskipjump's steps do not shrink",
        "attacks/hopskipjump.py",
        "far / math.sqrt(step)",
        "far",
        ("tests/attacks/test_hopskipjump.py",),
    ),
    Mutant(
        "deepfool stops short of the boundary",
        "attacks/deepfool.py",
        "(at.origin + (1.0 + overshoot) * total)",
        "(at.origin + (1.0 - overshoot) * total)",
        ("tests/attacks/test_deepfool.py",),
    ),
    *(
        Mutant(what, file, old, new, (test,))
        for what, file, old, new, test in BOUNDS + TRAINING + DEFENSES + DETECTORS + SMOOTHING
    ),
)


def mutated(mutant: Mutant | None, folder: Path) -> Path:
    """A copy of the sources in a folder, with the mutant's change in them."""
    source = Path(shutil.copytree(ROOT / "src", folder / "src"))
    if mutant is not None:
        file = source / "besiege" / mutant.file
        text = file.read_text("utf-8")
        if text.count(mutant.old) != 1:
            raise LookupError(f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times")
        file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    return source


def passes(source: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Whether fast tests pass with these sources, and the line that says so."""
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line] or [done.stderr[-200:]]
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}: {lines[-1]}")
    failed = [line for line in lines if line.startswith("FAILED ")]
    return done.returncode == 0, failed[0].split(" - ")[0] if failed else lines[-1]


@cache
def sound(tests: tuple[str, ...]) -> bool:
    """Whether tests pass without any mutant; several mutants may have the same ones."""
    with tempfile.TemporaryDirectory() as folder:
        return passes(mutated(None, Path(folder)), tests)[0]


def tried(mutant: Mutant, plain: bool) -> tuple[str, str]:
    """The verdict on one mutant: red, GREEN or LOST."""
    if plain and not sound(mutant.tests):
        return "BROKEN", "a test fails without the mutant"
    try:
        with tempfile.TemporaryDirectory() as folder:
            survived, line = passes(mutated(mutant, Path(folder)), mutant.tests)
    except LookupError as problem:
        return "LOST", str(problem)
    return ("GREEN", line) if survived else ("red", line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="mutants whose description or file holds a text")
    parser.add_argument("--no-plain", action="store_true", help="do not run the tests without it")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not given.only or any(text in mutant.what + mutant.file for text in given.only)
    ]
    verdicts = []
    for mutant in chosen:
        begin = time.perf_counter()
        verdict, line = tried(mutant, not given.no_plain)
        seconds = time.perf_counter() - begin
        print(f"{verdict:6} {seconds:4.0f} s  {mutant.file}: {mutant.what}\n{line}", flush=True)
        verdicts.append(verdict)
    print(f"{verdicts.count('red')} of {len(verdicts)} red")
    return int(set(verdicts) != {"red"})


if __name__ == "__main__":
    sys.exit(main())
