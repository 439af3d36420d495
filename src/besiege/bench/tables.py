"""Converts tensors to the columns and files of a record, and crafted images back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from besiege.bench.image_pairs import stored_images
from besiege.bench.store import IMAGES, LOGITS
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Threat
from besiege.evaluation.verdicts import Certainty, Claims, Rejection
from besiege.metrics.rows import Column, Rows


def array(values: Tensor) -> Column:
    """A tensor as a column."""
    return values.detach().cpu().contiguous().numpy()


def draws_of(draws: Tensor, stochastic: bool) -> dict[str, Column]:
    """The column of all draws of a stochastic victim; none for others."""
    return {"draws": array(draws)} if stochastic else {}


def certainty_of(certainty: Certainty) -> dict[str, Column]:
    """The columns of the probabilities of answers; records of earlier releases lack all but one."""
    return {name: array(part) for name, part in certainty._asdict().items()}


def rejection_of(rejection: Rejection, rejects: bool) -> dict[str, Column]:
    """The columns of a victim that may reject images; none for others."""
    return {name: array(part) for name, part in rejection._asdict().items()} if rejects else {}


def as_bytes(images: Tensor) -> Column:
    """Images as bytes, a quarter of the size, if that loses nothing."""
    pixels = array(images)
    rounded = np.rint(pixels * 255).clip(0, 255).astype(np.uint8)
    same = np.array_equal(stored_images({"images": rounded}), pixels)
    return rounded if same else pixels


def packed_arrays(arrays: Mapping[str, Column]) -> dict[str, bytes]:
    """The image file of a record."""
    return {IMAGES: save(dict(arrays))}


def packed_logits(logits: Tensor | None) -> dict[str, bytes]:
    """The file of the clean logits of a record; none for a victim that returns labels only.

    It is a file of its own, so that what reads rows does not read it. It is not compressed: the
    mantissas of logits are noise, and the images beside it are larger.
    """
    return {} if logits is None else {LOGITS: save({"logits": array(logits)})}


def stored(
    rows: Rows,
    samples: Samples,
    images: Mapping[str, Column],
    threat: Threat,
    device: torch.device,
    transferred: bool,
) -> Claims:
    """The crafted images as stored; the judge gets nothing else."""
    pixels = samples.images.clone()
    if len(images["rows"]):
        where = torch.from_numpy(images["rows"]).to(device)
        pixels[where] = torch.from_numpy(images["images"]).to(device)

    def column(name: str) -> Tensor:
        return torch.from_numpy(rows[name].copy()).to(device)

    claimed = column("claimed")
    return Claims(
        pixels,
        torch.zeros_like(claimed) if transferred else claimed,
        None if threat.goal is Goal.UNTARGETED else column("target"),
    )


def rows_of(ids: Tensor, some: Column) -> Tensor:
    """Row numbers of some ids, in their order."""
    order = torch.argsort(ids)
    wanted = torch.from_numpy(np.ascontiguousarray(some)).to(ids.device)
    return order[torch.searchsorted(ids[order], wanted)]
