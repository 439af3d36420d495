"""CPU time and memory of certificates, for each image, on one thread.

python benchmarks/certify.py [--images 100] [--net NAME ...] [--method crown ...] [--seconds 10]

The bars are for CROWN: 25 ms for an image on oval_base, 90 ms on mnist_kw_small, below 2 GB.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from besiege.bounds import Bounding
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.data import load
from besiege.evaluation.certificates import METHODS, PROVED, Order
from besiege.models.sources import load as load_model

NETS = {
    "cifar10_oval_base_kw": ("cifar10", "linf:2/255", 25.0),
    "mnist_kw_small_eps0.1": ("mnist", "linf:0.1", 90.0),
    "cifar10_oval_wide_kw": ("cifar10", "linf:2/255", None),
    "cifar10_cnn_a_adv": ("cifar10", "linf:2/255", None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--method", choices=METHODS.names(), action="append")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'net':24} {'method':10} {'clean':>7} {'proved':>7} {'ms':>7} {'bar':>5} {'GB':>5}")
    for name in given.net or NETS:
        source, threat, bar = NETS[name]
        victim, data = load_model(f"public:{name}"), load(source, count=given.images)
        right = torch.cat([victim(part).argmax(1) for part in torch.split(data.images, 100)])
        right = right == data.labels
        images, labels = data.images[right], data.labels[right]
        samples = Samples(images, labels, data.ids[right])
        every = torch.ones(len(images), dtype=torch.bool)
        for method in given.method or ["crown"]:
            order = Order(victim, samples, Threat.parse(threat), every, ~every, given.seconds)
            Bounding.of(victim, images).margins(images[:2], labels[:2], order.threat)  # warm
            start = time.process_time()
            found = METHODS.get(method).certify(order)
            each = 1000 * (time.process_time() - start) / len(images)
            proved = int((found.outcome == PROVED).sum()) / given.images
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            limit = "" if bar is None or method != "crown" else f"{bar:.0f}"
            print(
                f"{name:24} {method:10} {100 * len(images) / given.images:6.1f}% "
                f"{100 * proved:6.1f}% {each:7.2f} {limit:>5} {most:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
