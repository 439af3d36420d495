"""Tensors as the columns and files of a record, and what was crafted read back from one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from besiege.bench.pictures import stored_images
from besiege.bench.store import IMAGES
from besiege.core.samples import Samples
from besiege.core.threat import Goal, Threat
from besiege.evaluation.judging import Claims
from besiege.metrics.rows import Column, Rows


def array(values: Tensor) -> Column:
    """A tensor as a column."""
    return values.detach().cpu().contiguous().numpy()


def draws_of(draws: Tensor, stochastic: bool) -> dict[str, Column]:
    """The outcome of each draw of a stochastic victim; of others the share says all."""
    return {"draws": array(draws)} if stochastic else {}


def as_bytes(images: Tensor) -> Column:
    """Images as bytes where that loses nothing, which is a quarter of the size."""
    pixels = array(images)
    rounded = np.rint(pixels * 255).clip(0, 255).astype(np.uint8)
    same = np.array_equal(stored_images({"images": rounded}), pixels)
    return rounded if same else pixels


def packed_arrays(arrays: Mapping[str, Column]) -> dict[str, bytes]:
    """The file of a record that holds its images."""
    return {IMAGES: save(dict(arrays))}


def stored(
    rows: Rows,
    samples: Samples,
    images: Mapping[str, Column],
    threat: Threat,
    device: torch.device,
    transferred: bool,
) -> Claims:
    """What was crafted, as it is stored: the judge sees nothing else."""
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
