"""A small attack that sees labels alone."""

from __future__ import annotations

from dataclasses import dataclass

from besiege import Access, Attack, Siege


@dataclass(frozen=True)
class Noise(Attack):
    """Corners of the ball, one after the other."""

    access = Access.DECISION
    steps: int = 20

    def cost(self, shape: tuple[int, ...], classes: int) -> int:
        """One for every corner."""
        return self.steps

    def run(self, siege: Siege) -> None:
        for step in range(self.steps):
            siege.labels(siege.ball.shell(siege.dice.of("noise", step), 1))
            siege.settle()
            if not len(siege):
                return
