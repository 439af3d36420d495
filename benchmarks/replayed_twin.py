"""A second natural model "defends" against replayed images, and against no attack on itself.

    python benchmarks/replayed_twin.py [FOLDER] [COUNT]

DeepFool and C&W are run on one natural ResNet-20 for CIFAR-10. Their successes are judged by
another natural ResNet-20, which has no defense and is also attacked itself, in the same way: both
figures are printed on one line, and stand on one line of FOLDER/report.html.
"""

from __future__ import annotations

import sys
import time
from tempfile import mkdtemp

from besiege.bench.replaying import replay
from besiege.bench.single import evaluate
from besiege.cli.replay import sentence
from besiege.report import write_page

SOURCE, TWIN = "public:cifar10_resnet20", "zoo:cifar10-natural"
ATTACKS = "deepfool@deepsec, cw(steps=40, rounds=4)"


def main() -> None:
    """Evaluate, replay and print."""
    folder = sys.argv[1] if len(sys.argv) > 1 else mkdtemp(prefix="besiege-twin-")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    begin = time.process_time()
    how = {"curve": False, "examine": "none", "count": count, "out": folder}
    evaluate(SOURCE, "cifar10", threat="l2", attacks=ATTACKS, **how)  # type: ignore[call-overload]
    for one in replay(folder, on=TWIN):
        print(f"{one.text}: {sentence(one)}")
    print(f"{time.process_time() - begin:.0f} s of CPU time; {write_page(folder)}")


if __name__ == "__main__":
    main()
