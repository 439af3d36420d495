from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from besiege.core.errors import DataError, InputError
from besiege.data import load

draw = np.random.default_rng(0)
BYTES = draw.integers(0, 256, (6, 3, 5, 4), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 1, 0, 2])


def test_bytes_and_numbers_in_any_layout_are_the_same_samples() -> None:
    expected = torch.from_numpy(BYTES.astype(np.float32) / np.float32(255))
    for images in (
        BYTES,
        torch.from_numpy(BYTES),
        BYTES.transpose(0, 2, 3, 1),
        expected,
        expected.double().numpy(),
        expected.to(memory_format=torch.channels_last),
    ):
        data = load((images, LABELS))
        assert torch.equal(data.images, expected)
        assert data.images.is_contiguous() and data.images.dtype == torch.float32
        assert data.labels.tolist() == LABELS.tolist()
        assert data.ids.tolist() == [0, 1, 2, 3, 4, 5]
        assert (data.name, data.split, data.classes) == ("tensors", "all", 3)
        assert data.class_names == ("0", "1", "2")


def test_grey_images_need_no_channel() -> None:
    data = load((BYTES[:, 0], LABELS[:, None]))
    assert data.images.shape == (6, 1, 5, 4)
    assert load((BYTES[:, 0], LABELS), layout="nchw").digest == data.digest


def test_the_callers_arrays_are_not_touched_or_shared() -> None:
    images = torch.full((2, 1, 2, 2), 1 + 5e-7)
    data = load((images, [0, 1]))
    assert float(data.images.max()) == 1.0
    assert float(images.max()) > 1.0
    data.images.zero_()
    assert float(images.min()) > 1.0


@pytest.mark.parametrize("shape", [(4, 3, 8, 3), (4, 1, 8, 1), (4, 8, 8, 8), (4, 5, 1, 1)])
def test_an_unclear_layout_is_asked_for(shape: tuple[int, ...]) -> None:
    images = draw.random(shape)
    with pytest.raises(InputError, match="layout='nchw'"):
        load((images, [0, 1, 2, 3]))
    assert load((images, [0, 1, 2, 3]), layout="nchw").images.shape == shape
    assert load((torch.from_numpy(images), [0, 1, 2, 3])).images.shape == shape
    last = load((images, [0, 1, 2, 3]), layout="nhwc")
    assert last.images.shape == (shape[0], shape[3], shape[1], shape[2])
    with pytest.raises(InputError, match="nchw"):
        load((images, [0, 1, 2, 3]), layout="chwn")


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (BYTES.astype(np.float32), LABELS, "divide them by 255"),
        (BYTES / 127.5 - 1, LABELS, "mean="),
        (BYTES.astype(np.int64), LABELS, "uint8"),
        (BYTES // 255, LABELS, "only 0 and 1"),
        (np.full((6, 3, 5, 4), np.nan), LABELS, "NaN"),
        (BYTES[0], LABELS, "one per image"),
        (BYTES[0, 0], LABELS, "shape"),
        (BYTES[:0], LABELS[:0], "none"),
        ("photos", LABELS, "tensor or an array"),
        (np.array([None] * 6), LABELS, "tensor or an array"),
        (BYTES, LABELS[:5], r"\(6,\)"),
        (BYTES, np.eye(6)[LABELS].astype(int), r"argmax\(1\)"),
        (BYTES, LABELS.astype(float), "whole numbers"),
        (BYTES, LABELS - 1, r"labels\[0\] is -1"),
        (BYTES, LABELS + 10**9, "ids"),
    ],
)
def test_unusable_pairs_say_what_to_do(images: Any, labels: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load((images, labels))


def test_a_pair_may_lie_in_another_box() -> None:
    images = draw.random((4, 1, 4, 4)) * 2 - 1
    data = load((images, [0, 1, 0, 1]), box=(-1.0, 1.0))
    assert torch.equal(data.images, torch.from_numpy(images.astype(np.float32)))
    with pytest.raises(InputError, match="expected"):
        load((images * 2, [0, 1, 0, 1]), box=(-1.0, 1.0))
    with pytest.raises(InputError, match="floating"):
        load((BYTES.astype(int), LABELS), box=(-1.0, 1.0))
    with pytest.raises(InputError, match="pairs of tensors"):
        load("digits", box=(-1.0, 1.0))


def test_bytes_are_scaled_to_the_box_exactly() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    assert load((every, [0]), box=(0.0, 255.0)).images.flatten().tolist() == list(range(256))
    wide = load((every, [0]), box=(-1.0, 1.0)).images
    assert (float(wide.min()), float(wide.max())) == (-1.0, 1.0)
    assert torch.allclose(wide, 2 * load((every, [0])).images - 1, atol=1e-6)


def test_an_npz_is_read_with_ids_and_names(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    ids = np.array([50, 40, 30, 20, 10, 0])
    np.savez(path, x=BYTES, y=LABELS, ids=ids, class_names=np.array(["cat", "dog", "owl", "fox"]))
    data = load(path)
    assert (data.name, data.split, data.classes) == ("own", "all", 4)
    assert data.class_names == ("cat", "dog", "owl", "fox")
    assert data.ids.tolist() == sorted(ids.tolist())
    assert data.labels.tolist() == LABELS[::-1].tolist()
    assert torch.equal(data.images[5], load((BYTES, LABELS)).images[0])
    assert load(str(path), count=3).total == 6


def test_an_npz_may_hold_splits(tmp_path: Path) -> None:
    path = tmp_path / "parts.npz"
    np.savez(path, x_train=BYTES, y_train=LABELS, x_test=BYTES[:2], y_test=LABELS[:2])
    assert (len(load(path)), load(path).split) == (2, "test")
    assert (len(load(path, "train")), load(path, "train").split) == (6, "train")
    with pytest.raises(DataError, match="x_train"):
        load(path, "validation")


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


def test_an_npz_is_never_unpickled(tmp_path: Path) -> None:
    path, target = tmp_path / "evil.npz", tmp_path / "touched"
    np.savez(path, x=np.array([Evil(target)], dtype=object), y=LABELS)
    with pytest.raises(DataError, match="Python objects"):
        load(path)
    assert not target.exists()


def test_unusable_npz_files_name_themselves(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    for content in (b"", b"no zip", b"PK\x03\x04 cut off"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"own\.npz is damaged"):
            load(path)
    np.savez(path, x=BYTES, y=LABELS)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(64) + whole[264:])
    with pytest.raises(DataError, match=r"own\.npz is damaged"):
        load(path)
    np.savez(path, images=BYTES, y=LABELS)
    with pytest.raises(DataError, match="no 'x'; it holds images, y"):
        load(path)
    np.savez(path, x=BYTES, y=LABELS, class_names=np.array(["cat", "dog"]))
    with pytest.raises(DataError, match=r"own\.npz: labels\[1\] is 2.*0 to 1"):
        load(path)
    np.savez(path, x=BYTES, y=LABELS, ids=LABELS)
    with pytest.raises(DataError, match="not unique"):
        load(path)
    with path.open("wb") as file:
        np.save(file, BYTES)
    with pytest.raises(DataError, match="only one array"):
        load(path)
