"""What every benchmark shares: networks, passes counted and timed, tables and their provenance.

All times are process CPU time of one torch thread. A floor is the time of the bare passes an
attack made (forwards x forward time + backwards x backward time, gradients of the input only), at
the batch sizes it made them with; it is measured before and after every run, and ratios are
medians over the trials of one process, contestants taking turns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import besiege
from besiege.models import ARCHITECTURES, Classifier

TRIALS = 5
ROWS = 64
CIFAR_NETS = {"resnet20": "public:cifar10_resnet20", "cnn_a": "public:cifar10_cnn_a_adv"}
NETS = ("resnet20", "cnn_a", "digits_cnn", "digits_mlp", "digits-natural", "digits-pgd-at")
EPS = {
    "resnet20": {"linf": 8 / 255, "l2": 0.5, "l1": 12.0},
    "cnn_a": {"linf": 2 / 255, "l2": 0.25, "l1": 6.0},
}
DIGITS_EPS = {"linf": 0.15, "l2": 1.0, "l1": 4.0}

Passes = Counter[tuple[int, bool]]
"""How often how many rows were sent, and whether their gradient was asked."""


class Seen(nn.Module):
    """A network with its normalisation as one module, as other libraries want it; counts passes."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.inner = classifier.module
        self.mean, self.std = (
            None if value is None else torch.tensor(value).view(-1, 1, 1)
            for value in (classifier.mean, classifier.std)
        )
        self.passes: Passes = Counter()
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Images in [0, 1] to logits."""
        # A forward under enable_grad whose input wants a gradient is followed by a backward.
        self.passes[len(x), torch.is_grad_enabled() and x.requires_grad] += 1
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        logits: Tensor = self.inner(x)
        return logits


@dataclass(frozen=True)
class Bench:
    """A network, some images of its data, and a budget for each norm."""

    name: str
    victim: Classifier
    images: Tensor
    labels: Tensor

    @property
    def eps(self) -> dict[str, float]:
        return EPS.get(self.name, DIGITS_EPS)

    def module(self) -> Seen:
        """The network for other libraries."""
        return Seen(self.victim)


def bench(name: str, count: int = ROWS) -> Bench:
    """A network by its short name, with `count` test images."""
    data = besiege.data.load("cifar10" if name in CIFAR_NETS else "digits", count=count)
    if name in CIFAR_NETS:
        victim = besiege.models.load(CIFAR_NETS[name])
    elif name in ARCHITECTURES:
        victim = _trained(name)
    else:
        victim = besiege.models.load(f"zoo:{name}")
    return Bench(name, victim, data.images, data.labels)


def _trained(architecture: str) -> Classifier:
    """A digits network trained for a second: what it answers hardly matters to its speed."""
    data = besiege.data.load("digits", split="train")
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = ARCHITECTURES[architecture]()
        optimiser = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(300):
            rows = torch.randint(len(data.labels), (64,))
            loss = nn.functional.cross_entropy(net(data.images[rows]), data.labels[rows])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return Classifier(net, classes=10, name=architecture)


# Timing.


def cpu(work: Callable[[], object], times: int = 1) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times


def forward(module: nn.Module, x: Tensor) -> None:
    """One bare forward pass."""
    with torch.no_grad():
        module(x)


def gradient(module: nn.Module, x: Tensor) -> None:
    """One bare forward and backward pass, to the input and from the logits themselves."""
    x = x.detach().requires_grad_(True)
    logits = module(x)
    torch.autograd.grad(logits, x, torch.ones_like(logits))


def pass_times(module: nn.Module, images: Tensor, passes: Passes) -> dict[tuple[int, bool], float]:
    """CPU seconds of each kind of pass, for the batch sizes in `passes`."""
    times = {}
    for rows, backward in passes:
        x = images[:1].expand(rows, *images.shape[1:]) if rows > len(images) else images[:rows]
        x, ask = x.contiguous(), gradient if backward else forward
        once = cpu(lambda ask=ask, x=x: ask(module, x))  # type: ignore[misc]  # bound early
        # About 20 ms of each: the clock and the caches need some repetition.
        many = max(2, min(200, round(0.02 / max(once, 1e-6))))
        times[rows, backward] = cpu(lambda ask=ask, x=x: ask(module, x), many)  # type: ignore[misc]
    return times


def floor(times: dict[tuple[int, bool], float], passes: Passes) -> float:
    """The time of the bare passes."""
    return sum(times[kind] * count for kind, count in passes.items())


@contextmanager
def counted(victim: Classifier) -> Iterator[Passes]:
    """Count a victim's passes by batch size and kind."""
    passes: Passes = Counter()
    original: Any = victim.module.forward

    def count(x: Tensor) -> Any:
        passes[len(x), torch.is_grad_enabled() and x.requires_grad] += 1
        return original(x)

    victim.module.forward = count  # for a while
    try:
        yield passes
    finally:
        del victim.module.forward  # the class's own is back


