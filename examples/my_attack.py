"""An attack of one's own: pushed over the margin, with the last steps half as long."""

from dataclasses import dataclass

from besiege import Access, Attack, Norm, Siege, register
from besiege.attacks.losses import margin


@register("my_attack")
@dataclass(frozen=True)
class MyAttack(Attack):
    """Climb the margin from a random point of the ball, the last half of the steps halved."""

    access = Access.GRADIENT
    norms = frozenset({Norm.Linf, Norm.L2, Norm.L1})
    steps: int = 20

    def run(self, siege: Siege) -> None:
        x = siege.ball.sample(siege.dice)
        for step in range(self.steps):
            answer = siege.gradient(x, margin)  # asked, charged, looked at for success
            x, answer = siege.settle(x, answer)  # rows that are done leave
            length = siege.ball.radius * (0.2 if 2 * step < self.steps else 0.1)
            x = siege.ball.project(x + siege.ball.steepest(answer.gradient, x, length))
        siege.offer(x)  # the last point counts too
