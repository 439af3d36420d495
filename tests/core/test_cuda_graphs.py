from __future__ import annotations

import pytest
import torch
from torch import Tensor

import besiege
from besiege.attacks import parse
from besiege.core.cuda_graphs import Captured, Captures, rounded
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation import craft, judge


def test_few_sizes_serve_all_numbers_of_rows() -> None:
    sizes = [rounded(rows) for rows in range(1, 2049)]
    assert all(size >= rows for rows, size in enumerate(sizes, 1))
    assert all(size % 8 == 0 for size in sizes) and sizes == sorted(sizes)
    assert all(size <= max(rows + 7, rows * 17 / 16) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 100
    assert [rounded(size) for size in sizes] == sizes


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.gpu
def test_a_graph_answers_what_the_function_does() -> None:
    weight = torch.randn(6, 4, device="cuda")

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x @ weight, (x * y).sum(1)

    def some(rows: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, 6, device="cuda"), torch.randn(rows, 6, device="cuda")

    graph = Captured(function, some(16))
    for rows in (16, 5, 1):
        given = some(rows)
        for mine, plain in zip(graph(*given), function(*given), strict=True):
            assert torch.allclose(mine, plain, atol=1e-5)
    captures = Captures()
    for turn in range(4):
        given = some(11)
        found = captures("both", function, given)
        assert (found is None) == (turn < 1)
        if found is not None:
            for mine, plain in zip(found, function(*given), strict=True):
                assert torch.allclose(mine, plain, atol=1e-5)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # what torch warns of while it compiles is its own matter
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "attack",
    [
        "apgd(steps=30)",
        "apgdt(steps=20, targets=4, order='distance')",
        "fabt(steps=20, targets=4)",
        "fab(steps=10)",
        "square(steps=300)",
    ],
)
def test_searching_on_graphs_breaks_what_searching_plainly_does(
    attack: str, compiled: bool
) -> None:
    victim = besiege.models.load("zoo:digits-pgd-at", "cuda")
    data = besiege.data.load("digits", count=200)
    samples = Samples.of(data.images, data.labels, ids=data.ids).to(victim.device)
    threat = Threat.parse("linf:0.15")
    twin = victim.twin(samples, threat, compiled=compiled)
    assert twin is not None and twin.captures is not None
    plain = craft(victim, parse(attack), samples, threat)
    fast = craft(victim, parse(attack), samples, threat, twin=twin)
    assert twin.captures.seconds > 0
    assert torch.equal(fast.success, judge(victim, fast, samples, threat).success)
    # The same but for rounding.
    assert int((fast.success ^ plain.success).sum()) <= 2