@dataclass(frozen=True)
class Timed:
    """What one contestant took: CPU seconds and ratios to the floor, one per trial."""

    seconds: list[float]
    ratios: list[float]
    passes: Passes

    def facts(self) -> dict[str, Any]:
        """For the table."""
        kinds = {False: 0, True: 0}
        for (rows, backward), count in self.passes.items():
            kinds[backward] += rows * count
        return {
            "cpu_s": statistics.median(self.seconds),
            "over_floor": statistics.median(self.ratios),
            "spread": [min(self.ratios), max(self.ratios)],
            "forwards": sum(kinds.values()),
            "backwards": kinds[True],
        }


def race(
    contestants: dict[str, tuple[Callable[[], object], Callable[[], Passes]]],
    module: nn.Module,
    images: Tensor,
    trials: int = TRIALS,
) -> dict[str, Timed]:
    """Run contestants in turns; each is (what to run, the passes it has made so far)."""
    found = {name: Timed([], [], Counter()) for name in contestants}
    for trial in range(trials + 1):  # the first turn warms up and tells the batch sizes
        for name, (run, count) in contestants.items():
            timed = found[name]
            if trial == 0:
                before = count().copy()
                seconds = cpu(run)
                timed.passes.update(count() - before)
                # Very short runs are repeated within a trial.
                continue
            times = max(1, min(20, round(0.2 / max(found[name].seconds or [1.0]))))
            early = floor(pass_times(module, images, timed.passes), timed.passes)
            seconds = cpu(run, times)
            late = floor(pass_times(module, images, timed.passes), timed.passes)
            timed.seconds.append(seconds)
            timed.ratios.append(2 * seconds / (early + late))
    return found


# Output.


def provenance(trials: int) -> dict[str, Any]:
    """When, on what and with what a benchmark ran."""
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": told.stdout.strip() or "unknown",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread, {_processor()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "trials": trials,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return f"{len(names)} x {names[0]}" if names else "unknown processor"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of the same keys as aligned text."""
    if not rows:
        return "nothing to show"
    keys = list(rows[0])
    lines = [keys] + [[_shown(row.get(key, "")) for key in keys] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keys))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10 else f"{value:.1f}"
    if isinstance(value, list):
        return "-".join(_shown(v) for v in value)
    return str(value)


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options all benchmarks have."""
    options = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--net", action="append", choices=NETS, help="may be repeated")
    options.add_argument("--trials", type=int, default=TRIALS)
    options.add_argument("--count", type=int, default=ROWS, help="images")
    options.add_argument("--json", type=Path, help="write the results here")
    return options


def finish(name: str, rows: list[dict[str, Any]], trials: int, path: Path | None) -> None:
    """Print the table, and write it with its provenance if a path is given."""
    about = provenance(trials)
    print(
        "\n" + ", ".join([name, *(str(about[k]) for k in ("date", "commit", "machine", "torch"))])
    )
    print(table(rows))
    if path is not None:
        path.write_text(json.dumps({"benchmark": name, **about, "rows": rows}, indent=1) + "\n")
