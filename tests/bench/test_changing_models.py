"""A model that changes while it is evaluated: no result of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import besiege
from besiege.core.errors import VictimError


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_result_of_two_models_is_not_kept(tmp_path: Path) -> None:
    module, data = net(), besiege.data.load("digits", count=30)
    # Labels of the model itself: all are correct, so that every row is attacked.
    pair = (data.images, module(data.images).argmax(1))

    def train(event: object) -> None:
        seen.append(event)
        if len(seen) == 2:  # another thread could do it at any moment
            with torch.no_grad():
                next(module.parameters()).mul_(-1)

    seen: list[object] = []
    with pytest.raises(VictimError, match="changed while it was evaluated"):
        besiege.evaluate(
            module,
            pair,
            threat="linf:0.05",
            attacks="fgsm, pgd(steps=5)",
            curve=False,
            shard=10,
            out=tmp_path,
            watch=train,
        )
    # With the weights of the beginning it resumes, and gives what an undisturbed run gives.
    found = besiege.evaluate(
        net(), pair, threat="linf:0.05", attacks="fgsm, pgd(steps=5)", curve=False, shard=10,
        out=tmp_path,
    )  # fmt: skip
    alone = besiege.evaluate(
        net(), pair, threat="linf:0.05", attacks="fgsm, pgd(steps=5)", curve=False, shard=10
    )
    assert found.complete and found.robust == alone.robust and found.clean == alone.clean
