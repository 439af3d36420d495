from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from besiege.data import entry, load
from besiege.data.places import locate_in

root = os.environ.get("BESIEGE_DATA", "")


def need(name: str, split: str = "test") -> pytest.MarkDecorator:
    there = bool(root) and locate_in(Path(root), entry(name), split) is not None
    return pytest.mark.skipif(not there, reason=f"needs {name} ({split}): set BESIEGE_DATA")


# SHA-256 of the public test batch: pixel bytes, then one byte per label.
PUBLIC = "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a"


@need("cifar10")
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
    # Pinned: cards and records name it.
    assert data.digest == "568c9839984bdb8bd87fe13296cc3ed5dca0080be5d2313e167f5ae6da674623"
    some = load("cifar10", count=200)
    assert some.digest == "a5a03df9c5f928c8a7ea83f6847052b93ce8cbcfe244505bf1e7f33d91e0c4d4"


@need("mnist")
def test_mnist_is_the_public_one() -> None:
    data = load("mnist")
    assert data.images.shape == (10_000, 1, 28, 28)
    assert data.labels[:6].tolist() == [7, 2, 1, 0, 4, 1]
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert torch.bincount(data.labels).tolist() == counts
    # The mean that MNIST is usually normalised with is that of its training images.
    assert float(data.images.mean()) == pytest.approx(0.1325, abs=5e-5)
    assert (float(data.images.min()), float(data.images.max())) == (0.0, 1.0)


@need("mnist", "train")
def test_mnist_for_training_is_the_public_one() -> None:
    data = load("mnist", "train")
    assert len(data) == entry("mnist").images["train"]
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert float(data.images.mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(data.images.std()) == pytest.approx(0.3081, abs=5e-5)


@need("fashion-mnist")
def test_fashion_mnist_is_the_public_one() -> None:
    data = load("fashion-mnist")
    assert data.images.shape == (10_000, 1, 28, 28)
    assert torch.bincount(data.labels).tolist() == [1000] * 10
    assert [data.class_names[label] for label in data.labels[:3]] == [
        "Ankle boot",
        "Pullover",
        "Trouser",
    ]
