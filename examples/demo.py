"""Both shipped digits models under FGSM, PGD and MIM, in two norms, with 95 % intervals.

python examples/demo.py
"""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import besiege
from besiege.metrics import Rate

MODELS = ("zoo:digits-natural", "zoo:digits-pgd-at")
THREATS = ("linf:0.15", "l2:0.5")
ATTACKS = ("fgsm", "pgd", "mim")


def main() -> None:
    begin = time.perf_counter()
    torch.set_num_threads(1)  # the fastest for networks as small as these
    data = besiege.data.load("digits")
    console = Console()
    columns: list[list[str]] = []
    cases = [(model, threat) for model in MODELS for threat in THREATS]
    for model, threat in track(cases, "attacking", console=console, transient=True):
        standing = [
            besiege.attack(
                attack, model, data.images, data.labels, ids=data.ids, threat=threat
            ).verdicts
            for attack in ATTACKS
        ]
        robust = [verdicts.robust for verdicts in standing]
        worst = torch.stack(robust).all(0)
        columns.append([percent(c) for c in (standing[0].correct, *robust, worst)])
    table = Table(
        title=f"Accuracy on {len(data)} handwritten digits, in percent [95 % interval]",
        caption="clean: not attacked; all three: right under each; pgd-at: trained against PGD",
    )
    table.add_column("attack")
    for model, threat in cases:
        table.add_column(f"{model.removeprefix('zoo:')}\n{threat}", justify="right", no_wrap=True)
    for number, name in enumerate(("clean", *ATTACKS, "all three")):
        cells = (column[number] for column in columns)
        table.add_row(name, *cells, end_section=name in ("clean", ATTACKS[-1]))
    console.print(table)
    console.print(
        f"{time.perf_counter() - begin:.0f} s. Now your own model: see README.md.", highlight=False
    )


def percent(correct: torch.Tensor) -> str:
    found = Rate.of(int(correct.sum()), len(correct))
    return f"{100 * found.value:.1f} [{100 * found.low:.0f}, {100 * found.high:.0f}]"


if __name__ == "__main__":
    main()
