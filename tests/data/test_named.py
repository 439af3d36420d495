from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.data import load

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def write_batch(path: Path, rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    batch = {
        "data": draw.integers(0, 256, (rows, 3072), dtype=np.uint8),
        "labels": draw.integers(0, 10, rows).tolist(),
    }
    path.write_bytes(pickle.dumps(batch, protocol=2))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    write_batch(folder / "test_batch", 40, seed=0)
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    return folder


def test_digits_are_split_once_and_for_all() -> None:
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1400, 397)
    assert sorted([*train.ids.tolist(), *test.ids.tolist()]) == list(range(1797))
    # Pinned: whoever changes the split changes every figure on digits.
    assert test.ids[:8].tolist() == [2, 5, 6, 15, 20, 31, 32, 33]
    assert test.digest == "7120d7856bc8ca178d61b9a82f287a00e3377a90f3a7f02302e41d9c0997a345"


def test_digits_have_the_promised_shape_and_range() -> None:
    data = load("digits")
    assert data.images.shape == (397, 1, 8, 8)
    assert data.images.dtype == torch.float32
    assert data.images.is_contiguous()
    assert (float(data.images.min()), float(data.images.max())) == (0.0, 1.0)
    assert data.labels.dtype == data.ids.dtype == torch.int64
    assert data.classes == len(data.class_names) == 10
    assert torch.bincount(data.labels, minlength=10).min() > 20


def test_a_larger_count_contains_a_smaller_one_in_order() -> None:
    few, more = load("digits", count=50), load("digits", count=120)
    assert len(few) == 50
    assert set(few.ids.tolist()) < set(more.ids.tolist())
    assert (few.ids.diff() > 0).all()
    whole = load("digits")
    row = whole.ids.tolist().index(int(few.ids[7]))
    assert torch.equal(few.images[7], whole.images[row])
    assert few.labels[7] == whole.labels[row]


def test_the_seed_decides_the_choice() -> None:
    assert load("digits", count=50, seed=1).ids.tolist() != load("digits", count=50).ids.tolist()
    assert load("digits", count=50).digest == load("digits", count=50).digest
    assert load("digits", count=50).digest != load("digits", count=51).digest


@pytest.mark.parametrize("count", [0, -1, 398])
def test_impossible_counts_are_refused(count: int) -> None:
    with pytest.raises(InputError, match="1 to 397"):
        load("digits", count=count)


def test_unknown_names_and_splits_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="cifar10"):
        load("cifar-10")
    with pytest.raises(InputError, match="'test' or 'train'"):
        load("digits", "validation")


def test_cifar_is_read_in_public_order(root: Path) -> None:
    data = load("cifar10")
    batch = pickle.loads((root / "test_batch").read_bytes())
    assert data.labels.tolist() == batch["labels"]
    assert data.ids.tolist() == list(range(40))
    # Red, green and blue planes one after the other, rows first.
    assert data.images[3, 1, 2, 5] == np.float32(batch["data"][3, 1024 + 2 * 32 + 5]) / np.float32(
        255
    )


def test_cifar_train_needs_its_five_files(root: Path) -> None:
    with pytest.raises(DataError, match="data_batch_1"):
        load("cifar10", "train")
    for i in range(1, 6):
        write_batch(root / f"data_batch_{i}", 10, seed=i)
    data = load("cifar10", "train")
    last = pickle.loads((root / "data_batch_5").read_bytes())
    assert len(data) == 50
    assert data.labels[40:].tolist() == last["labels"]


def test_missing_data_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    with pytest.raises(DataError, match="set BESIEGE_DATA"):
        load("cifar10")
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="BESIEGE_DATA"):
        load("cifar10")


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


