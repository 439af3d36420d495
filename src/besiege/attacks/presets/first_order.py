"""Published forms of attacks that ascend a loss: FGSM, BIM, PGD, MIM, DIM, TIM, SI-NI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from besiege.core.presets import FREE, Check, Preset, publish

ALL = 48


def _ascent(
    steps: int,
    schedule: str,
    *,
    start: str = "origin",
    direction: str = "unboxed",
    loss: str = "cross_entropy(stable=False)",
    aim: str = "goal",
) -> str:
    """All parameters of an ascent: a step along the gradient, the ball, and last the box."""
    return (
        f"steps={steps}, start={start}, loss={loss}, direction={direction}, schedule={schedule}, "
        f"radius=fixed, place=clipped, restarts=1, aim='{aim}', counts='last'"
    )


_MOMENTUM = "chain(momentum(1.0), unboxed)"
_DIVERSE = "chain(diverse(0.9, {}), momentum(1.0), unboxed)"
_SMOOTH = "chain(translation(15, 3.0), momentum(1.0), unboxed)"
_LEAST = "least-likely"
_ANY = ("linf", "l2", "linf targeted:random", "l2 targeted:random")
"""RealSafe's curves over the budget: the smallest budget of every image is searched."""
_L2 = ("l2",)
_ONE_STEP = tuple(name for name in FREE if name != "steps")
_SU = (
    *("linf:0.3", "linf:0.2", "linf:0.1"),
    *("linf:0.3 targeted:random", "linf:0.3 targeted:least-likely"),
)
_FOOLBOX = (Check("foolbox", ALL), Check("foolbox", ALL, about="l2"))
_OWN = (Check("independent", ALL), Check("independent", ALL, about="l2"))
_MIM = (Check("torchattacks", ALL), Check("independent", ALL, about="l2"))
_STABLE = "the gradient of cross-entropy does not vanish where the label's probability rounds to 1"
_START = "a success at the start counts too"
_EVERY = "every iterate counts, not only the last, and a row ends at its first success"
_FILLS = "in l2 steps fill the room that the box leaves"
_PIXELS = (
    "the step is always a sixteenth of the budget, which is 1/255 at 16/255 only, where the rule "
    "gives 20 steps; for another budget give steps by that rule"
)
_WITHIN = (
    "their code also counts a targeted logit within 0.001 of the largest as a success (none of 48 "
    "digits)"
)
_SIZES = (
    "sizes are drawn for every image and may be the full one, in its code one smaller size for a "
    "batch; on digits, where that is always 7 x 7 of 8 x 8, 10 steps at 0.15 break {} instead of "
    "10 of 48 on the substitute and {} on another network"
)
_MEASURED = {"1.0": ("21", "11 instead of 9"), "0.7": ("23", "10 instead of 8")}
_UP_TO_15 = "the number of steps is not printed, and its code has between 10 and 15: {} here"
_STRENGTH = tuple(
    (
        f"-strength{form}",
        100,
        f"constant({share})",
        f"up to 100 steps of {step}, as its code for curves over iterations on {data}",
        (threat, f"{threat} targeted:random"),
    )
    for form, share, step, data, threat in (
        ("", "1/8", "1/255 at 8/255", "CIFAR-10", "linf:8/255"),
        ("-l2", "0.15", "0.15 at an l2 budget of 1", "CIFAR-10", "l2:1"),
        ("-imagenet", "1/16", "1/255 at 16/255", "ImageNet", "linf:16/255"),
        ("-imagenet-l2", "0.15/12.27", "0.15 at an l2 budget of 12.27", "ImageNet", "l2:12.27"),
    )
)
"""RealSafe's curves over iterations; in l2 on ImageNet the budget is the square root of 0.001 d,
here for images of 224 x 224."""


_FEWER = {"bim-strength-imagenet-l2": 47}
"""Equal rows: in a hundred short steps rounding grows."""


def _compared(
    checks: tuple[Check, ...], threats: tuple[str, ...], equal: int = ALL
) -> tuple[Check, ...]:
    """The checks in the norms of some threats."""
    norms = {text.split()[0].partition(":")[0] for text in threats}
    some = (check for check in checks if (check.about or "linf") in norms)
    return tuple(replace(check, equal=equal) for check in some)


_HALVES = "half the budget along random signs, then half along those of the gradient"


