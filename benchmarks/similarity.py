"""Time and memory of the attack utility metrics: 19 attacks on 1,000 CIFAR-10 images.

    python benchmarks/similarity.py

Distances in both forms, SSIM with both data ranges and PSD in both forms, on one core. The images
are made up: the time does not depend on them.
"""

from __future__ import annotations

import os
import resource
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from besiege.metrics.attack_utility import likeness

ATTACKS, IMAGES, SHAPE = 19, 1000, (3, 32, 32)


def main() -> None:
    """Print seconds of CPU time and the largest memory, those of the images included."""
    generator = np.random.default_rng(0)
    clean = generator.random((IMAGES, *SHAPE), np.float32)
    spent = 0.0
    for _ in range(ATTACKS):
        noise = generator.uniform(-0.1, 0.1, clean.shape).astype(np.float32)
        moved = np.clip(clean + noise, 0, 1)
        begin = time.process_time()
        likeness(clean, moved)
        spent += time.process_time() - begin
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{ATTACKS} attacks x {IMAGES} images of {SHAPE}: {spent:.1f} s of one core, {most:.0f} MB"
    )


if __name__ == "__main__":
    main()