def test_a_pickle_that_calls_something_is_not_obeyed(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "touched"
    (root / "test_batch").write_bytes(pickle.dumps({"data": Evil(target), "labels": []}))
    with pytest.raises(DataError, match="should hold only arrays"):
        load("cifar10")
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}),
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}),
        pickle.dumps({"data": np.zeros((3, 3072), np.uint8), "labels": [0, 1]}),
    ],
)
def test_a_damaged_file_is_refused(root: Path, content: bytes) -> None:
    (root / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load("cifar10")


# The binary layout of CIFAR-10


def write_binary(folder: Path, name: str, pickled: Path) -> None:
    folder.mkdir(exist_ok=True)
    batch = pickle.loads(pickled.read_bytes())
    rows = np.concatenate([np.array(batch["labels"], np.uint8)[:, None], batch["data"]], axis=1)
    (folder / f"{name}.bin").write_bytes(rows.tobytes())


def test_both_layouts_of_cifar_are_the_same_samples(root: Path) -> None:
    binary = root.parent / "cifar-10-batches-bin"
    for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        if name != "test_batch":
            write_batch(root / name, 7, seed=int(name[-1]))
        write_binary(binary, name, root / name)
    expected = {split: load("cifar10", split).digest for split in ("test", "train")}
    root.rename(root.with_name("away"))
    assert {split: load("cifar10", split).digest for split in ("test", "train")} == expected
    assert load("cifar10").images.is_contiguous()


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3073 * 2 + 1), b"\x0a" + bytes(3072)])
def test_a_damaged_binary_file_is_refused(root: Path, content: bytes) -> None:
    binary = root.parent / "cifar-10-batches-bin"
    binary.mkdir()
    root.rename(root.with_name("away"))
    (binary / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch\.bin is damaged"):
        load("cifar10")


# Idx files


def idx(values: Bytes) -> bytes:
    sizes = np.array(values.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
LABELS = np.arange(9, dtype=np.uint8)


def write_idx(folder: Path, suffix: str = ".gz", mark: str = "-", part: str = "t10k") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if suffix else bytes
    (folder / f"{part}-images{mark}idx3-ubyte{suffix}").write_bytes(pack(idx(IMAGES)))
    (folder / f"{part}-labels{mark}idx1-ubyte{suffix}").write_bytes(pack(idx(LABELS)))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
@pytest.mark.parametrize(("suffix", "mark"), [(".gz", "-"), ("", "-"), ("", ".")])
def test_idx_files_are_read_wherever_they_lie(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    folder: str,
    suffix: str,
    mark: str,
) -> None:
    write_idx(tmp_path / folder, suffix, mark)
    write_idx(tmp_path / folder, suffix, mark, "train")
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    data = load(name)
    assert torch.equal(data.images[:, 0], torch.from_numpy(IMAGES / np.float32(255)))
    assert data.labels.tolist() == LABELS.tolist()
    assert data.ids.tolist() == list(range(9))
    assert data.images.is_contiguous() and data.labels.dtype == torch.int64
    assert len(load(name, "train")) == 9


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (b"", idx(LABELS), "damaged"),
        (idx(IMAGES)[:-1], idx(LABELS), "announces 7056 bytes of content and has 7055"),
        (idx(IMAGES) + b"x", idx(LABELS), "announces"),
        (idx(IMAGES)[:10], idx(LABELS), "damaged"),
        (idx(LABELS), idx(LABELS), "'00000803' is expected"),
        (idx(IMAGES), idx(IMAGES), "'00000801' is expected"),
        (idx(IMAGES), idx(LABELS[:8]), "9 images, but .* 8 labels"),
        (idx(IMAGES), idx(LABELS + 2), "label 10"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), "no images"),
        (idx(IMAGES[:, :27]), idx(LABELS), r"\(1, 27, 28\)"),
        (gzip.compress(idx(IMAGES))[:-900], idx(LABELS), "damaged"),
        (gzip.compress(idx(IMAGES))[:50] + bytes(900), idx(LABELS), "damaged"),
    ],
)
def test_damaged_idx_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: bytes, labels: bytes, told: str
) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "t10k-images-idx3-ubyte").write_bytes(images)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(labels)
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=told):
        load("mnist")
