"""`Training`: the state of a training, and one epoch of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import InputError
from besiege.core.oracle import Oracle
from besiege.core.siege import Siege
from besiege.data.dataset import Data
from besiege.models.classifier import Classifier
from besiege.models.twins import alike, keep_compiled
from besiege.training.augmentation import augmented
from besiege.training.averaging import Average
from besiege.training.checkpoints import Checkpoint, optimiser_state, restore_optimiser
from besiege.training.inner import Inner
from besiege.training.recipes import Recipe

# Compiling takes about a minute: it pays off from about so many forward passes of one image.
_WORTH_COMPILING = 10_000_000


@dataclass(frozen=True)
class Epoch:
    """Results of one pass over the data.

    Attributes
    ----------
    number : int
        Counted from 1.
    loss, accuracy : float
        Means over the training images, perturbed as the model saw them.
    clean, robust : float, optional
        Accuracy on the held-out images: clean, and under the recipe's attack.
    seconds : float
        Duration.
    """

    number: int
    loss: float
    accuracy: float
    clean: float | None = None
    robust: float | None = None
    seconds: float = field(default=0.0, compare=False)


class Training:
    """The state of a training: weights, average, optimiser, image order, history, best epoch."""

    def __init__(
        self, victim: Classifier, data: Data, plan: Recipe, seed: int, compiled: bool | None
    ) -> None:
        self.victim, self.plan, self.seed = victim, plan, seed
        self.module, self.device = victim.module, victim.device
        self.held: Data | None = None
        if plan.held_out:
            self.held = data.subset(plan.held_out, seed)
            data = data.take(~torch.isin(data.ids, self.held.ids))
        self.images, self.labels, ids = (
            t.to(self.device) for t in (data.images, data.labels, data.ids)
        )
        self.dice = Dice.throw(seed, ids)
        self.order = torch.Generator().manual_seed(seed)
        self.history: list[Epoch] = []
        self.best: tuple[float, dict[str, Tensor]] | None = None
        cuda = self.device.type == "cuda"
        if cuda:
            lay_out(self.module, torch.channels_last)
        self.average = Average(self.module, plan.average) if plan.average else None
        self.optimiser = _optimiser(plan, self.module)
        passes = plan.epochs * len(self.labels) * (1 + getattr(plan.attack, "steps", 0))
        self.asked = victim
        if compiled or (compiled is None and cuda and passes >= _WORTH_COMPILING):
            keep_compiled()
            self.asked = alike(victim, torch.compile(self.module))
        self.inner = Inner(self.asked, plan, cuda, self._precision)

    def _precision(self) -> AbstractContextManager[object]:
        low = self.plan.precision == "bfloat16"
        # Without the cache of cast weights, which a CUDA graph would use after they changed.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    def _batches(self) -> list[Tensor]:
        """The rows of each step of the next epoch."""
        shuffled = torch.randperm(len(self.labels), generator=self.order).to(self.device)
        batches = list(shuffled.split(self.plan.batch))  # type: ignore[no-untyped-call]
        if self.plan.whole and len(batches) > 1 and len(batches[-1]) < self.plan.batch:
            batches.pop()
        return batches

    def epoch(self, tick: Callable[[int, int], None] | None = None) -> None:
        """One more pass over the data."""
        begun = time.perf_counter()
        number = len(self.history) + 1
        batches = self._batches()
        done, steps = (number - 1) * len(batches), self.plan.epochs * len(batches)
        self.module.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        with _drawing(self.device, self.seed, number):
            for step, rows in enumerate(batches, done):
                for group in self.optimiser.param_groups:
                    group["lr"] = self.plan.rate_at(step, steps)
                loss, correct = self._step(rows, number)
                if self.average is not None:
                    self.average.update(step)
                # Not read before the epoch ends: that would synchronise with the GPU.
                total += loss.double() * len(rows)
                right += correct
                if tick is not None:
                    tick(step + 1, steps)
        seen = sum(map(len, batches))
        mean = float(total) / seen
        if not math.isfinite(mean):
            raise InputError(
                f"training diverged: the loss of epoch {number} is {mean}; lower the rate of the "
                f"recipe '{self.plan}', or add a warm-up"
            )
        clean, robust = self._check()
        seconds = time.perf_counter() - begun
        self.history.append(Epoch(number, mean, float(right) / seen, clean, robust, seconds))

    def _step(self, rows: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """One step of the optimiser; returns the loss and the number of correct predictions."""
        plan, dice = self.plan, self.dice.at(rows)
        x, y = self.images[rows], self.labels[rows]
        x = augmented(x, dice.of("augment", epoch), plan.crop, plan.flip)
        seen = self.inner(x, y, dice, epoch)
        with self._precision():
            logits = self.asked(seen)
        loss = functional.cross_entropy(logits, y, label_smoothing=plan.smoothing)
        if plan.clean > 0 and seen is not x:
            with self._precision():
                others = self.asked(x)
            clean = functional.cross_entropy(others, y, label_smoothing=plan.smoothing)
            loss = (1 - plan.clean) * loss + plan.clean * clean
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach(), (logits.argmax(1) == y).sum()

    def _check(self) -> tuple[float | None, float | None]:
        """Accuracies on the held-out images, clean and robust; also keeps the best weights."""
        if self.held is None:
            return None, None
        kept = self.module if self.average is None else self.average.module
        clean, robust = self._accuracy(alike(self.victim, kept), self.held)
        score = clean if robust is None else robust
        # In a tie the later epoch is kept, which was trained for longer.
        if self.best is None or score >= self.best[0]:
            self.best = score, {k: v.detach().clone() for k, v in kept.state_dict().items()}
        return clean, robust

    def _accuracy(self, victim: Classifier, data: Data) -> tuple[float, float | None]:
        """Accuracy of a model on some images: clean, and under the recipe's attack."""
        attack, threat = self.plan.attack, self.plan.threat
        x, y, ids = (t.to(self.device) for t in (data.images, data.labels, data.ids))
        with victim.held(), self._precision():
            oracle = Oracle(victim)
            right = oracle.logits(x).argmax(1) == y
            clean = float(right.double().mean())
            if attack is None or threat is None:
                return clean, None
            around = ball(threat.norm, x, threat.radius, victim.box)
            # The same random draws every time, so that epochs differ only in their weights.
            siege = Siege.start(oracle, around, y, Dice.throw(self.seed, ids).of("held out"))
            attack.run(siege)
        return clean, float((right & ~siege.record.success).double().mean())

    def finish(self) -> None:
        """Load the final weights into the module: the best epoch's, the average, or its own."""
        if self.best is not None:
            self.module.load_state_dict(self.best[1])
        elif self.average is not None:
            self.module.load_state_dict(self.average.module.state_dict())

    def checkpoint(self, identity: dict[str, str]) -> Checkpoint:
        """The state that resuming needs."""
        facts, kept = optimiser_state(self.optimiser)
        groups: dict[str, dict[str, Tensor]] = {
            "model": self.module.state_dict(),
            "average": {} if self.average is None else self.average.module.state_dict(),
            "best": {} if self.best is None else self.best[1],
            "optimiser": kept,
            "order": {"state": self.order.get_state()},
        }
        return Checkpoint(
            identity,
            {
                "history": [asdict(epoch) for epoch in self.history],
                "best": None if self.best is None else self.best[0],
                "optimiser": facts,
            },
            {f"{group}.{key}": v for group, held in groups.items() for key, v in held.items()},
        )

    def restore(self, state: Checkpoint) -> None:
        """Resume from a checkpoint."""

        def group(name: str) -> dict[str, Tensor]:
            start, held = name + ".", state.tensors.items()
            return {key[len(start) :]: value for key, value in held if key.startswith(start)}

        self.module.load_state_dict(group("model"))
        if self.average is not None:
            self.average.module.load_state_dict(group("average"))
        if state.facts["best"] is not None:
            best = {key: value.to(self.device) for key, value in group("best").items()}
            self.best = state.facts["best"], best
        restore_optimiser(self.optimiser, state.facts["optimiser"], group("optimiser"))
        self.order.set_state(group("order")["state"])
        self.history = [Epoch(**epoch) for epoch in state.facts["history"]]


def _optimiser(plan: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    parameters: Any = list(module.parameters())
    if plan.decayed == "weights":
        # Only weights of convolutions and linear layers have more than one dimension.
        parameters = [
            {"params": [p for p in parameters if p.dim() > 1]},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
    if plan.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=plan.rate, weight_decay=plan.decay)
    return torch.optim.SGD(
        parameters, lr=plan.rate, momentum=0.9, nesterov=True, weight_decay=plan.decay
    )


@contextmanager
def _drawing(device: torch.device, seed: int, epoch: int) -> Iterator[None]:
    """Seed randomised modules (dropout) by seed and epoch; restores the global random state."""
    mixed = (seed * 1_000_003 + epoch) % (1 << 63)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(mixed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(mixed)
        yield


def lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Change the memory layout of a module's weights."""
    # torch's stubs do not know this form of Module.to, which its documentation describes.
    module.to(memory_format=layout)  # type: ignore[call-overload]
