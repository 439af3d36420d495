"""Whether a model still gives the answers that its records hold."""

from __future__ import annotations

import numpy as np
import torch

from besiege.bench.context import Context
from besiege.bench.plan import Plan
from besiege.bench.store import Store
from besiege.core.errors import ChangedError
from besiege.core.oracle import Oracle, full_precision
from besiege.evaluation.judging import AGAIN, answered, differ
from besiege.evaluation.verdicts import Rejection
from besiege.models.black_box import black_box

_APART = 0.01
"""Mean difference of confidences, and share of other classes, that rounding does not explain."""


def must_answer_as_recorded(store: Store, plan: Plan, context: Context) -> None:
    """Refuse records of a model that answers otherwise now, although its digest is the same.

    A digest covers code, weights and values that code refers to. A model may also read a file, an
    environment variable or a clock. A few clean images show it.
    """
    (stage,) = plan.stages_of("clean")
    task = stage.parts[0][0]
    victim = context.victim(plan.model.digest)
    if victim.stochastic or black_box(victim) is not None or store.sound(task.key) is None:
        return
    rows = store.rows([task.key])
    rows = rows.where(np.arange(rows.count) < AGAIN)
    images = context.samples(task.identity["shard"], rows["sample"]).images
    with victim.held(), full_precision(victim.device), torch.no_grad():
        once, again = (Oracle(victim).logits(images) for _ in range(2))
    if differ(once, again):  # an undeclared stochastic model: W14 reports it
        return
    labels = torch.from_numpy(np.asarray(rows["label"], dtype=np.int64)).to(once.device)
    certainty, prediction = answered(victim, once[None], labels)
    others = float((prediction.cpu().numpy() != rows["prediction"]).mean())
    apart = _change(certainty.confidence.cpu().numpy(), rows["confidence"])
    if victim.rejects:
        # The scale of suspicion is arbitrary: it is measured by its spread over these images.
        suspicion, before = Rejection.of(victim, once[None]).suspicion, rows["suspicion"]
        finite = before[np.isfinite(before)]
        spread = float(np.std(finite)) if len(finite) else 0.0
        apart = max(apart, _change(suspicion.cpu().numpy(), before) / (spread or 1.0))
    if max(others, apart) > _APART:
        raise ChangedError(
            f"the model '{plan.model.name}' answers images otherwise than when they were recorded "
            f"in {store.folder}, although its code and its weights are the same: it depends on "
            "something else, such as a file, an environment variable or a package. Its records "
            "are not used again: name another folder, out= or --out"
        )


def _change(now: np.ndarray, recorded: np.ndarray) -> float:
    """The mean difference of two columns where both have a number."""
    change = np.abs(now - recorded)
    return float(np.nanmean(change)) if np.isfinite(change).any() else 0.0
