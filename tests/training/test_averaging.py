"""The moving average of weights and statistics."""

from __future__ import annotations

import torch
from torch import nn

from besiege.training.averaging import Average


def test_weights_and_statistics_follow_and_whole_numbers_are_copied() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    average = Average(net, 0.5)
    expected = {k: v.clone().double() for k, v in net.state_dict().items()}
    for step in range(6):
        net(torch.rand(8, 3) * 5)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(1.0)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for key, value in net.state_dict().items():
            expected[key] = decay * expected[key] + (1 - decay) * value.double()
    held = average.module.state_dict()
    assert int(held["1.num_batches_tracked"]) == 6
    for key, value in held.items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[key], rtol=1e-5, atol=1e-6)
    assert not any(p.requires_grad for p in average.module.parameters())
