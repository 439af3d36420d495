"""`Training`: the state of a training, and one epoch of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from besiege.attacks.ascent import pgd
from besiege.attacks.attack import Attack, parse
from besiege.attacks.pieces import Constant
from besiege.bounds.region import Region
from besiege.core.ball import ball
from besiege.core.dice import Dice
from besiege.core.errors import TrainingError
from besiege.core.oracle import Oracle
from besiege.core.siege import Siege
from besiege.core.terms import Terms
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.defenses.defended import Defended
from besiege.defenses.layers import Layer
from besiege.defenses.pooling import Pooled
from besiege.models.classifier import Classifier
from besiege.models.twins import alike, keep_compiled
from besiege.training.augmentation import augmented
from besiege.training.averaging import Average
from besiege.training.backward import Backward
from besiege.training.bounded import Around, followed
from besiege.training.checkpoints import Checkpoint, optimiser_state, restore_optimiser
from besiege.training.history import Epoch, collapsed, kept
from besiege.training.inner import Inner
from besiege.training.objectives import Step
from besiege.training.recipes import Recipe
from besiege.training.updates import Batch

# Wong et al. (2020): PGD-5 with steps of a quarter of the budget.
_GUARD = replace(pgd, steps=5, schedule=Constant(0.25))
# Over how many draws the answers of a stochastic victim are averaged under attack.
_DRAWS = 4
# Values of images that are augmented together on a GPU.
_TOGETHER = 1 << 24
# Compiling takes about a minute: it pays off from about so many forward passes of one image.
_WORTH_COMPILING = 10_000_000


class Training:
    """The state of a training: weights, average, optimiser, image order, history, best epoch.

    Parameters
    ----------
    model : Classifier
        The model, whose module is trained in place.
    data : Data
        Training images.
    plan : Recipe
        How to train.
    seed : int
        Seed of every draw.
    compiled : bool, optional
        Whether to compile the module; decided by the work ahead where not given.
    layers : tuple of Layer
        Layers in front of the model.
    sources : sequence of Victim
        Static models that images are crafted on as well.
    teacher : Victim, optional
        The model that labels, for a distillation.
    guide : Victim, optional
        The model whose logits guide the training of a denoiser.
    """

    def __init__(
        self,
        model: Classifier,
        data: Data,
        plan: Recipe,
        seed: int,
        compiled: bool | None,
        *,
        layers: tuple[Layer, ...] = (),
        sources: Sequence[Victim] = (),
        teacher: Victim | None = None,
        guide: Victim | None = None,
    ) -> None:
        self.model, self.plan, self.seed, self.layers = model, plan, seed, layers
        self.module, self.device, self.box = model.module, model.device, model.box
        self.sources, self.teacher, self.guide = sources, teacher, guide
        self.held: Data | None = None
        if plan.held_out:
            self.held = data.subset(plan.held_out, seed)
            data = data.take(~torch.isin(data.ids, self.held.ids))
        # The guard's images are trained on: it looks for a collapse, and chooses no epoch.
        self.watched = data.subset(min(plan.batch, len(data)), seed) if plan.guard else None
        self.images, self.labels, ids = (
            t.to(self.device) for t in (data.images, data.labels, data.ids)
        )
        self.dice = Dice.throw(seed, ids)
        self.order = torch.Generator().manual_seed(seed)
        self.history: list[Epoch] = []
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.safe: dict[str, Tensor] | None = None
        self.memory: dict[str, Tensor] = {}
        cuda = self.device.type == "cuda"
        if cuda:
            lay_out(self.module, torch.channels_last)
        self.average = Average(self.module, plan.average) if plan.average else None
        self.optimiser = _optimiser(plan, self.module)
        shape, classes = tuple(data.shape), data.classes
        steps = 0 if plan.attack is None else plan.attack.passes(shape, classes)
        passes = plan.epochs * len(self.labels) * (1 + steps)
        self.asked = model
        worth = cuda and passes >= _WORTH_COMPILING
        if (compiled or (compiled is None and worth)) and not plan.objective.second_order:
            keep_compiled()
            self.asked = alike(model, torch.compile(self.module))
        self.victim = self._behind(self.asked)
        noises = plan.objective.noises
        self.crafted_on = Pooled(self.victim, noises, "probabilities") if noises else self.victim
        self.inner = Inner(plan, self._precision)
        self.backward = Backward(self.module, plan.objective, self._step)
        # After the layout of the weights: it reads the tensors that are trained.
        self.graph = (
            followed(model, plan.threat, self.images[:8])
            if plan.objective.proves and plan.threat is not None
            else None
        )

    def _behind(self, model: Classifier) -> Victim:
        """A model behind the layers of this training."""
        return Defended(model, *self.layers) if self.layers else model

    def _precision(self) -> AbstractContextManager[object]:
        low = self.plan.precision == "bfloat16"
        # Without the cache of cast weights, which a CUDA graph would use after they changed.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    def _differentiable(self) -> AbstractContextManager[object]:
        """The context in which everything has the derivatives that the objective takes."""
        twice = self.plan.objective.second_order
        return sdpa_kernel(SDPBackend.MATH) if twice else nullcontext()

    def _batches(self) -> list[Tensor]:
        """The rows of each step of the next epoch."""
        shuffled = torch.randperm(len(self.labels), generator=self.order).to(self.device)
        batches = list(shuffled.split(self.plan.batch))  # type: ignore[no-untyped-call]  # torch
        if self.plan.whole and len(batches) > 1 and len(batches[-1]) < self.plan.batch:
            batches.pop()
        return batches

    @property
    def done(self) -> bool:
        """Whether no epoch is left, or the guard has ended the training."""
        return len(self.history) >= self.plan.epochs or collapsed(self.history, self.plan.guard)

    def epoch(self, tick: Callable[[int, int], None] | None = None) -> None:
        """One more pass over the data."""
        begun = time.perf_counter()
        number = len(self.history) + 1
        batches = self._batches()
        done, steps = (number - 1) * len(batches), self.plan.epochs * len(batches)
        self.module.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        with _drawing(self.device, self.seed, number), self._differentiable():
            for batch in self._taken(batches, number, done, steps):
                for group in self.optimiser.param_groups:
                    group["lr"] = self.plan.rate_at(batch.number, steps)
                loss, correct = self.plan.update(self, batch)
                if self.average is not None:
                    self.average.update(batch.number)
                # Not read before the epoch ends: that would synchronise with the GPU.
                total += loss.double() * len(batch.x)
                right += correct
                if tick is not None:
                    tick(batch.number + 1, steps)
        seen = sum(map(len, batches))
        mean = float(total) / seen
        if not math.isfinite(mean):
            raise TrainingError(
                f"training diverged: the loss of epoch {number} is {mean}; lower the rate of the "
                f"recipe '{self.plan}', or add a warm-up"
            )
        guarded = self._guard()
        clean, robust = self._check()
        seconds = time.perf_counter() - begun
        accuracy = float(right) / seen if self.plan.objective.classifies else None
        self.history.append(Epoch(number, mean, accuracy, clean, robust, guarded, seconds))
        self._keep()

    # What an update uses: `besiege.training.updates.Trainer`.

    def _taken(self, batches: list[Tensor], epoch: int, number: int, steps: int) -> Iterator[Batch]:
        """The batches of an epoch, whose first step has a number, out of `steps`.

        On a GPU several are augmented together, since small kernels take less time than launches.
        """
        cuda = self.device.type == "cuda"
        many = max(1, _TOGETHER // (self.plan.batch * self.images[0].numel())) if cuda else 1
        for first in range(0, len(batches), many):
            part = batches[first : first + many]
            rows = torch.cat(part)
            sizes = [len(batch) for batch in part]
            dice, y = self.dice.at(rows), self.labels[rows]
            drawn = dice.of("augment", epoch)
            black = self.box[0]
            x = augmented(self.images[rows], drawn, self.plan.crop, self.plan.flip, black)
            for own in zip(*(torch.split(t, sizes) for t in (x, y, dice.key)), strict=True):
                yield Batch(own[0], own[1], Dice(own[2]), epoch, number, number / steps)
                number += 1

    def craft(self, batch: Batch) -> Tensor:
        """The adversarial images of a batch, crafted on the model or on a static source."""
        source: Victim = self.crafted_on
        if self.sources:
            drawn = Dice.throw(self.seed, torch.tensor([batch.number])).of("source")
            chosen = int(drawn.integers(len(self.sources) + 1))
            source = self.crafted_on if chosen == 0 else self.sources[chosen - 1]
        return self.inner(source, batch.x, batch.y, batch.dice, batch.epoch)

    def take(self, batch: Batch, crafted: Tensor) -> Step:
        """The step of a batch, for which nothing has been computed yet."""
        return self._step(batch, crafted, *_thrown(batch))

    def slopes(self, batch: Batch, crafted: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the number of correct predictions; weights have gradients."""
        return self.backward(batch, crafted, *_thrown(batch))

    def _step(self, batch: Batch, crafted: Tensor, dice: Dice, during: Dice) -> Step:
        if self.plan.objective.reads_slope:
            crafted = crafted.detach().requires_grad_(True)
        return Step(
            x=batch.x,
            y=batch.y,
            crafted=crafted,
            ask=lambda x: self._ask(x, dice),
            still=lambda x: self._still(x, dice),
            each=lambda x: self._each(x, dice),
            teacher=None if self.teacher is None else lambda x: self._taught(x, dice),
            dice=dice,
            epoch=batch.epoch,
            network=lambda x: self._answered(x, dice),
            guide=None if self.guide is None else lambda x: self._guided(x, dice),
            box=self.box,
            classifies=self.plan.objective.classifies,
            under=lambda x: self._under(x, during),
            progress=batch.progress,
            around=lambda share: self._around(batch.x, share),
        )

    def loss(self, step: Step) -> Tensor:
        """The objective's loss of a step."""
        return self.plan.objective(step)

    def budget(self, epoch: int) -> float:
        """The largest radius of an epoch."""
        return self.plan.radius_at(epoch)

    def _around(self, x: Tensor, share: float) -> Around:
        """What bounds are about: a share of the budget around some images."""
        threat = self.plan.threat
        assert self.graph is not None and threat is not None
        return Around(self.graph, Region.of(x, threat.radius * share, threat.norm, self.box))

    def _ask(self, x: Tensor, dice: Dice) -> Tensor:
        with self._precision():
            return self.victim(x, dice)

    def _under(self, x: Tensor, dice: Dice) -> Tensor:
        """Logits ``[noises, rows, classes]`` under the noise that `inner` crafted with."""
        count = self.plan.objective.noises
        keys = [dice.of("noise").of("draw", number).key for number in range(count)]
        many = x.repeat(count, *[1] * (x.dim() - 1))
        return self._ask(many, Dice(torch.cat(keys))).view(count, len(x), -1)

    def _still(self, x: Tensor, dice: Dice) -> Tensor:
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            return self._ask(x, dice)
        finally:
            for part, mode in modes:
                part.training = mode

    def _each(self, x: Tensor, dice: Dice) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = layer(x, self.box, dice.of("layer", place))
        with self._precision():
            return self.asked.each(x, dice)

    def _answered(self, x: Tensor, dice: Dice) -> Tensor:
        with self._precision():
            return self.asked.answer(x, dice)

    def _guided(self, x: Tensor, dice: Dice) -> Tensor:
        assert self.guide is not None
        with self.guide.held(), self._precision():
            return self.guide(x, dice.of("guide")).float()

    @torch.no_grad()
    def _taught(self, x: Tensor, dice: Dice) -> Tensor:
        assert self.teacher is not None
        with self.teacher.held(), self._precision():
            return self.teacher(x, dice.of("teacher")).float()

    # What is measured after an epoch.

    def _guard(self) -> float | None:
        """Accuracy of some training images under PGD-5, by the weights as they are."""
        if self.watched is None:
            return None
        return self._accuracy(self._behind(self.model), self.watched, _GUARD)[1]

    def _check(self) -> tuple[float | None, float | None]:
        """Accuracies on the held-out images, clean and robust."""
        if self.held is None:
            return None, None
        attack = self.plan.attack
        # A network may resist a single step only, and best of all when it has collapsed.
        if self.plan.threat is not None and (attack is None or attack.one_step):
            attack = _GUARD
        return self._accuracy(self._behind(alike(self.model, self._final())), self.held, attack)

    def _keep(self) -> None:
        """Keep the weights of the last epoch, if they may be the final ones."""
        last = self.history[-1]
        if kept(self.history, self.plan.guard) is not last:
            return
        if last.score is not None:
            self.best = last.score, self._weights()
        elif self.plan.guard:
            self.safe = self._weights()

    def _final(self) -> nn.Module:
        """The module whose weights are kept: the average where there is one."""
        return self.module if self.average is None else self.average.module

    def _weights(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self._final().state_dict().items()}

    def _accuracy(
        self, victim: Victim, data: Data, attack: Attack | None
    ) -> tuple[float, float | None]:
        """Accuracy of a model on some images: clean, and under an attack."""
        threat = self.plan.threat
        x, y, ids = (t.to(self.device) for t in (data.images, data.labels, data.ids))
        # The same random draws every time, so that epochs differ only in their weights.
        dice = Dice.throw(self.seed, ids).of("held out")
        with victim.held(), self._precision():
            oracle = Oracle(victim)
            drawn = dice.of("clean") if victim.stochastic else None
            right = oracle.logits(x, drawn).argmax(1) == y
            clean = float(right.double().mean())
            if attack is None or threat is None:
                return clean, None
            if victim.stochastic:
                attack = parse(f"averaged({attack}, {_DRAWS})")
            around = ball(threat.norm, x, threat.radius, victim.box)
            siege = Siege.start(oracle, around, y, dice, Terms(draws=attack.draws))
            siege.survey()
            siege.settle()
            if len(siege):
                attack.run(siege)
        return clean, float((right & ~siege.record.success).double().mean())

    def finish(self) -> None:
        """Load the final weights into the module: those of the epoch that `kept` names."""
        if self.best is not None:
            self.module.load_state_dict(self.best[1])
        elif self.safe is not None:
            self.module.load_state_dict(self.safe)
        elif self.average is not None:
            self.module.load_state_dict(self.average.module.state_dict())

    def checkpoint(self, identity: dict[str, str]) -> Checkpoint:
        """The state that resuming needs."""
        facts, moments = optimiser_state(self.optimiser)
        groups: dict[str, dict[str, Tensor]] = {
            "model": self.module.state_dict(),
            "average": {} if self.average is None else self.average.module.state_dict(),
            "best": {} if self.best is None else self.best[1],
            "safe": self.safe or {},
            "memory": self.memory,
            "optimiser": moments,
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
        on_device = {name: v.to(self.device) for name, v in group("memory").items()}
        self.memory.update(on_device)
        safe = {key: value.to(self.device) for key, value in group("safe").items()}
        self.safe = safe or None
        restore_optimiser(self.optimiser, state.facts["optimiser"], group("optimiser"))
        self.order.set_state(group("order")["state"])
        self.history = [Epoch(**epoch) for epoch in state.facts["history"]]


def _thrown(batch: Batch) -> tuple[Dice, Dice]:
    """Random draws of a batch for its step, and those that its images were crafted with."""
    return batch.dice.of("step", batch.epoch), batch.dice.of("epoch", batch.epoch)


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
