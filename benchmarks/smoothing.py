"""Certified accuracy and time of randomised smoothing.

    python benchmarks/smoothing.py zoo:cifar10-gaussian-0.25 --count 500 --device cuda

The images are every k-th of the test set, as Cohen et al. (2019) take them: every 20th of CIFAR-10
for 500. A second count of the first images, in batches of another size, shows whether votes repeat.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import besiege
from besiege.bench.certifying import certified
from besiege.defenses import load
from besiege.defenses.counting import counted


def main() -> None:
    """Certify images of a data set, and print the curve, the time and the peak of memory."""
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("model", help="a model that was trained with noise, without its layer")
    read.add_argument("--data", default="cifar10")
    read.add_argument("--sigma", type=float, default=0.25)
    read.add_argument("--count", type=int, default=500)
    read.add_argument("--n", type=int, default=100_000)
    read.add_argument("--alpha", type=float, default=0.001)
    read.add_argument("--device", default="cpu")
    read.add_argument("--again", type=int, default=0, help="images counted again in other batches")
    read.add_argument("--json", type=Path)
    given = read.parse_args()
    test = besiege.data.load(given.data, "test")
    some = test.take(range(0, len(test) // given.count * given.count, len(test) // given.count))
    victim = load(f"{given.model}+smoothed(sigma={given.sigma})", given.device)
    begun, spent = time.perf_counter(), time.process_time()
    found = certified(victim, some.images, some.labels, ids=some.ids, n=given.n, alpha=given.alpha)
    wall, cpu = time.perf_counter() - begun, time.process_time() - spent
    curve = found.accuracy([step * given.sigma for step in range(7)])
    for r, value, low, high in zip(curve.x, curve.value, curve.low, curve.high, strict=True):
        print(f"r = {r:.3f}: {100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
    print(f"abstains: {100 * found.abstains.mean():.1f} %; false at most {found.false:.2f} images")
    print(f"{wall:.1f} s, of which CPU {cpu:.1f}; {wall / given.count:.3f} s an image")
    about = {"seconds": wall, "cpu": cpu, "images": given.count, "n": given.n}
    if given.device != "cpu":
        about["memory"] = torch.cuda.max_memory_allocated() / 2**20
        print(f"peak {about['memory']:.0f} MiB on {torch.cuda.get_device_name()}")
    if given.again:
        few = some.take(range(given.again))
        hits = [
            counted(victim, few.images, few.ids, n=given.n, batch=batch).hits
            for batch in (None, 96)
        ]
        print(f"votes that differ in batches of 96: {int((hits[0] - hits[1]).abs().sum())}")
    if given.json is not None:
        rows = {"radius": found.radius.tolist(), "prediction": found.prediction.tolist()}
        given.json.write_text(json.dumps({**about, **rows, "hits": found.hits.tolist()}))


if __name__ == "__main__":
    main()
