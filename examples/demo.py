"""Both shipped digits models under two threats: one run folder, one table, one page.

python examples/demo.py [FOLDER]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from rich.console import Console

import besiege
from besiege.bench.results import summarise
from besiege.report import table, write_page

MODELS = ("zoo:digits-natural", "zoo:digits-pgd-at")
THREATS = ("linf:0.15", "l2:0.5")


def main(folder: Path) -> None:
    begin = time.perf_counter()
    torch.set_num_threads(1)  # fastest for networks as small as these
    for model in MODELS:
        for threat in THREATS:
            besiege.evaluate(model, "digits", threat=threat, out=folder, progress=True)
    page = write_page(folder)
    console = Console()
    console.print(table(summarise(folder)))
    console.print(f"The page: {page}", soft_wrap=True, highlight=False)
    console.print(
        f"{time.perf_counter() - begin:.0f} s. Now your own model: see README.md.", highlight=False
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "besiege-runs/demo"))
