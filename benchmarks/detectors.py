r"""What attacks do to models with detectors: the table of docs/detectors.md, from kept records.

    besiege evaluate "public:cifar10_resnet20+detector('zoo:cifar10-squeezing')" --data cifar10 \
      --threat linf:8/255 --count 1000 --out squeezing \
      --attacks "oblivious(pgd), oblivious(cw), pgd(loss=margin), apgdt, opgd, square"
    python benchmarks/detectors.py squeezing lid magnet [--into docs/detectors.md]

Every figure is read from the records of these runs. `--into` replaces what stands between the two
lines ``<!-- measured -->`` of a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import besiege
from besiege.metrics.defense_values import Auc, Detection, Shares

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import provenance

MARK = "<!-- measured -->"
HEAD = (
    "| images of | right | wrong | rejected | classifier alone | errors rejected | ROC area |",
    "|---|---|---|---|---|---|---|",
)


def page(runs: Sequence[str]) -> Iterator[str]:
    """The lines of the page: what it was measured on, and a table for every evaluation."""
    about = provenance(1)
    date, *rest = (about[name] for name in ("date", "commit", "machine", "torch"))
    yield "Printed {}, commit {}, {}, torch {}.".format(date[:10], *rest)
    yield "95 % intervals in brackets."
    for run in runs:
        found = besiege.open(run)
        for one in found if isinstance(found, besiege.Evaluations) else [found]:
            if one.figures.rejection is not None and one.figures.rejection.together is None:
                continue
            yield ""
            yield from table(one)


def table(found: besiege.Evaluation) -> Iterator[str]:
    """The table of one evaluation."""
    figures = found.figures.rejection
    if figures is None:
        raise SystemExit(f"{found.folder}: this model rejects no images")
    clean = figures.clean
    yield (
        f"**`{found.figures.model.name}`**, {found.figures.threat.text}, "
        f"{clean.right.count:,} images; clean images rejected: {clean.rejected}."
    )
    yield ""
    yield from HEAD
    yield row("clean images", clean, None)
    for shares, detected in zip(figures.attacks, figures.detection, strict=True):
        yield row(f"`{shares.text}`", shares, detected)
    if figures.together is not None:
        yield row("worst for each image", figures.together, None)


def row(name: str, shares: Shares, detected: Detection | None) -> str:
    """One line: the three shares, the classifier alone, and detection of its errors."""
    rates = [shares.right, shares.wrong, shares.rejected, shares.alone]
    caught = None if detected is None else detected.rejected
    cells = [name, *map(str, rates), "" if caught is None else str(caught)]
    return f"| {' | '.join([*cells, area(None if detected is None else detected.auc)])} |"


def area(auc: Auc | None) -> str:
    """An area under the curve with its interval."""
    return "" if auc is None else f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"


def put(into: Path, lines: Sequence[str], mark: str = MARK) -> None:
    """Replace what stands between the marks of a page."""
    parts = into.read_text(encoding="utf-8").split(mark)
    if len(parts) != 3:
        raise SystemExit(f"{into} has {len(parts) - 1} lines '{mark}', but two are needed")
    middle = "\n".join(["", *lines, ""])
    into.write_text(mark.join([parts[0], middle, parts[2]]), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", help="folders of evaluations")
    parser.add_argument("--into", type=Path, help="page to write the tables into")
    given = parser.parse_args()
    lines = list(page(given.runs))
    if given.into is None:
        print("\n".join(lines))
    else:
        put(given.into, lines)
