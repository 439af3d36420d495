"""The live objects that tasks use: victims, twins, samples and attacks, by digest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from besiege.attacks.attack import Attack, parse
from besiege.bench.plan import Plan
from besiege.bench.planning import searched_data, searcher
from besiege.bench.request import ResolvedRequest
from besiege.bench.shards import boxed, shards_of
from besiege.bench.spec import AttackSpec, Machine
from besiege.bench.store import Store
from besiege.bench.tables import rows_of
from besiege.bench.task import Task
from besiege.bench.work_estimate import WorkEstimate
from besiege.core import record as core_record
from besiege.core.blocks import GPU_BLOCK
from besiege.core.errors import ChangedError, StoreError
from besiege.core.knowledge import Knowledge
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data.dataset import Data
from besiege.metrics.rows import Column

if TYPE_CHECKING:
    from besiege.bench.trainings import Training

GPU_BYTES = 320
"""Bytes of a GPU's memory for every pixel value that is attacked at once: attacks on several
targets hold about 40 floats for each, and the model needs as much."""
WORTH_COMPILING = 4e7
"""Estimated forward passes of a plan from which on compiling pays.

Compiling a ResNet for CIFAR-10 takes 40 s on an H200 and saves a third of the attacks' time, which
is 30 s for the 1.1e7 passes of the suite ``standard`` on 1,000 images: four times as many pay.
"""
Images = tuple[Column, Column, Column | None]
"""Ids, images, and targets."""
Told = Callable[[float, int, float], None]
"""Called during a task with the share that is done, the claimed successes, and the seconds."""
Telling = Callable[[Sequence[Task]], Told | None]
Watching = Callable[[Sequence[Task]], Callable[[core_record.Record], None] | None]


@dataclass
class Context:
    """The live objects of tasks, by digest; a task itself is data.

    Attributes
    ----------
    store : Store
        The store of the records that tasks need.
    victims : dict
        Victims, and other models that attacks are crafted on, by digest.
    shards : dict
        Functions that return the samples of a shard on the victim's device, by digest.
    attacks : dict
        Attacks by their text; others are parsed from it.
    starts : dict
        Images that attacks may start from, by digest.
    around : Samples
        The first samples. Twins must agree with their victims around them, within the threat. They
        are the same in a resumed run, and so are its twins.
    threat : Threat, optional
        The threat of the evaluation; a training has none.
    how : Machine
        Rows per call of a model, and whether twins are compiled; changes no result.
    fresh : callable, optional
        Returns a copy of the victim that was never queried.
    given : dict
        Images made elsewhere by digest: the ids of their samples, the images, and the classes they
        were aimed at, where these do not follow from the samples.
    trainings : dict
        Trainings by the keys of their tasks. The untrained models are victims of the same keys.
    """

    store: Store
    victims: Mapping[str, Victim]
    shards: Mapping[str, Callable[[], Samples]]
    attacks: Mapping[str, Attack]
    starts: Mapping[str, Samples]
    around: Samples
    threat: Threat | None
    how: Machine
    fresh: Callable[[], Victim] | None = None
    given: Mapping[str, Images] = field(default_factory=dict)
    trainings: Mapping[str, Training] = field(default_factory=dict)
    telling: Telling = lambda tasks: None
    watching: Watching = lambda tasks: None
    unwatched: Exception | None = None
    """The error that the watcher raised, which is no failure of an attack."""
    _twins: dict[str, Victim | None] = field(default_factory=dict)
    _samples: dict[str, Samples] = field(default_factory=dict)

    def victim(self, digest: str) -> Victim:
        """The victim, or the substitute, of a digest."""
        return self.victims[digest]

    def subject(self, task: Task) -> str:
        """The digest of the model that a task is about; of one in training, the task's key."""
        return str(task.identity.get("victim", task.key))

    def must_be_unchanged(self, task: Task) -> None:
        """Refuse to keep the result of a model that changed while it was evaluated.

        The result would belong to neither model. A model in memory may be trained by another
        thread, or by its own code.
        """
        used = {task.identity.get(name) for name in ("victim", "advice")}
        used |= {*task.identity.get("across", ())}
        for digest, victim in self.victims.items():
            if digest in used and victim.digest() != digest:
                raise ChangedError(
                    f"the model '{victim.name}' changed while it was evaluated, so this result is "
                    "not kept: let nothing train or change a model during its evaluation, and "
                    "evaluate it again. Results from before the change are kept"
                )

    def twin(self, digest: str) -> Victim | None:
        """The accelerated copy that attacks search on, created once; None without one."""
        if digest not in self._twins:
            victim = self.victim(digest)
            assert self.threat is not None, "an evaluation has one"
            compiled = bool(self.how.compile) and victim.device.type == "cuda"
            self._twins[digest] = victim.twin(self.around, self.threat, compiled=compiled)
        return self._twins[digest]

    def searched(self, digest: str) -> str:
        """What attacks on a victim searched on, in words."""
        twin = self._twins.get(digest)
        if twin is None:
            return "the model"
        return "a compiled twin" if self.how.compile and twin.captures is not None else "a twin"

    def attack(self, text: str, spelled: Mapping[str, object]) -> Attack:
        """The attack of a text."""
        return self.attacks[text] if text in self.attacks else parse(text)

    def most_together(self, digest: str) -> int:
        """The most samples that are attacked at once: those that fill a GPU; on a CPU a shard.

        A killed run loses what is attacked at once, and answers of a metered victim cost money.
        """
        victim = self.victim(digest)
        if victim.device.type == "cpu" or victim.metered:
            return 0
        rows, entries = GPU_BLOCK
        if victim.device.type == "cuda":
            memory = torch.cuda.get_device_properties(victim.device).total_memory
            entries = min(entries, memory // GPU_BYTES)
        return min(rows, entries // self.around.images[0].numel())

    def samples(self, digest: str, ids: Column | None = None) -> Samples:
        """The samples of a shard, or some of them.

        Shards that are attacked at once are cached for other tasks, or else the last one.
        """
        if digest not in self._samples:
            made = self.shards[digest]()
            most = max(map(self.most_together, self.victims))
            if sum(map(len, self._samples.values())) + len(made) > most:
                self._samples.clear()
            self._samples[digest] = made
        samples = self._samples[digest]
        return samples if ids is None else samples.at(rows_of(samples.ids, ids))

    def first(self, shards: Sequence[str], count: int) -> Samples:
        """The first samples of some shards."""
        samples = Samples.joined([self.samples(digest) for digest in shards])
        return samples.at(torch.arange(min(count, len(samples)), device=samples.ids.device))

    def adversarial(self, judged: Sequence[str], count: int) -> Tensor | None:
        """Some stored adversarial images of the records that verdicts judged; None without any."""
        for key in judged:
            record = self.store.read(key)
            if record is None or not int(record.totals.get("broken", 0)):
                continue
            images = self.store.images(record.identity["crafted"])["images"][:count]
            return torch.from_numpy(images.copy())
        return None

    def knowledge(self, identity: Mapping[str, Any]) -> Knowledge:
        """The substitute and the starting images that an attack uses."""
        advice, starts = identity.get("advice"), identity.get("starts")
        return Knowledge(
            None if starts is None else self.starts[starts],
            None if advice is None else self.victim(advice),
        )

    def standing(self, task: Task) -> Samples:
        """The samples of a task's shard that withstood the attacks before it, by the verdicts."""
        samples = self.samples(task.identity["shard"])
        stands = torch.ones(len(samples), dtype=torch.bool, device=samples.ids.device)
        for key in task.needs:
            if key == task.identity.get("proofs"):
                continue  # they break nothing
            record = self.store.read(key)
            if record is None:
                raise StoreError(f"there is no record {key[:12]} in {self.store.folder}")
            rows = self.store.rows([key])
            if "draws" in record.identity:
                # Samples of a stochastic victim are attacked again unless broken in every draw.
                broken = rows["sample"][rows["share"] >= 1]
            else:
                broken = rows["sample"][rows["success"] | ~rows["correct"]]
            stands[rows_of(samples.ids, broken)] = False
        return samples.at(stands.nonzero()[:, 0])


def ticking(tell: Told | None) -> Callable[[int, int], None] | None:
    """A callback for progress inside a task, with the steps done and all of them."""
    if tell is None:
        return None
    begin, last = time.monotonic(), 0.0

    def tick(done: int, steps: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.2:  # as often as inside a task of an attack
            last = now
            tell(done / steps, 0, now - begin)

    return tick


def context_of(store: Store, resolved: ResolvedRequest, plan: Plan, how: Machine) -> Context:
    """The live objects of one evaluation."""
    victim, knowledge, scaled = resolved.victim, resolved.knowledge, resolved.scaled
    listed = [*plan.attacks, *(plan.searches.attacks if plan.searches else ())]
    specs = [spec for spec in listed if isinstance(spec, AttackSpec)]
    specs += [guard.attack for guard in plan.guards]
    used = {digest for spec in specs for digest in (spec.source, spec.advice)}
    others = (knowledge.substitute, knowledge.bare, resolved.other)
    known = {model.digest(): model for model in others if model is not None}
    victims = {digest: model for digest, model in known.items() if digest in used}
    victims |= {one.victim.digest(): one.victim for one in resolved.targets}
    victims[plan.model.digest] = victim

    def samples(make: Callable[[], Data]) -> Callable[[], Samples]:
        return lambda: boxed(make(), victim, scaled).to(victim.device)

    assert plan.request.shard is not None, "resolve decides it"
    shards = dict(zip(plan.shards, shards_of(resolved.data, plan.request.shard), strict=True))
    if plan.searches is not None:
        few = shards_of(*searched_data(resolved))
        shards |= dict(zip(plan.searches.shards, few, strict=True))
    starts = {resolved.starts: knowledge.starts} if resolved.starts and knowledge.starts else {}
    short = plan.request.curve == "short"
    searching = [one for one in resolved.attacks if not one.oblivious]
    attacks = [*resolved.attacks, *(searcher(one, short) for one in searching)]
    if how.compile is None and victim.device.type == "cuda":
        # By the whole plan, not by what is left: a resumed run searches on the same twin.
        how = replace(how, compile=WorkEstimate(plan).total >= WORTH_COMPILING)
    first = resolved.data.take(torch.arange(min(plan.request.shard, len(resolved.data))))
    return Context(
        store,
        victims,
        {shard.digest: samples(make) for shard, make in shards.items()},
        {str(attack): attack for attack in attacks},
        starts,
        boxed(first, victim, scaled),
        resolved.threat,
        how,
        resolved.fresh,
    )
