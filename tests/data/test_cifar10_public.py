from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from besiege.data import load

root = Path(os.environ.get("BESIEGE_DATA", "")) / "cifar-10-batches-py" / "test_batch"
pytestmark = pytest.mark.skipif(
    not os.environ.get("BESIEGE_DATA") or not root.is_file(),
    reason="needs CIFAR-10: set BESIEGE_DATA",
)

# SHA-256 of the public test batch: pixel bytes, then one byte per label.
PUBLIC = "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a"


def test_the_test_split_is_the_public_one() -> None:
    data = load("cifar10")
    pixels = (data.images * 255).round().to(torch.uint8).numpy().tobytes()
    labels = bytes(data.labels.tolist())
    assert hashlib.sha256(pixels + labels).hexdigest() == PUBLIC
    assert torch.bincount(data.labels).tolist() == [1000] * 10
    assert [data.class_names[label] for label in data.labels[:4]] == [
        "cat",
        "ship",
        "ship",
        "airplane",
    ]
