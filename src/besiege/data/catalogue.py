"""The catalogue of named data sets: facts, files and addresses. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from besiege.core.errors import InputError, UnknownNameError, near
from besiege.core.threat import Norm, Threat

PICTURES = "pictures"
"""The reader of data sets whose files are folders, one per class, with one image each."""


@dataclass(frozen=True)
class Layout:
    """One arrangement of a data set's files in a data root.

    Parameters
    ----------
    reader : str
        Name of the reader of the files.
    folders : tuple of str
        Possible folders, relative to the root.
    files : mapping
        From a split to its files, in the order the reader takes them.
    suffixes : tuple of str
        Possible suffixes of a file's name.
    """

    reader: str
    folders: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    suffixes: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Remote:
    """A published file: its name below the address, its size and checksum, and its place here.

    An archive has `members`, the files to extract, relative to the root; other files are written
    to `folder`.
    """

    file: str
    bytes: int
    md5: str
    folder: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """Facts about a named data set.

    Parameters
    ----------
    name, title : str
        Its name here, and the authors' name.
    images : mapping
        From a split to the number of its images.
    shape : tuple of int
        Channels, height, width.
    class_names : tuple of str
        In the order of the labels.
    threats : tuple of str
        The usual perturbation budgets, one per norm.
    layouts : tuple of Layout
        Possible layouts on disk, the preferred one first; none for a set that is shipped.
    addresses : tuple of str
        Where its files are published; the first that answers is used.
    remotes : mapping, optional
        From a split to the files to fetch; None if besiege does not download the set.
    """

    name: str
    title: str
    images: Mapping[str, int]
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    threats: tuple[str, ...]
    layouts: tuple[Layout, ...] = ()
    addresses: tuple[str, ...] = ()
    remotes: Mapping[str, tuple[Remote, ...]] | None = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shipped(self) -> bool:
        """Whether it comes with an installed package."""
        return not self.layouts

    def eps(self, norm: Norm | str) -> Fraction | None:
        """The usual budget in a norm; None if there is none.

        Examples
        --------
        >>> entry("cifar10").eps("linf")
        Fraction(8, 255)
        """
        for text in self.threats:
            threat = Threat.parse(text)
            if threat.norm is Norm(norm) and threat.eps is not None:
                return Fraction(threat.eps)
        return None


def entry(name: str) -> Entry:
    """The facts about a data set, or an error with the nearest names."""
    if name not in CATALOGUE:
        raise UnknownNameError(f"no data set is called '{name}': {near(name, CATALOGUE)}")
    return CATALOGUE[name]


def check_split(known: Entry, split: str) -> str:
    """The split, validated: most named data sets have 'test' and 'train'."""
    if split not in known.images:
        listed = " or ".join(f"'{name}'" for name in sorted(known.images))
        raise InputError(f"the split of {known.name} is '{split}': write {listed}")
    return split


_DIGITS = tuple(str(digit) for digit in range(10))
_PARTS = {"test": "t10k", "train": "train"}
_IMAGENET = tuple(
    line.split(" ", 1)
    for line in Path(__file__).with_name("imagenet.txt").read_text("utf-8").splitlines()
)
"""WordNet id and name of every ImageNet class; the order of the ids is that of the labels."""
_CIFAR = "cifar-10-batches"
_BATCHES = {"test": ("test_batch",), "train": tuple(f"data_batch_{i}" for i in range(1, 6))}
_CIFAR_PYTHON = Remote(
    "cifar-10-python.tar.gz",
    170_498_071,
    "c58f30108f718f92721af3b95e74349a",
    members=tuple(f"{_CIFAR}-py/{file}" for split in _BATCHES.values() for file in split),
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _idx(*folders: str) -> tuple[Layout, ...]:
    """Layouts of idx files: as published, and with a dot before 'idx' as some tools have it."""

    def files(mark: str) -> dict[str, tuple[str, ...]]:
        kinds = (f"images{mark}idx3-ubyte", f"labels{mark}idx1-ubyte")
        return {split: tuple(f"{part}-{kind}" for kind in kinds) for split, part in _PARTS.items()}

    return tuple(Layout("idx", folders, files(mark), ("", ".gz")) for mark in "-.")


def _idx_remotes(
    folder: str, published: Mapping[str, tuple[int, str]]
) -> dict[str, tuple[Remote, ...]]:
    return {
        split: tuple(
            Remote(f"{file}-ubyte.gz", *published[file], folder=folder)
            for file in (f"{part}-images-idx3", f"{part}-labels-idx1")
        )
        for split, part in _PARTS.items()
    }


CATALOGUE: dict[str, Entry] = {
    known.name: known
    for known in (
        Entry(
            name="cifar10",
            title="CIFAR-10",
            images={"train": 50_000, "test": 10_000},
            shape=(3, 32, 32),
            class_names=_names(
                "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"
            ),
            threats=("linf:8/255", "l2:0.5", "l1:12"),
            layouts=(
                Layout("cifar-python", (f"{_CIFAR}-py",), _BATCHES),
                Layout("cifar-binary", (f"{_CIFAR}-bin",), _BATCHES, (".bin",)),
            ),
            addresses=("https://www.cs.toronto.edu/~kriz/",),
            remotes={"train": (_CIFAR_PYTHON,), "test": (_CIFAR_PYTHON,)},
        ),
        Entry(
            name="digits",
            title="scikit-learn's digits",
            images={"train": 1_400, "test": 397},
            shape=(1, 8, 8),
            class_names=_DIGITS,
            threats=("linf:0.15", "l2:0.5"),
        ),
        Entry(
            name="fashion-mnist",
            title="Fashion-MNIST",
            images={"train": 60_000, "test": 10_000},
            shape=(1, 28, 28),
            class_names=_names(
                "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, "
                "Ankle boot"
            ),
            threats=("linf:0.1", "l2:1.5"),
            layouts=_idx(
                "FashionMNIST/raw", "fashion-mnist", "FashionMNIST", "fashion_mnist", "fashion"
            ),
            addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            remotes=_idx_remotes(
                "FashionMNIST/raw",
                {
                    "train-images-idx3": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                    "train-labels-idx1": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                    "t10k-images-idx3": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                    "t10k-labels-idx1": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
                },
            ),
        ),
        Entry(
            name="imagenet-sample",
            title="ImageNet, one image of each class, 256x256",
            images={"test": 1_000},
            shape=(3, 256, 256),
            class_names=tuple(name for _, name in _IMAGENET),
            threats=("linf:4/255", "l2:3"),
            layouts=(
                Layout(
                    PICTURES, ("imagenet-sample",), {"test": tuple(wnid for wnid, _ in _IMAGENET)}
                ),
            ),
            addresses=("https://github.com/EliSchwartz/imagenet-sample-images",),
        ),
        Entry(
            name="mnist",
            title="MNIST",
            images={"train": 60_000, "test": 10_000},
            shape=(1, 28, 28),
            class_names=_DIGITS,
            threats=("linf:0.3", "l2:2"),
            layouts=_idx("MNIST/raw", "mnist", "MNIST", "mnist/raw"),
            # The authors' own server is often unavailable; PyTorch hosts the same files.
            addresses=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            remotes=_idx_remotes(
                "MNIST/raw",
                {
                    "train-images-idx3": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                    "train-labels-idx1": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                    "t10k-images-idx3": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                    "t10k-labels-idx1": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
                },
            ),
        ),
    )
}
NAMES = tuple(CATALOGUE)
