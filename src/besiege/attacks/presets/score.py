"""Published forms of attacks that see scores, and of NES that sees labels."""

from __future__ import annotations

from besiege.core.presets import Check, Preset, publish

_SENT = "the iterate is sent and paid for at every step, and any image sent may be the success"
_INSIDE = (
    "the code sends probes as they are drawn; here they are clipped to the box, and slopes "
    "are multiplied by the difference really sent, which decides at most 1 of 48 digits; "
    f"{_SENT}"
)
_BLIND = (
    f"{_INSIDE}; where no probe shows a difference, the code enlarges them and asks again at "
    "once, here at the next step, and they do not shrink again"
)
_PRIOR = (
    f"{_BLIND}; where the box stops a step along the prior, that pixel value of the prior is zero"
)
_MEMBERS = (
    "a member that succeeds ends the attack, in the original only the mean of all does (708 "
    "instead of 748 queries on 10 digits); the hinge of the original, at zero, only matters "
    "after that; the mean is sent and paid for at every step"
)
_TILES = (
    "the code sends probes as they are drawn; here they are clipped to the box (44 instead of"
    f" 46 of 48 digits broken in l2, 8 instead of 9 in linf); {_SENT}"
)
_HIDDEN = (
    "the code sends probes as they are drawn, here they are clipped to the box; a probe that "
    "lacks the target is compared with the iterate where the other end of its pair has it, "
    "the code uses the loss of that end only (on 8 digits of two networks these two end {}); any "
    "image sent within the budget counts; the start is the nearest image given of the target class"
)
_EDGE = "windows of the code never reach the last row and column, those of the paper do"
_REDRAWN = (
    f"{_EDGE}; on colour images a proposal that changes nothing is replaced by one that "
    "changes all channels in 2 of 8 cases instead of 1 of 7; towards a target the original "
    "uses cross-entropy"
)
_EMPTIED = (
    f"{_EDGE}; perturbations are shorter than the budget by what float32 may add; the code moves "
    "the perturbation of one window into another, which leaves the first with none, here with "
    "that small remainder, so that a window drawn there later starts from the remainder: 20 of "
    "48 digits are broken after 300 queries in both; towards a target the original uses "
    "cross-entropy"
)
_EACH = (
    "windows and signs are drawn for each image, in the code for the whole batch, which is the "
    "same for every image by itself"
)
_REACHED = (
    f"{_EACH}; {_EDGE}: on 8 x 8 digits 90 of 198 withstand 1000 queries of the code "
    "(square@croce-code), and 72 withstand this"
)


def _queries(many: str, steps: str = "steps are enough for it") -> str:
    """The limit is no part of an attack."""
    return f"the limit of {many} queries is given with --queries {many.replace(',', '')}: {steps}"


def _check(steps: int, more: str = "", *, equal: int = 48, rows: int = 48) -> Check:
    """A short run on networks in float64."""
    about = ", ".join((*filter(None, [more]), f"{steps} steps, in float64"))
    return Check("independent", equal, rows, about=about)


_LARGE = "images of 104 x 104"
_REALSAFE = ("linf", "l2", "linf targeted:random", "l2 targeted:random")
"""Its curves over the budget: the smallest budget of every image is searched."""
_LINF = ("linf", "linf targeted:random")
_FIXED = tuple(
    f"{budget}{goal}"
    for goal in ("", " targeted:random")
    for budget in ("linf:8/255", "l2:1.0", "linf:16/255", "l2:12.27")
)
"""Its curves over queries: the budgets of CIFAR-10, then of ImageNet; in l2 the square root of
0.001 d, here for images of 224 x 224."""

