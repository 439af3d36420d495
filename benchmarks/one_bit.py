r"""How many images a one-bit squeezer leaves at most, and how many a plain script breaks.

    python benchmarks/one_bit.py [--count 100] [--most 18] [--few] [--device cuda]

`mnist-squeezing` accepts an image only if the probabilities of its one-bit version differ from its
own by 0.007 in l1. An image that is misclassified and accepted therefore has a one-bit version that
is misclassified too, or whose label leads by no more than 0.007 in probability. Within 0.3 only
pixels between 0.2 and 0.8 can change their bit. So there are three answers for every image, each by
plain code that shares nothing with the attacks:

- searched: a beam search over sets of flipped bits finds a misclassified one-bit image, or none;
- aligned: pixel values keep the bits that were found, and Adam brings the probabilities of the
  image, its bits and its median together, until it is misclassified and accepted;
- enumerated: of images with at most `--most` such pixels all one-bit images are classified. Where
  no label leads by 0.007 or less, no attack whatever can succeed.

    python benchmarks/one_bit.py --count 40 --most 0 --into docs/detectors.md

`--into` replaces what stands between the two lines ``<!-- one bit -->`` of a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import besiege
from besiege.core.dice import Dice
from besiege.core.victim import Victim
from besiege.defenses import Detected, Median, load
from besiege.metrics import Rate

# A script finds its neighbours, not its package: the root makes it one.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.detectors import put
from benchmarks.harness import provenance

MODEL = "zoo:mnist-natural+detector('zoo:mnist-squeezing')"
EPS = 0.3
MARK = "<!-- one bit -->"
WIDTH, PATIENCE, KEPT = 8, 6, 12
STEPS, RATE, BEYOND, REJECTED = 400, 0.03, 1e-5, 10
NO_DICE = Dice(torch.zeros(1, dtype=torch.int64))
AT_ONCE = {"cpu": 1000, "cuda": 65536}


class Searched(NamedTuple):
    """What was found for one image."""

    pixels: int
    lead: float
    """The label's smallest lead in probability over another class, by the beam search."""
    misled: bool
    broken: bool
    least: float | None
    """The same over all one-bit images, where they were enumerated."""


def within(x: Tensor) -> Tensor:
    """The pixels whose bit can flip; the judge allows a budget to be exceeded by a millionth."""
    return (x - 0.5).abs() <= EPS + 1e-6


def leads(logits: Tensor, label: int) -> Tensor:
    """How far the label's probability is above the largest other one; below 0 where it is wrong."""
    chances = logits.softmax(1)
    own = chances[:, label].clone()
    chances[:, label] = -1
    return own - chances.amax(1)


def margins(logits: Tensor, label: int) -> Tensor:
    """Best other logit minus the label's."""
    others = logits.clone()
    others[:, label] = -torch.inf
    return others.amax(1) - logits[:, label]


def answers(victim: Victim, images: Tensor) -> Tensor:
    """The logits of many images, some at once."""
    parts = torch.split(images.view(-1, 1, 28, 28), AT_ONCE[images.device.type])
    return torch.cat([victim(part) for part in parts])


def flipped(bits: Tensor, places: Tensor, flips: Tensor) -> Tensor:
    """One-bit images ``[sets, pixels]`` for sets of flips ``[sets, places]``."""
    images = bits.repeat(len(flips), 1)
    images[:, places] = (bits[places] != flips).to(bits)
    return images


def searched(victim: Victim, bits: Tensor, places: Tensor, label: int) -> tuple[Tensor, Tensor]:
    """One-bit images by falling margin, and their margins: a beam search that adds flips."""
    beam = torch.zeros(1, len(places), dtype=torch.bool, device=bits.device)
    each = torch.eye(len(places), dtype=torch.bool, device=bits.device)
    images, found = [bits[None]], [margins(victim(bits.view(1, 1, 28, 28)), label)]
    best, stalled = float(found[0]), 0
    while stalled <= PATIENCE and not bool(beam.all()):
        beam = torch.unique((beam[:, None] ^ each)[~beam], dim=0)
        made = flipped(bits, places, beam)
        now = margins(answers(victim, made), label)
        top = now.topk(min(WIDTH, len(now))).indices
        beam = beam[top]
        images.append(made[top[:2]])
        found.append(now[top[:2]])
        stalled = 0 if float(now.max()) > best else stalled + 1
        best = max(best, float(now.max()))
    order = torch.cat(found).argsort(descending=True)
    return torch.cat(images)[order], torch.cat(found)[order]


