"""An attack of your own: ascent on the margin, with shorter steps in the second half."""

from dataclasses import dataclass

from besiege import Access, Attack, Norm, Siege, register
from besiege.attacks.losses import margin


@register("my_attack")
@dataclass(frozen=True)
class MyAttack(Attack):
    """Ascent on the margin from a random point of the ball; later steps are half as long."""

    access = Access.GRADIENT
    norms = frozenset({Norm.Linf, Norm.L2, Norm.L1})
    steps: int = 20

    def run(self, siege: Siege) -> None:
        x = siege.ball.sample(siege.dice)
        for step in range(self.steps):
            answer = siege.gradient(x, margin)  # sent, charged, checked for success
            x, answer = siege.settle(x, answer)  # drops rows that are done
            length = siege.ball.radius * (0.2 if 2 * step < self.steps else 0.1)
            x = siege.ball.project(x + siege.ball.steepest(answer.gradient, x, length))
        siege.offer(x)  # checks the last iterate, too