def _deepsec(
    attack: str,
    how: str,
    checks: tuple[Check, ...],
    *,
    steps: int = 1,
    step: str = "1.0",
    aim: str = "goal",
    goals: str = "",
    differs: str = "",
    **given: str,
) -> Iterator[Preset]:
    """Both forms of DEEPSEC; of several steps, each is 0.05 of 0.3 or 0.01 of 0.1."""
    goal = " targeted:least-likely" if aim == _LEAST else ""
    for data, eps, length, share, larger in (
        ("MNIST", "0.3", "0.05", "1/6", "0.5"),
        ("CIFAR-10", "0.1", "0.01", "1/10", "0.2"),
    ):
        size = f"constant({step if steps == 1 else share})"
        threats = [f"linf:{eps}{goal}"]
        threats += [f"linf:{larger}"] * (attack == "fgsm") + [f"linf:{eps}{goals}"] * bool(goals)
        yield Preset(
            f"{attack}@deepsec-{data.lower().replace('-', '')}",
            _ascent(steps, size, aim=aim, **given),
            f"Ling et al. 2019 (DEEPSEC), {data}: {how.format(length)}",
            threats=tuple(threats),
            also=_L2 if any(check.about == "l2" for check in checks) else (),
            free=_ONE_STEP if steps == 1 else FREE,
            differs=differs,
            checks=checks,
        )


