"""Published forms of attacks that see labels.

All are compared with short implementations of one image each, which are given the same random
numbers and the same start. Answers that rounding could change count as not adversarial in both.
"""

from __future__ import annotations

from besiege.core.presets import Check, Preset, publish


def _sent(queries: int, norm: str, equal: int = 48) -> Check:
    about = f"the first {queries} queried images, {norm}, in float64"
    return Check("independent", equal, about=about)


_START = "where ten noise images all keep the class, the start is another image (0 of 48 rows)"
_LINE = (
    "images are clipped to the box, which the authors' code leaves: after 2500 queries the median "
    "distance is {}; distances are searched up to twice the first one instead of up to 20; where "
    "no Gaussian direction is adversarial, the start is another image"
)

_LIMIT = "the limit of {} queries is given with --queries {}: steps are enough for it"
_20000 = _LIMIT.format("20,000", 20000)
_REALSAFE = ("l2", "l2 targeted:random")

publish(
    Preset(
        "boundary@brendel",
        "steps=5000, sphere=0.01, toward=0.01, bisected=False",
        "Brendel et al. 2018: step sizes 0.01, adapted by 1.5, up to 25 directions a step",
        threats=("l2",),
        default=(
            "the start is bisected, and the step towards the image follows from the other one, "
            "which adapts to every answer; after 1000 queries the median distance is 3.7 and 4.4 "
            "times smaller on two networks of digits, 7.5 times on a ResNet-20"
        ),
        differs=f"step sizes are at most the distance; {_START}",
        checks=(_sent(1000, "l2"),),
    ),
    Preset(
        "boundary@realsafe",
        "steps=20000, sphere=0.01, toward=0.01, bisected=False",
        "Dong et al. 2020 (RealSafe): the settings of Brendel et al., up to 20,000 queries",
        threats=_REALSAFE,
        differs=(
            f"the start is a query of its image and is not shared by a class; step sizes are at "
            f"most the distance; a step costs up to 26 queries: {_20000}; {_START}"
        ),
        checks=(_sent(50, "l2"),),
    ),
    Preset(
        "evolutionary@dong",
        "steps=20000, mu=0.01, sigma=0.01, side=45, window=30, bisected=False, stratified=False",
        "Dong et al. 2019: mutations of 45 x 45 pixels, a random step of 0.01 of the distance",
        threats=("l2",),
        default=(
            "the start is bisected, the random step follows from mu, which adapts every 5 "
            "queries, and coordinates are drawn evenly; after 1000 queries 2.3 times nearer"
        ),
        differs=(
            f"mu is at most 0.9; the paper adapts mu after several queries, this after 30, as its "
            f"authors' later code; {_START}"
        ),
        checks=(_sent(200, "l2"),),
    ),
    Preset(
        "evolutionary@realsafe",
        "steps=20000, mu=0.01, sigma=0.03, shrink=1, window=30, bisected=False, stratified=False",
        "Dong et al. 2020 (RealSafe): mu 0.01, sigma 0.03, full resolution, up to 20,000 queries",
        threats=_REALSAFE,
        differs=(
            f"the start is a query of its image and is not shared by a class; mu is at most 0.9; "
            f"{_20000}; {_START}"
        ),
        checks=(_sent(200, "l2"),),
    ),
    Preset(
        "hopskipjump@chen",
        "steps=40, probes=100, probe=None, compat=True",
        "Chen et al. 2020: 40 steps, 100 probes in the first, gamma 1, geometric step sizes",
        threats=("l2", "linf"),
        default=(
            "half as many probes, of a tenth of the distance, coarser bisection, soft signs in "
            "linf, and a point is replaced only by a nearer one"
        ),
        differs=_START,
        checks=(_sent(1000, "l2", 47), _sent(1000, "linf")),
    ),
    Preset(
        "rays@chen",
        "steps=10000, tolerance=0.001, compat=True",
        "Chen and Gu 2020: radii to 0.001 as l2 distances, up to 10,000 queries",
        threats=("linf",),
        default=(
            "the radius is searched downwards from the best one instead of bisected from zero, "
            "to a tolerance that is halved with the size of the blocks, and after the smallest "
            "blocks the search begins again with the whole image"
        ),
        checks=(_sent(500, "linf"),),
    ),
    Preset(
        "opt@cheng",
        "steps=1000, probes=10, beta=0.001, tries=100, alpha=0.2, compat=True",
        "Cheng et al. 2019, their code: 10 directions a step, distances to beta / 500",
        threats=("l2",),
        default=(
            "longer probes, distances only as precise as their differences, and a search for the "
            "angle of the step; after 1000 queries 1.4 times nearer"
        ),
        differs=_LINE.format("7 % larger on one network and 5 % smaller on the other"),
        checks=(
            Check("independent", 48, about="sizes of all queried images, one step, in float64"),
        ),
    ),
    Preset(
        "signopt@cheng",
        "steps=1000, votes=200, beta=0.001, tries=100, momentum=0.0, alpha=0.2, compat=True",
        "Cheng et al. 2020: 200 votes a step, distances to beta / 500",
        threats=("l2", "linf"),
        default=(
            "longer probes, centred votes, momentum, fewer first directions, and a search for the "
            "angle of the step; after 1000 queries 1.04 to 1.13 times nearer in l2"
        ),
        differs=_LINE.format("1 and 8 % larger on two networks in l2, 4 and 28 % in linf"),
        checks=(_sent(700, "l2"), _sent(700, "linf")),
    ),
    Preset(
        "geoda@rahmati",
        "steps=9, probes=75, growth=1.407, side=75, probe=4.5e-5, compat=True",
        "Rahmati et al. 2020, ImageNet: 4000 queries in 9 steps, 75 x 75 cosines",
        threats=("l2", "linf"),
        default=(
            "votes are centred, probes a tenth of the distance, and the point is replaced only by "
            "a nearer one; after 1000 queries 1.02 to 1.08 times nearer"
        ),
        differs=(
            "images are clipped to the box, which the authors' code leaves for probes: after 4000 "
            "queries the median distance is 1 and 7 % larger on two networks in l2, 6 and 23 % in "
            "linf; lengths are of pixel values, not of normalised ones; a step out has the l2 "
            "length 1.125 in both norms; the start is found by other noise; not for l1"
        ),
        checks=(_sent(300, "l2", 47), _sent(300, "linf")),
    ),
)
