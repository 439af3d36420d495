"""How much sooner a twin answers than its original: CPU time of one thread, per image.

python benchmarks/twin.py [SOURCE ...]

Original and twin take turns within one run; figures are medians of TRIALS turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from besiege.models import ARCHITECTURES, PUBLIC, Classifier, load, twin

TRIALS = 5
IMAGES_PER_TURN = 256
BATCHES = (8, 16, 32, 64, 128, 256)


def forward(victim: Classifier, x: Tensor) -> None:
    with torch.no_grad():
        victim(x)


def gradient(victim: Classifier, x: Tensor) -> None:
    x = x.clone().requires_grad_(True)
    torch.autograd.grad(victim(x).logsumexp(1).sum(), x)


def per_image(ask: Callable[[Classifier, Tensor], None], victim: Classifier, x: Tensor) -> float:
    turns = max(1, IMAGES_PER_TURN // len(x))
    begin = time.process_time()
    for _ in range(turns):
        ask(victim, x)
    return (time.process_time() - begin) / (turns * len(x))


def main(sources: list[str]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, medians of {TRIALS}, ms per image")
    for source in sources:
        if source.startswith("public:"):
            shape = PUBLIC[source.removeprefix("public:")].shape
            original = load(source)
        else:
            shape = (1, 8, 8)
            original = Classifier(ARCHITECTURES[source](), name=source)
        copy = twin(original, torch.rand(8, *shape))
        if copy is None:
            print(f"{source}: no twin")
            continue
        with original.held():
            for ask in (forward, gradient):
                for rows in BATCHES:
                    x = torch.rand(rows, *shape)
                    times: dict[Classifier, list[float]] = {original: [], copy: []}
                    for _ in range(TRIALS + 1):
                        for victim, taken in times.items():
                            taken.append(per_image(ask, victim, x))
                    # The first turn warms up.
                    a, b = (1000 * statistics.median(t[1:]) for t in times.values())
                    print(
                        f"{source:24s} {ask.__name__:8s} {rows:4d} rows   "
                        f"original {a:7.4f}   twin {b:7.4f}   x{a / b:.2f}"
                    )


if __name__ == "__main__":
    main(sys.argv[1:] or ["public:cifar10_resnet20", "digits_cnn"])
