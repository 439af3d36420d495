"""Published forms of attacks that look for the smallest perturbation without a weight.

Where a method ends at the boundary itself, float32 rounding decides its last digits. Its check is
then made in float64, for both sides.
"""

from __future__ import annotations

from besiege.core.presets import Check, Preset, publish

_CLIPPED = (
    "The authors' code never clips to the box, and its images lie outside it. Here every point is "
    "clipped, as in foolbox; the sum of the steps is not. On 24 digits of a natural and of a "
    "PGD-trained network, where half of the pixels are saturated, the mean distance is 0.468 "
    "instead of 0.465 and 0.808 instead of 0.837, and of the authors' images only 1 and 11 are "
    "still misclassified once clipped."
)

publish(
    Preset(
        "deepfool@moosavi",
        "steps=50, overshoot=0.02, classes=10, search=0, boxed=False, compat=True",
        "Moosavi-Dezfooli et al. 2016, authors' code: at most 50 steps, overshoot 0.02, the 10 "
        "likeliest classes, every step 1e-4 longer",
        threats=("l2",),
        also=("linf",),
        default="steps stay in the box, are not 1e-4 longer, and a search removes the overshoot",
        differs=_CLIPPED,
        checks=(Check("foolbox", 48, about="l2"), Check("foolbox", 48, about="linf")),
    ),
    Preset(
        "deepfool@realsafe",
        "steps=100, overshoot=0.02, classes=10, search=0, boxed=False, compat=True",
        "Dong et al. 2020 (RealSafe): at most 100 steps, until the class changes",
        threats=("linf", "l2"),
        differs="Its code divides linf steps by the l2 norm of the gradient instead of the l1 "
        "norm, which makes them longer, by up to the square root of the number of pixel values: "
        "on 24 digits of two networks it ends at a mean of 0.459 instead of 0.092 and 0.760 "
        "instead of 0.206. This is the paper's method. The 1e-4 and the clipping are as in "
        "deepfool@moosavi.",
        checks=(Check("foolbox", 48, about="linf"), Check("foolbox", 48, about="l2")),
    ),
    Preset(
        "deepfool@deepsec",
        "steps=50, overshoot=0.02, classes=10, search=0, boxed=False, compat=True",
        "Ling et al. 2019 (DEEPSEC), MNIST and CIFAR-10: at most 50 steps, overshoot 0.02",
        threats=("l2",),
        differs="Its code steps once more after the crossing: on 24 digits of a natural and of a "
        "PGD-trained network it ends at a mean of 0.4684 instead of 0.4677 and 0.825 instead of "
        "0.808. Points are clipped to the box, as in its code.",
        checks=(Check("foolbox", 48, about="l2"),),
    ),
    Preset(
        "superdeepfool@abdollahpour",
        "rounds=100, stop=True, steps=100, overshoot=0.02, classes=10, search=10, compat=True",
        "Abdollahpour et al. 2023, authors' code: DeepFool to the end, then one step along the "
        "normal there, at most 100 times, and 10 halvings at the end",
        threats=("l2",),
        default="rounds use one class, continue after a success and step from the clean image, not "
        "from the last point; DeepFool's own points count",
        differs="The authors' code never clips to the box: on 24 digits of two networks its mean "
        "distances are 0.426 and 0.671 instead of 0.458 and 0.675, and none of its images is "
        "misclassified once clipped. Here every step is clipped, as in adv-lib. The paper's "
        "formula steps from the clean image in every round, which ends at the boundary (0.392 and "
        "0.645, 0 and 6 of 24 beyond it); the code adds the steps up, and this is the code.",
        checks=(Check("adv_lib", 47), Check("adv_lib", 48, about="in float64")),
    ),
    Preset(
        "ddn@rony",
        "steps=100, start=origin, loss=cross_entropy(stable=False), direction=unit, "
        "schedule=falling(1.0, 0.01), radius=decoupled(0.05, first=1.0, gallop=False), "
        "place=sphere, aim='goal', counts='earlier'",
        "Rony et al. 2019: cross-entropy, radius 1 at first and changed by 5 % in every step, step "
        "sizes from 1 to 0.01; 100 steps, or 300 and 1000",
        threats=("l2",),
        default="margins instead of cross-entropy, and a radius that changes fast at first and "
        "slowly at the end",
        differs="The authors also round every point to 256 levels, which ends 0.1 % farther on "
        "digits; here that is a property of the victim (its grid), not of the attack.",
        checks=(Check("adv_lib", 48), Check("foolbox", 48)),
    ),
    Preset(
        "fmn@pintor",
        "steps=100, start=origin, loss=margin, direction=unit, schedule=falling(1.0, 0.01), "
        "radius=bracketing(0.05, 0.001, compat=True), place=clipped, aim='goal', counts='earlier'",
        "Pintor et al. 2021: margin, step sizes from 1 to 0.01, radius changed by 5 % at first and "
        "0.1 % at the end",
        threats=("linf", "l2", "l1", "l0"),
        default="the radius also grows before the first success: with the published rule a row may "
        "never cross the boundary (22 of 24 digits of a natural network in l2)",
        differs="In l2 the paper's projection onto the ball: the foolbox version never projects, "
        "adv-lib's rescales. A success must lead by more than float32 rounds, which ends up to "
        "0.1 % farther: in float32 27 (linf) and 29 (l1) of 48 rows equal adv-lib's. The authors "
        "also tuned the first step size for each norm.",
        checks=(
            Check("independent", 48, about="l2, in float64"),
            Check("adv_lib", 48, about="linf, in float64"),
            Check("adv_lib", 47, about="l1, in float64"),
            Check("adv_lib", 48, about="l0"),
        ),
    ),
    Preset(
        "fab@croce",
        "steps=100, restarts=1, alpha_max=0.1, eta=1.05, beta=0.9, anneal=False, search=0, "
        "compat=True",
        "Croce and Hein 2020 (FAB), as in AutoAttack: 100 steps from the clean image, alpha_max "
        "0.1, eta 1.05, beta 0.9, no final search",
        threats=("linf", "l2", "l1"),
        default="one forward pass fewer in every step, shrinking strong at first and then none, "
        "another choice of the class in the first steps, and a final search",
        differs="The code takes gradients below 1e-8 for zero; here they are used. A success must "
        "lead by more than float32 rounds: in float32 46 (linf), 42 (l2) and 42 (l1) of 48 rows "
        "are equal, and mean distances to 0.2 %.",
        checks=(
            Check("pyautoattack", 48, about="linf, in float64"),
            Check("pyautoattack", 48, about="l2, in float64"),
            Check("pyautoattack", 47, about="l1, in float64"),
        ),
    ),
    Preset(
        "fabt@croce",
        "steps=100, restarts=1, alpha_max=0.1, eta=1.05, beta=0.9, anneal=False, search=0, "
        "compat=True, targets=9, together=4",
        "Croce and Hein 2020 (AutoAttack): FAB-T, 100 steps for each of the 9 likeliest classes",
        threats=("linf", "l2", "l1"),
        default="as fab: one forward pass fewer in every step, annealed shrinking, a final search",
        differs="As fab@croce; in float32 48 (linf), 41 (l2) and 43 (l1) of 48 rows are equal. "
        "With a budget a row ends at its first success within it, not after the run.",
        checks=(
            Check("pyautoattack", 48, about="linf"),
            Check("pyautoattack", 48, about="linf, in float64"),
            Check("pyautoattack", 48, about="l2, in float64"),
            Check("pyautoattack", 47, about="l1, in float64"),
            Check("pyautoattack", 48, about="broken at half of the distances, linf"),
            Check("pyautoattack", 48, about="broken at half of the distances, l2"),
        ),
    ),
)