def aligned(guarded: Detected, x: Tensor, label: int, bits: Tensor) -> bool:
    """Whether pixel values with given bits ``[rows, 1, 28, 28]`` are misclassified and accepted."""
    up = bits > 0.5
    low = torch.where(up, 0.5 + BEYOND, 0.0).maximum((x - EPS).clamp(0, 1))
    high = torch.where(up, 1.0, 0.5).minimum((x + EPS).clamp(0, 1))
    wanted, median = guarded.victim(bits).log_softmax(1).detach(), Median(2)
    for start in (x.expand_as(bits), bits):
        now, first, second = start.clone(), torch.zeros_like(bits), torch.zeros_like(bits)
        for step in range(STEPS):
            now = now.detach().maximum(low).minimum(high).requires_grad_(True)
            logits = guarded.victim(now)
            middle = guarded.victim(median(now, (0.0, 1.0), NO_DICE)).log_softmax(1)
            own, lead = logits.log_softmax(1), margins(logits, label)
            both = (wanted, middle)
            far = torch.stack([(own.exp() - one.exp()).abs().sum(1) for one in both]).amax(0)
            # A first look; the victim itself decides.
            likely = (lead > 0) & (far <= guarded.calibration.threshold)
            if bool(likely.any()):
                named = guarded(now.detach()[likely]).argmax(1)
                if bool(((named != label) & (named < REJECTED)).any()):
                    return True
            # Minus the logarithm of what two distributions share: it does not saturate.
            apart = sum(-torch.minimum(own, one).logsumexp(1) for one in both)
            (slope,) = torch.autograd.grad((2 * apart + (-lead).clamp_min(0)).sum(), now)
            first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope.square()
            rate = RATE * (1 - step / STEPS) + RATE / 30
            move = first / (1 - 0.9 ** (step + 1))
            now = now - rate * move / ((second / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8)
    return False


def least_lead(victim: Victim, bits: Tensor, places: Tensor, label: int) -> float:
    """The label's smallest lead over all one-bit images within reach."""
    sets, piece, least = 2 ** len(places), AT_ONCE[bits.device.type], torch.inf
    powers = torch.arange(len(places), device=bits.device)
    for start in range(0, sets, piece):
        numbers = torch.arange(start, min(start + piece, sets), device=bits.device)
        flips = (numbers[:, None] >> powers) & 1 == 1
        made = flipped(bits, places, flips).view(-1, 1, 28, 28)
        least = min(least, float(leads(victim(made), label).min()))
    return least


def look(guarded: Detected, x: Tensor, label: int, most: int) -> Searched:
    """All three answers for one image ``[1, 28, 28]``."""
    bits = (x > 0.5).to(x).flatten()
    # Enumerated are all bits that could flip, searched only those that certainly do.
    places = within(x).flatten().nonzero()[:, 0]
    sure = torch.where(x > 0.5, x - EPS <= 0.5, x + EPS > 0.5 + BEYOND).flatten().nonzero()[:, 0]
    with torch.no_grad():
        images, found = searched(guarded.victim, bits, sure, label)
        lead = float(leads(guarded.victim(images[:1].view(1, 1, 28, 28)), label))
        least = None
        if len(places) <= most:
            least = least_lead(guarded.victim, bits, places, label)
    wrong = images[found > 0][:KEPT].view(-1, 1, 28, 28)
    broken = bool(len(wrong)) and aligned(guarded, x, label, wrong)
    return Searched(len(places), lead, bool(len(wrong)), broken, least)


def lines(count: int, most: int, few: bool, device: str) -> Iterator[str]:
    """The lines of the page."""
    about = provenance(1)
    date, *rest = (str(about[name]) for name in ("date", "commit", "machine", "torch"))
    guarded = load(MODEL)
    assert isinstance(guarded, Detected) and guarded.withheld is not None
    guarded.to(torch.device(device))
    data = besiege.data.load("mnist")
    data = data.take(~torch.isin(data.ids, torch.tensor(guarded.withheld.ids)))
    data = data.take(torch.arange(count))
    if few:
        data = data.take(within(data.images).flatten(1).sum(1) <= most)
    bound = guarded.calibration.threshold
    found: list[Searched] = []
    with guarded.held():
        for image, label in zip(data.images.to(device), data.labels.tolist(), strict=True):
            if int(guarded(image[None]).argmax(1)) != label:
                continue
            found.append(look(guarded, image, label, most))
            print(len(found), found[-1], file=sys.stderr, flush=True)
    known = [one for one in found if one.least is not None]
    safe = sum(one.least > bound for one in known if one.least is not None)
    alike = sum(abs(one.lead - one.least) < 1e-3 for one in known if one.least is not None)
    pixels = sorted(one.pixels for one in found)
    rate = Rate.of
    options = f"--count {count} --most {most}{' --few' if few else ''}"
    yield "Measured {}, commit {}, {}, torch {}.".format(date[:10], *rest)
    yield f"{len(found)} images (`{options}`) that are classified correctly and accepted;"
    yield f"{pixels[0]} to {pixels[-1]} of 784 bits within reach, in the median"
    yield f"{pixels[len(pixels) // 2]}. 95 % intervals in brackets."
    yield ""
    yield "| | images |"
    yield "|---|---|"
    misled = sum(one.misled for one in found)
    broken = sum(one.broken for one in found)
    yield f"| a misclassified one-bit image was found | {rate(misled, len(found))} |"
    yield f"| an image was made misclassified and accepted | {rate(broken, len(found))} |"
    if not known:
        return
    yield f"| all one-bit images enumerated (at most {most} bits) | {len(known)} |"
    yield f"| no attack can succeed on | {safe} |"
    yield f"| the search had found the smallest lead of | {alike} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="images, first of the test set")
    parser.add_argument("--most", type=int, default=18, help="enumerate up to so many bits")
    parser.add_argument("--few", action="store_true", help="only images with at most so many")
    parser.add_argument("--device", default="cpu", choices=AT_ONCE)
    parser.add_argument("--into", type=Path, help="page to write the table into")
    given = parser.parse_args()
    torch.set_num_threads(1)
    told = list(lines(given.count, given.most, given.few, given.device))
    print("\n".join(told))
    if given.into is not None:
        put(given.into, told, MARK)