publish(
    Preset(
        "nes@ilyas",
        "steps=20000, pairs=25, sigma=0.001, rate=0.2, loss=cross_entropy(stable=False), "
        "floor=0.005, window=5, momentum=0.9, watch='probes', exact=False",
        "Ilyas et al. 2018, query-limited: 25 pairs, steps of 0.01 halved on plateaus down to "
        "5e-5, a momentum of 0.9 and cross-entropy, up to a million queries",
        threats=("linf:0.05 targeted:random", "linf:0.05"),
        default="the margin instead of cross-entropy, 20 pairs, longer plateaus, steps not below a "
        "tenth of the first, less momentum",
        differs=f"{_INSIDE}; {_queries('1,000,000')}",
        checks=(_check(16, "targeted"),),
    ),
    Preset(
        "nes@realsafe",
        "steps=100, pairs=100, sigma=0.001, rate=0.15, loss=margin, floor=1.0, window=20, "
        "momentum=0, watch='probes', exact=False",
        "Dong et al. 2020 (RealSafe), as printed: q = 100 pairs a step, the margin, steps of BIM, "
        "up to 20,000 queries",
        threats=_REALSAFE,
        differs=f"{_INSIDE}; {_queries('20,000')}",
        checks=(_check(4, "linf"), _check(4, "l2")),
    ),
    Preset(
        "nes@realsafe-code",
        "steps=200, pairs=50, sigma=0.001, rate=0.15, loss=margin, floor=0.1, window=20, "
        "momentum=0, watch='probes', exact=False",
        "Dong et al. 2020 (RealSafe), as coded: 50 pairs a step, steps of 0.15 of the budget, "
        "halved on plateaus of 20 down to a tenth, up to 20,000 queries",
        threats=_REALSAFE,
        differs=f"{_INSIDE}; {_queries('20,000')}",
        checks=(_check(24, "linf"),),
    ),
    Preset(
        "nes@realsafe-strength",
        "steps=40, pairs=250, sigma=0.001, rate=0.15, loss=margin, floor=0.1, window=20, "
        "momentum=0, watch='probes', exact=False",
        "Dong et al. 2020 (RealSafe), its script for curves over queries: 250 pairs a step",
        threats=_FIXED,
        differs=f"{_INSIDE}; the rate of that script is not published: 0.15, as in "
        f"nes@realsafe-code, is assumed; {_queries('20,000')}",
        checks=(_check(3, "linf"),),
    ),
    Preset(
        "spsa@uesato",
        "steps=100, pairs=1024, sigma=0.01, rate=0.31875, loss=margin, by='adam', exact=False",
        "Uesato et al. 2018, CIFAR-10: 100 steps of Adam at rate 0.01 on the margin, probes of "
        "0.01, batches of 2048 (the smallest of its strong settings)",
        threats=("linf:8/255",),
        default="20 pairs instead of 1024 a step, and probes of 0.001",
        differs=_INSIDE,
        checks=(_check(2),),
    ),
    Preset(
        "spsa@realsafe",
        "steps=100, pairs=100, sigma=0.001, rate=0.15, loss=margin, by='sign', floor=1.0, "
        "exact=False",
        "Dong et al. 2020 (RealSafe), as printed: as NES, with random signs",
        threats=_REALSAFE,
        differs=f"{_INSIDE}; {_queries('20,000')}",
        checks=(_check(4, "linf"),),
    ),
    Preset(
        "spsa@realsafe-code",
        "steps=200, pairs=50, sigma=0.001, rate=0.3, loss=margin, by='adam', exact=False",
        "Dong et al. 2020 (RealSafe), as coded: 50 pairs a step, Adam at 0.3 of the budget",
        threats=_LINF,
        differs=f"{_INSIDE}; {_queries('20,000')}",
        checks=(_check(4),),
    ),
    Preset(
        "spsa@realsafe-code-l2",
        "steps=200, pairs=50, sigma=0.001, rate=0.27713, loss=margin, by='adam', exact=False",
        "Dong et al. 2020 (RealSafe), as coded for l2: Adam at 0.005 a pixel value, which on "
        "CIFAR-10 is 0.27713 of the budget of 1",
        threats=("l2:1.0", "l2:1.0 targeted:random"),
        differs=f"{_INSIDE}; {_queries('20,000')}",
        checks=(_check(4),),
    ),
    *(
        Preset(
            f"spsa@realsafe-strength{form}",
            f"steps=40, pairs=250, sigma=0.001, rate={rate}, loss=margin, by='adam', exact=False",
            f"Dong et al. 2020 (RealSafe), its script for curves over queries on {data}: 250 pairs "
            f"a step, Adam at {how}",
            threats=(threat, f"{threat} targeted:random"),
            differs=f"{_INSIDE}; {_queries('20,000')}",
            checks=(_check(3),),
        )
        for form, rate, data, threat, how in (
            ("", "0.125", "CIFAR-10", "linf:8/255", "1/255 for a budget of 8/255"),
            (
                *("-l2", "0.27713", "CIFAR-10", "l2:1.0"),
                "0.005 a pixel value, which is 0.27713 of the budget of 1",
            ),
            ("-imagenet", "0.0625", "ImageNet", "linf:16/255", "1/255 for a budget of 16/255"),
            (
                *("-imagenet-l2", "0.15811", "ImageNet", "l2:12.27"),
                "0.005 a pixel value, which is 0.15811 of the budget of sqrt(0.001 d)",
            ),
        )
    ),
    Preset(
        "rgf@cheng",
        "steps=200, probes=50, sigma=0.0001, rate=0.1, loss=cross_entropy(stable=False), "
        "floor=1.0, window=20, low=None, grow=True, exact=False",
        "Cheng et al. 2019, ImageNet in linf: 50 directions a step, steps of 0.005, cross-entropy, "
        "10,000 queries",
        threats=("linf:0.05",),
        default="the margin instead of cross-entropy, larger probes and steps, halved on plateaus",
        differs=f"{_BLIND}; {_queries('10,000')}",
        checks=(_check(12),),
    ),
    Preset(
        "rgf@cheng-l2",
        "steps=200, probes=50, sigma=0.0001, rate=0.12212, loss=cross_entropy(stable=False), "
        "floor=1.0, window=20, low=None, grow=True, exact=False",
        "Cheng et al. 2019, ImageNet in l2: steps of length 2 for a budget of 16.377, which is "
        "sqrt(0.001 d) for 299 x 299 images",
        threats=("l2:16.377",),
        differs=f"{_BLIND}; {_queries('10,000')}",
        checks=(_check(12, equal=45),),
    ),
    Preset(
        "prgf@cheng",
        "steps=5000, probes=50, sigma=0.0001, rate=0.1, loss=cross_entropy(stable=False), "
        "floor=1.0, window=20, biased=True, low=None, gamma=None, exact=False",
        "Cheng et al. 2019, ImageNet in linf: RGF with directions that lean towards a substitute's "
        "gradient, by the best weight for its measured cosine",
        threats=("linf:0.05",),
        default="probes orthogonal to the prior, which is added with its measured slope, and the "
        "margin",
        differs=f"{_PRIOR}; {_queries('10,000', 'a step costs 2 to 62 of them')}",
        checks=(_check(12),),
    ),
    Preset(
        "prgf@cheng-l2",
        "steps=5000, probes=50, sigma=0.0001, rate=0.12212, loss=cross_entropy(stable=False), "
        "floor=1.0, window=20, biased=True, low=None, gamma=None, exact=False",
        "Cheng et al. 2019, ImageNet in l2: steps of length 2 for a budget of 16.377",
        threats=("l2:16.377",),
        differs=f"{_PRIOR}; {_queries('10,000', 'a step costs 2 to 62 of them')}",
        checks=(_check(12, equal=47),),
    ),
    Preset(
        "prgf@cheng-data",
        "steps=5000, probes=50, sigma=0.0001, rate=0.12212, loss=cross_entropy(stable=False), "
        "floor=1.0, window=20, biased=True, low=50, gamma=3.5, exact=False",
        "Cheng et al. 2019, ImageNet in l2 with the data-dependent prior: directions drawn on "
        "50 x 50 tiles, which are taken to hold 3.5 times their share of the gradient",
        threats=("l2:16.377",),
        differs=f"{_PRIOR}; {_queries('10,000', 'a step costs 2 to 62 of them')}",
        checks=(_check(5, _LARGE, equal=47),),
    ),
    Preset(
        "nattack@li",
        "steps=500, population=300, sigma=0.1, rate=0.02, side=32, tanh=True, loss=margin",
        "Li et al. 2019: 300 members a step, at most 500 steps; CIFAR-10",
        threats=("linf:0.031",),
        default="members are added to the image, not before a tanh; 50 a step and a larger rate",
        differs=_MEMBERS,
        checks=(_check(4),),
    ),
    Preset(
        "nattack@realsafe",
        "steps=200, population=100, sigma=0.1, rate=0.02, side=32, tanh=True, loss=margin",
        "Dong et al. 2020 (RealSafe): 100 members a step, up to 20,000 queries",
        threats=_REALSAFE,
        differs=f"{_MEMBERS}; {_queries('20,000')}",
        checks=(_check(8, "linf"), _check(8, "l2")),
    ),
    Preset(
        "bandits@ilyas",
        "steps=5000, tile=50, probe=0.1, explore=1.0, learn=100.0, rate=0.2, "
        "loss=cross_entropy(stable=False), relative=False, exact=False",
        "Ilyas et al. 2019, ImageNet in linf: exponentiated gradients at rate 100, steps of 0.01, "
        "10,000 queries",
        threats=("linf:0.05",),
        default="differences are divided by their usual size, so that the rate suits any victim; "
        "the margin; tiles by the size of the image",
        differs=f"{_TILES}; {_queries('10,000')}",
        checks=(_check(10, _LARGE, equal=45),),
    ),
    Preset(
        "bandits@ilyas-l2",
        "steps=5000, tile=50, probe=0.01, explore=0.01, learn=0.1, rate=0.1, "
        "loss=cross_entropy(stable=False), relative=False, exact=False",
        "Ilyas et al. 2019, ImageNet in l2: gradient steps of the prior at rate 0.1, steps of "
        "length 0.5, 10,000 queries",
        threats=("l2:5.0",),
        differs=f"{_TILES}; {_queries('10,000')}",
        checks=(_check(10, _LARGE, equal=45),),
    ),
    Preset(
        "nes_partial@ilyas",
        "steps=10000, pairs=50, sigma=0.00001, rate=0.2, momentum=0.9, waits=True, "
        "loss=cross_entropy(stable=False)",
        "Ilyas et al. 2018, partial information: from an image of the target class, 50 pairs a "
        "step, the ball shrinks where the target is likely",
        threats=("linf:0.05 targeted:random",),
        default="the ball shrinks at every step, by a fraction of its radius; the margin",
        differs=_HIDDEN.format("0.7 % nearer after 60 steps"),
        checks=(_check(30, "8 images each", equal=16, rows=16),),
    ),
    Preset(
        "nes_labels@ilyas",
        "steps=10000, pairs=50, sigma=0.001, rate=0.2, momentum=0.9, waits=True, around=50, "
        "mu=0.001",
        "Ilyas et al. 2018, label-only: the same with the rate of target labels among 50 images "
        "around a point for its score",
        threats=("linf:0.05 targeted:random",),
        default="the ball shrinks at every step; one image for a score, ten times as far",
        differs=_HIDDEN.format("at the same distance after 8 steps"),
        checks=(_check(2, "8 images each", equal=16, rows=16),),
    ),
    Preset(
        "square@andriushchenko",
        "steps=10000, p_init=0.05, restarts=1, rescale=True, loss=margin, redraw=True, edge=True, "
        "compat=True",
        "Andriushchenko et al. 2020, ImageNet in linf: windows of 5 % of the image at first, "
        "10,000 queries",
        threats=("linf:0.05",),
        default="as in AutoAttack: 5000 queries, windows of 80 % at first, a schedule that is not "
        "rescaled; in l2 and l1 what the box takes is spent elsewhere",
        differs=_REDRAWN,
        checks=(_check(60),),
    ),
    Preset(
        "square@andriushchenko-l2",
        "steps=10000, p_init=0.1, restarts=1, rescale=True, loss=margin, redraw=True, edge=True, "
        "compat=True",
        "Andriushchenko et al. 2020, ImageNet in l2: windows of 10 % of the image at first, "
        "10,000 queries",
        threats=("l2:5.0",),
        differs=_EMPTIED,
        checks=(Check("pyautoattack", 38, about="images of 16 x 16, 50 steps, in float64"),),
    ),
    Preset(
        "square@croce",
        "steps=5000, p_init=0.8, restarts=1, rescale=False, loss=margin, redraw=False, edge=True, "
        "compat=True",
        "Croce and Hein 2020 (AutoAttack; l1: 2021): windows of 80 % of the image at first, 5000 "
        "queries, a schedule that is not rescaled",
        threats=("linf", "l2", "l1"),
        differs=_REACHED,
        checks=(
            Check("pyautoattack", 48, about="linf, 50 steps, in float64"),
            Check("pyautoattack", 48, about="l2, images of 16 x 16, 50 steps, in float64"),
            Check("pyautoattack", 48, about="l1, images of 16 x 16, 50 steps, in float64"),
        ),
    ),
    Preset(
        "square@croce-code",
        "steps=5000, p_init=0.8, restarts=1, rescale=False, loss=margin, redraw=False, edge=False, "
        "compat=True",
        "Croce and Hein 2020 (AutoAttack), as coded: windows never reach the last row and column",
        threats=("linf", "l2", "l1"),
        differs=_EACH,
        checks=(Check("pyautoattack", 48, about="50 steps, in float64"),),
    ),
)