_GROWN = {
    100: "after 100 steps adv-lib's own l2 result differs in 14 of 48 rows if images differ by "
    "1e-13. Mean distances in float32 are equal to 0.1 %.",
    1000: "on a PGD-trained network adv-lib's own mean in l1 is 1.118 in float32 and 1.180 in "
    "float64, and this one's 1.186 and 1.180; in l2 means are equal to 1 %.",
}


def _alma(name: str, steps: int, decay: float, first: float, check: Check, default: str) -> Preset:
    """A form of ALMA: the paper has one for each norm and number of steps."""
    norm = name[:2]
    return Preset(
        f"alma@rony-{name}",
        f"steps={steps}, decay={decay}, first={first}, reduction=0.01, mu=1.0, rho=1.0, "
        "relative=False, compat=True",
        f"Rony et al. 2021 (ALMA {norm}): {steps} steps, decay {decay}, first step {first} long",
        threats=(norm,),
        free=(),  # other numbers of steps have another decay
        default=default,
        differs="Points that are misclassified by less than the tolerance of 1e-4 count as "
        "successes, up to 0.02 % nearer. Steps are nearly signs of gradients, so that rounding "
        f"grows, and long runs differ in most rows: {_GROWN[steps]}",
        checks=(check,),
    )


_UNITS = "every row has its own units of distance and ratio, and decays are 0.8 (l2) and 0.5 (l1)"
publish(
    _alma("l2", 100, 0.5, 0.1, Check("adv_lib", 48, about="20 steps, in float64"), _UNITS),
    _alma("l1", 100, 0.5, 0.5, Check("adv_lib", 47, about="30 steps, in float64"), ""),
    _alma("l2-1000", 1000, 0.9, 0.1, Check("adv_lib", 48, about="100 steps, in float64"), ""),
    _alma("l1-1000", 1000, 0.9, 0.5, Check("adv_lib", 48, about="100 steps, in float64"), ""),
    Preset(
        "sigmazero@cina",
        "steps=1000, rate=1.0, sigma=0.001, threshold=0.3, end=0.1, pace=0.01, compat=True",
        "Cinà et al. 2025: 1000 steps of Adam, rate 1 falling to 0.1, sigma 1e-3, first threshold "
        "0.3, changed by 0.01 of the rate",
        threats=("l0",),
        default="the hinge is measured in units of the clean image's gradient, and runs of at most "
        "300 steps use a smoother count",
        differs="A success must lead by more than float32 rounds. In float32 rounding moves pixel "
        "values by 1e-4 or so: after 100 steps 20 of 48 rows are equal to 1e-5, and all in the "
        "number of pixel values.",
        checks=(
            Check("adv_lib", 48, about="100 steps, in float64"),
            Check("adv_lib", 48, about="number of pixel values, 100 steps"),
        ),
    ),
    Preset(
        "jsma@papernot",
        "theta=1.0, gamma=0.145, both=False, room=False, outputs='logits', targets=9",
        "Papernot et al. 2016: pairs of pixel values raised to the bound, 14.5 % of them at most",
        threats=("l0 targeted:random",),
        default="pixel values move either way, gradients are weighed by the room of each, and half "
        "of the pixel values may differ",
        differs="The paper does not say plainly whether the map is of logits or of probabilities; "
        "this is of logits. With probabilities 47 instead of 38 of 48 digits reach their target, "
        "with 3.1 instead of 4.4 pixel values.",
        checks=(Check("independent", 48, about="towards the likeliest wrong class"),),
    ),
    Preset(
        "jsma@deepsec",
        "theta=1.0, gamma=0.1, both=False, room=False, outputs='logits', targets=9, round_up=True",
        "Ling et al. 2019 (DEEPSEC), MNIST and CIFAR-10: theta 1, 10 % of the pixel values",
        threats=("l0 targeted:random",),
        differs="Where no pair raises the target and lowers the others, its code moves pixel value "
        "0 instead of stopping; here the attack stops. Its code never moves pixel values from 0.99 "
        "on, here those below 1 may move (0 of 48 digits differ).",
        checks=(Check("independent", 48, about="towards the likeliest wrong class"),),
    ),
)