publish(
    Preset(
        "fgsm@goodfellow",
        _ascent(1, "constant(1.0)"),
        "Goodfellow et al. 2015: one step of the whole budget along the sign of the gradient",
        threats=("linf:0.25", "linf:0.1", "linf:0.007"),
        also=_L2,
        free=_ONE_STEP,
        default=f"{_STABLE}; in l2 the step fills the room that the box leaves; {_START}",
        checks=_FOOLBOX,
    ),
    Preset(
        "fgsm@realsafe",
        _ascent(1, "constant(1.0)"),
        "Dong et al. 2020 (RealSafe): one step of the whole budget, in l2 along the gradient",
        threats=_ANY,
        free=_ONE_STEP,
        checks=_FOOLBOX,
    ),
    Preset(
        "fgsm@su",
        _ascent(1, "constant(1.0)"),
        "Su et al. 2018, as printed: one step of the whole budget on the cross-entropy",
        threats=_SU,
        also=_L2,
        free=_ONE_STEP,
        checks=_FOOLBOX,
    ),
    Preset(
        "fgsm@su-code",
        _ascent(1, "constant(1.0)", loss="logit"),
        "Su et al. 2018, as the commands of their code: the loss is only the logit of the class",
        threats=_SU,
        also=_L2,
        free=_ONE_STEP,
        differs=_WITHIN,
        checks=(*_OWN, Check("independent", ALL, about="targeted")),
    ),
    *_deepsec("fgsm", "one step of the whole budget", _FOOLBOX),
    Preset(
        "rfgsm@tramer",
        _ascent(1, "constant(0.5)", start="signs(0.5)"),
        "Tramèr et al. 2018: half the budget along random signs, then half along the gradient's",
        threats=("linf:16/255", "linf:0.3"),
        free=_ONE_STEP,
        default=f"{_STABLE}; {_START}",
        checks=(Check("independent", ALL),),
    ),
    Preset(
        "llc@kurakin",
        _ascent(1, "constant(1.0)", aim=_LEAST),
        "Kurakin et al. 2017: one step of the whole budget towards the least likely class",
        threats=("linf:16/255 targeted:least-likely", "linf:16/255"),
        also=_L2,
        free=_ONE_STEP,
        default=f"{_STABLE}; in l2 the step fills the room that the box leaves; {_START}",
        checks=_FOOLBOX,
    ),
    Preset(
        "rllc@tramer",
        _ascent(1, "constant(0.5)", start="signs(0.5)", aim=_LEAST),
        "Tramèr et al. 2018: random signs of half the budget, then half towards the least likely",
        threats=("linf:16/255 targeted:least-likely", "linf:16/255"),
        free=_ONE_STEP,
        default=f"{_STABLE}; {_START}",
        checks=(Check("independent", ALL),),
    ),
    *_deepsec("rfgsm", _HALVES, (Check("independent", ALL),), step="0.5", start="signs(0.5)"),
    *_deepsec("llc", "one step towards the least likely class", _FOOLBOX, aim=_LEAST),
    *_deepsec(
        "rllc",
        f"{_HALVES}, towards the least likely class",
        (Check("independent", ALL),),
        step="0.5",
        start="signs(0.5)",
        aim=_LEAST,
    ),
    Preset(
        "bim@kurakin",
        _ascent(20, "constant(1/16)"),
        "Kurakin et al. 2017: steps of 1/255, min(eps + 4, 1.25 eps) of them in units of 1/255",
        threats=("linf:16/255",),
        also=_L2,
        default=f"steps of 0.15 of the budget; {_STABLE}; {_FILLS}; {_EVERY}",
        differs=_PIXELS,
        checks=_FOOLBOX,
    ),
    Preset(
        "illc@kurakin",
        _ascent(20, "constant(1/16)", aim=_LEAST),
        "Kurakin et al. 2017: steps of 1/255 towards the least likely class of the clean image",
        threats=("linf:16/255 targeted:least-likely", "linf:16/255"),
        also=_L2,
        default=f"steps of 0.15 of the budget; {_STABLE}; {_FILLS}; {_EVERY}",
        differs=_PIXELS,
        checks=_FOOLBOX,
    ),
    *(
        Preset(
            f"{name}@realsafe{form}",
            _ascent(steps, schedule, direction=direction),
            f"Dong et al. 2020 (RealSafe): {how}{more}",
            threats=threats,
            checks=_compared(checks, threats, _FEWER.get(f"{name}{form}", ALL)),
        )
        for name, direction, more, checks in (
            ("bim", "unboxed", "", _FOOLBOX),
            ("mim", _MOMENTUM, ", with momentum 1 of gradients of l1 norm one", _MIM),
        )
        for form, steps, schedule, how, threats in (
            ("", 20, "constant(0.15)", "20 steps of 0.15 of the budget", _ANY),
            (
                "-code",
                20,
                "spread(1.5)",
                "20 steps of 1.5 budgets in total, as the search of its code",
                _ANY,
            ),
            (
                "-transfer",
                10,
                "constant(0.15)",
                "10 steps of 0.15 of the budget on a substitute",
                _ANY,
            ),
            *_STRENGTH,
        )
    ),
    Preset(
        "bim@su",
        _ascent(50, "spread(1.0)"),
        "Su et al. 2018, as printed: T steps of eps / T on the cross-entropy, T = 50 in the search",
        threats=_SU,
        also=_L2,
        differs="the text writes the gradient at the clean image for every step, which would be "
        "fgsm@su; their code takes it at the iterate, and so does this",
        checks=_FOOLBOX,
    ),
    Preset(
        "bim@su-code",
        _ascent(50, "spread(1.0)", loss="logit"),
        "Su et al. 2018, as the commands of their code: the loss is only the logit of the class",
        threats=_SU,
        also=_L2,
        differs=_WITHIN,
        checks=(*_OWN, Check("independent", ALL, about="targeted")),
    ),
    *_deepsec("bim", "15 steps of {}", _FOOLBOX, steps=15),
    *_deepsec(
        "illc",
        "10 steps of {} to the least likely class",
        _FOOLBOX,
        steps=10,
        aim=_LEAST,
        differs=_UP_TO_15.format(10),
    ),
    *_deepsec(
        "pgd",
        "15 steps of {} from a uniform start",
        _FOOLBOX,
        steps=15,
        start="uniform",
        differs="its code takes the first gradient at a start not cut to the box; here it is cut "
        "(as many digits are broken: 48 of 48 at 0.3, 14 at 0.1)",
    ),
    *_deepsec(
        "mim",
        "15 steps of {} with momentum 1, untargeted and targeted",
        (*_MIM, Check("torchattacks", ALL, about="targeted")),
        steps=15,
        direction=_MOMENTUM,
        goals=" targeted:random",
        differs="its code sums gradients without dividing each by its norm, a bug: this is the "
        "paper's method (as many digits are broken: 47 of 48 at 0.3, 13 at 0.1); "
        f"{_UP_TO_15.format(15)} for both goals",
    ),
    Preset(
        "pgd@madry",
        _ascent(20, "constant(1/4)", start="uniform"),
        "Madry et al. 2018, CIFAR-10: 20 steps of 2/255 from a uniform start",
        threats=("linf:8/255",),
        also=_L2,
        default=f"40 steps that fall from the whole budget to zero; {_STABLE}; {_FILLS}; {_EVERY}",
        checks=_FOOLBOX,
    ),
    Preset(
        "pgd@madry-mnist",
        _ascent(40, "constant(1/30)", start="uniform"),
        "Madry et al. 2018, MNIST: 40 steps of 0.01 from a uniform start",
        threats=("linf:0.3",),
        also=_L2,
        checks=_FOOLBOX,
    ),
    Preset(
        "mim@dong",
        _ascent(10, "spread(1.0)", direction=_MOMENTUM),
        "Dong et al. 2018: 10 steps of a tenth of the budget with momentum 1 of gradients of l1 "
        "norm one",
        threats=("linf:16/255",),
        also=_L2,
        default=f"20 steps of 0.15 of the budget; {_STABLE}; {_FILLS}; {_EVERY}",
        checks=_MIM,
    ),
    Preset(
        "dim@xie",
        _ascent(19, "constant(1/15)", direction=_DIVERSE.format(0.5)),
        "Xie et al. 2019 (M-DI2-FGSM): 19 steps of 1/255 at 15/255, each image resized and padded "
        "with probability 0.5, with momentum 1",
        threats=("linf:15/255",),
        also=_L2,
        default=f"20 steps of 0.15 of the budget; {_STABLE}; {_FILLS}",
        differs="budget, step and number of steps are from memory of the paper, and its code has "
        "10 steps at 16/255; theirs enlarges images of 299 to between 299 and 330 and pads to 330, "
        "with nearest neighbours in its code and one draw for a batch; networks of a fixed input "
        "size cannot take that, so images shrink to between 0.9 and 1 of their size, as in "
        "RealSafe, bilinearly, drawn for every image; what that costs on ImageNet was not measured",
        checks=_OWN,
    ),
    *(
        Preset(
            f"dim@realsafe{form}",
            _ascent(steps, schedule, direction=_DIVERSE.format(often)),
            f"Dong et al. 2020 (RealSafe): {how}, on a substitute, images shrunk to between 0.9 "
            f"and 1 of their size and padded{when}, with momentum 1",
            threats=threats,
            differs=more + _SIZES.format(*_MEASURED[often]),
            checks=_compared(_OWN, threats),
        )
        for form, often, steps, schedule, how, threats, when, more in (
            (
                *("", "1.0", 10, "constant(0.15)", "10 steps of 0.15 of the budget", _ANY, ""),
                "the paper states no probability: images always shrink; ",
            ),
            *(
                (form, "0.7", steps, schedule, how, threats, " with probability 0.7", "")
                for form, steps, schedule, how, threats in (
                    (
                        *("-code", 10, "constant(0.15)"),
                        *("10 steps of 0.15 of the budget, as coded", _ANY),
                    ),
                    *_STRENGTH,
                )
            ),
        )
    ),
    Preset(
        "tim@dong",
        _ascent(10, "spread(1.0)", direction=_SMOOTH),
        "Dong et al. 2019 (TI-MI-FGSM): 10 steps of a tenth of the budget, gradients smoothed by a "
        "Gaussian of 15 x 15 pixels, with momentum 1",
        threats=("linf:16/255",),
        also=_L2,
        default=f"20 steps of 0.15 of the budget; {_STABLE}; {_FILLS}; {_EVERY}",
        differs="the paper does not give the width of the Gaussian: that of the authors' code, 7/3 "
        "pixels",
        checks=_OWN,
    ),
    Preset(
        "sinifgsm@lin",
        _ascent(
            10, "spread(1.0)", direction="chain(scale_copies(5), nesterov(1.0, False), unboxed)"
        ),
        "Lin et al. 2020: 10 steps of a tenth of the budget, the gradient one momentum step ahead, "
        "averaged over five copies of halved size",
        threats=("linf:16/255",),
        default=f"the point ahead is cut to the box; {_STABLE}; {_FILLS}",
        differs="copies are scaled towards black, as the paper writes x / 2^i; the authors' code "
        "holds images in [-1, 1] and so scales towards mid-grey (at 0.1 black breaks 9 instead of "
        "6 of 48 digits, and 4 instead of 7 on another network)",
        checks=(Check("torchattacks", ALL),),
    ),
)
