"""The first-order attack loop `Ascent`, and the attacks that are settings of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from besiege.attacks.attack import Attack
from besiege.attacks.directions import (
    Chain,
    Diverse,
    Memory,
    Momentum,
    Nesterov,
    Part,
    ScaleCopies,
    Steepest,
    Stride,
    Translation,
    Unit,
)
from besiege.attacks.losses import Shifting, SoftMargin, cross_entropy, margin
from besiege.attacks.pieces import (
    Constant,
    Cosine,
    Fixed,
    Origin,
    Place,
    Radius,
    Schedule,
    Signs,
    Spread,
    Start,
    Uniform,
    Within,
)
from besiege.attacks.planes import steering
from besiege.attacks.radii import Bracketing, Closing, Decoupled, Falling, OnSphere
from besiege.attacks.smallest import endless, somewhere
from besiege.core.answer import Answer, Loss
from besiege.core.attack_registry import ATTACKS
from besiege.core.dice import Dice
from besiege.core.fields import a_loss, of_kind, one_of, whole_number
from besiege.core.siege import Siege, not_examined, target_class
from besiege.core.threat import ALL_GOALS, ALL_NORMS, L1, L2, Goal, Linf, Norm

LEAST_LIKELY = frozenset({Goal.UNTARGETED, Goal.LEAST_LIKELY})


@dataclass(frozen=True)
class Ascent(Attack):
    """Iterated ascent of a loss inside the ball of the threat.

    Every step computes the gradient, then applies radius, schedule, direction and place in this
    order. The last iterate is evaluated as well.

    Parameters
    ----------
    name : str
        Registered name.
    start, loss, direction, schedule, radius, place
        The six slots; see `besiege.attacks.pieces` and `besiege.attacks.losses`.
    steps : int
        Steps from every start.
    restarts : int
        Runs from different random starts; rows already broken are not attacked again.
    aim : str
        The class aimed at: that of the goal, or the least likely class of the clean image.
    counts : str
        The iterates that count as successes: 'every' one, where a row stops at its first; the
        'last' only, as in most papers, where no row stops before; or the 'earlier' ones, where the
        last is not evaluated, as in published minimum-norm searches.
    """

    name: str = ""
    steps: int = whole_number(10)
    start: Start = of_kind(Origin(), Start)
    loss: Loss = a_loss(cross_entropy)
    direction: Part = of_kind(Steepest(), Part, "direction")
    schedule: Schedule = of_kind(Spread(1.0), Schedule)
    radius: Radius = of_kind(Fixed(), Radius)
    place: Place = of_kind(Within(), Place)
    restarts: int = whole_number(1)
    aim: Literal["goal", "least-likely"] = one_of("goal", "least-likely")
    counts: Literal["every", "last", "earlier"] = one_of("every", "last", "earlier", added=True)
    norms: frozenset[Norm] = field(default=frozenset({Linf, L2, L1}), compare=False, repr=False)
    goals: frozenset[Goal] = field(default=ALL_GOALS, compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.direction.moves:
            raise ValueError(f"'{self.direction}' cannot end a direction: chain(..., steepest)")
        if self.counts == "earlier" and not self.radius.searches:
            raise ValueError("counts='earlier' is for searches of the smallest perturbation only")
        if self.aim == "least-likely":
            object.__setattr__(self, "goals", self.goals & LEAST_LIKELY)

    @property
    def one_step(self) -> bool:
        return self.steps == 1

    @property
    def minimal(self) -> bool:  # type: ignore[override]  # a class attribute elsewhere
        return self.radius.searches

    @property
    def blind(self) -> bool:
        """Whether only last iterates are examined: others do not count, or are seen transformed."""
        return self.counts == "last" or self.direction.steers

    def run(self, siege: Siege) -> None:
        if self.minimal:
            siege = endless(siege)
        aim = None if self.aim == "goal" else target_class(siege, Goal.LEAST_LIKELY)
        for restart in range(self.restarts):
            # Rows broken in an earlier restart have left, unless the caller keeps them.
            rows = siege.view(aim=aim, dice=siege.dice.of("restart", restart))
            if len(rows):
                self._ascend(rows)

    def _ascend(self, siege: Siege) -> None:
        x = self.start(siege)
        turning = self.direction.init(x)
        pacing = self.schedule.init(x, siege.ball)
        sizing = self.radius.init(x, siege.ball)
        landing = self.place.init(x, siege.ball)
        for step in range(self.steps):
            loss = self._loss(siege, step)
            if self.blind:
                self._spend_last(siege, x, loss)
            answer = self._ask(siege, x, loss, turning, step)
            x, answer, turning, pacing, sizing, landing = siege.settle(
                x, answer, turning, pacing, sizing, landing
            )
            if not len(siege):
                return
            ball, sizing = self.radius.next(step, self.steps, siege, x, answer, sizing)
            size, x, answer, pacing = self.schedule.next(step, self.steps, ball, x, answer, pacing)
            slope = somewhere(siege, answer.gradient, step) if self.minimal else answer.gradient
            g, turning = self.direction.turn(slope, turning)
            move = self.direction.move(g, x, ball, size)
            turning = self.direction.moved(size, turning, ball)
            x, landing = self.place(ball, x, move, landing)
        if self.counts != "earlier":
            siege.offer(x, loss)

    def _spend_last(self, siege: Siege, x: Tensor, loss: Loss) -> None:
        """Examine the iterates of rows that cannot pay for a gradient and an examination."""
        poor = last_query(siege, self.direction.copies)
        if len(poor):
            siege.logits(x[poor], poor, loss)

    def _loss(self, siege: Siege, step: int) -> Loss:
        loss = self.loss.at(step, self.steps) if isinstance(self.loss, Shifting) else self.loss
        # The margin of each row's own target, not of the best wrong class: a minimum-norm search
        # must measure the distance to that boundary only.
        return steering(siege) if self.minimal and loss == margin else loss

    def _ask(self, siege: Siege, x: Tensor, loss: Loss, turning: Memory, step: int) -> Answer:
        direction = self.direction
        if not direction.steers:
            return siege.gradient(x, loss, not_examined if self.counts == "last" else None)
        low, high = siege.ball.box
        point = direction.ahead(x, turning)
        point = point if direction.leaves_box else point.clamp(low, high)
        copies = direction.copies
        if copies > 1:
            point = point[:, None].expand(-1, copies, *x.shape[1:])

        def through(image: Tensor, dice: Dice, slot: Tensor) -> Tensor:
            # The maps scale and pad towards zero; black is the low end of the box.
            mapped = direction.through(image - low, dice.of("through", step), slot)
            return mapped + low if direction.leaves_box else (mapped + low).clamp(low, high)

        answer = siege.gradient(point, loss, through)
        if copies == 1:
            return answer
        # Average the copies to one answer per row; copies are never checked for success.
        return answer.map(lambda _, part: part.mean(1) if part.is_floating_point() else part[:, 0])


def last_query(siege: Siege, copies: int = 1) -> Tensor:
    """The numbers of the rows that can pay for an examination, but not also for a gradient.

    For attacks that examine their last iterate only. `copies` is the price of a gradient.
    """
    if siege.record.meter.budget is None:
        return siege.rows[:0]
    left = siege.record.meter.left(siege.rows)
    return ((left > 0) & (left <= copies)).nonzero()[:, 0]


fgsm = Ascent(
    "fgsm", steps=1, source="Goodfellow, Shlens and Szegedy, Explaining and harnessing, 2015"
)
rfgsm = replace(
    fgsm,
    name="rfgsm",
    start=Signs(0.5),
    schedule=Constant(0.5),
    norms=frozenset({Linf}),
    source="Tramèr et al., Ensemble adversarial training, 2018",
)
llc = replace(
    fgsm,
    name="llc",
    aim="least-likely",
    source="Kurakin, Goodfellow and Bengio, Adversarial machine learning at scale, 2017",
)
rllc = replace(rfgsm, name="rllc", aim="least-likely")
bim = Ascent(
    "bim",
    steps=20,
    direction=Stride(),
    schedule=Constant(0.15),
    source="Kurakin, Goodfellow and Bengio, Adversarial examples in the physical world, 2017",
)
illc = replace(bim, name="illc", aim="least-likely")
pgd = replace(
    bim,
    name="pgd",
    steps=40,
    start=Uniform(),
    schedule=Cosine(1.0),
    # The paper uses equal steps, schedule=constant(0.25). Steps that fall from the whole budget
    # left fewer images unbroken in 20 of 21 cases tried.
    source="Madry et al., Towards deep learning models resistant, 2018 (with falling steps)",
)
mim = replace(
    bim,
    name="mim",
    direction=Chain((Momentum(1.0), Stride())),
    source="Dong et al., Boosting adversarial attacks with momentum, 2018",
)
dim = replace(
    mim,
    name="dim",
    direction=Chain((Diverse(), Momentum(1.0), Stride())),
    source="Xie et al., Improving transferability with input diversity, 2019",
)
tim = replace(
    mim,
    name="tim",
    direction=Chain((Translation(), Momentum(1.0), Stride())),
    source="Dong et al., Evading defenses by translation-invariant attacks, 2019",
)
sinifgsm = replace(
    mim,
    name="sinifgsm",
    steps=10,
    schedule=Spread(1.0),
    direction=Chain((ScaleCopies(5), Nesterov(1.0), Stride())),
    norms=frozenset({Linf, L2}),
    source="Lin et al., Nesterov accelerated gradient and scale invariance, 2020",
)
ddn = Ascent(
    "ddn",
    steps=100,
    # The soft margin selects the class; the margin then finds the nearest boundary point.
    loss=Shifting(SoftMargin(0.1), margin, 0.5),
    direction=Unit(),
    schedule=Falling(1.0, 0.01),
    radius=Decoupled(0.1, 0.005),
    place=OnSphere(),
    norms=frozenset({L2}),
    # The paper's form is ddn@rony.
    source="Rony et al., Decoupling direction and norm, 2019 (with margins, closing in)",
)
fmn = Ascent(
    "fmn",
    steps=100,
    loss=margin,
    direction=Unit(),
    # The paper's form is fmn@pintor.
    schedule=Closing(),
    radius=Bracketing(0.1, 0.001),
    norms=ALL_NORMS,
    source="Pintor et al., Fast minimum-norm adversarial attacks, 2021 (with smaller steps)",
)

for _attack in (fgsm, rfgsm, llc, rllc, bim, illc, pgd, mim, dim, tim, sinifgsm, ddn, fmn):
    ATTACKS.add(_attack.name, _attack)
