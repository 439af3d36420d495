"""Datasets, loaders and lists of files are data; what shuffles or augments is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import besiege
from besiege.core.errors import InputError
from besiege.data import load, loaders
from besiege.data.sources import is_in_box

draw = np.random.default_rng(0)
BYTES = draw.integers(0, 256, (40, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(40) % 7


def image_of(index: int) -> Tensor:
    return torch.from_numpy(BYTES[index]).permute(2, 0, 1) / 255


class Images(Dataset[Any]):
    """Tensors and labels; it counts what is read, and `change` may alter a sample."""

    def __init__(
        self, change: Callable[[Tensor, int], Any] | None = None, length: int = 40
    ) -> None:
        self.change = change or (lambda x, y: (x, y))
        self.length, self.read = length, list[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.read.append(index)
        return self.change(image_of(index % 40), int(LABELS[index % 40]))


class Alike:
    """Samples by number, without a class of torch: as datasets of Hugging Face."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": Image.fromarray(BYTES[index]), "label": int(LABELS[index])}


def pair() -> Any:
    return load((BYTES, LABELS), layout="nhwc")


FORMS: dict[str, Callable[[], Any]] = {
    "dataset of tensors": Images,
    "dataset of byte tensors": lambda: Images(lambda x, y: ((255 * x).round().byte(), y)),
    "dataset of arrays": lambda: Images(lambda x, y: (x.permute(1, 2, 0).numpy(), y)),
    "labels in tensors": lambda: Images(lambda x, y: (x, torch.tensor(y))),
    "labels of shape 1": lambda: Images(lambda x, y: (x, torch.tensor([y]))),
    "labels of numpy": lambda: Images(lambda x, y: (x, np.int64(y))),
    "more than two": lambda: Images(lambda x, y: (x, y, "a name")),
    "dictionaries": lambda: Images(lambda x, y: {"pixel_values": x, "labels": y}),
    "pictures": lambda: Images(lambda x, y: (picture(x), y)),
    "no class of torch": Alike,
    "tensor dataset": lambda: TensorDataset(pair().images, torch.from_numpy(LABELS)),
    "subset": lambda: Subset(Images(), range(40)),
    "loader": lambda: DataLoader(Images(), batch_size=7),
    "loader of dictionaries": lambda: DataLoader(Images(lambda x, y: {"image": x, "label": y}), 7),
    "loader of single samples": lambda: DataLoader(Images(), batch_size=None),
    "loader with workers": lambda: DataLoader(Images(), batch_size=9, num_workers=2),
    "loader that collates": lambda: DataLoader(Images(), 8, collate_fn=collated),
    "iterable dataset": lambda: DataLoader(Stream(), batch_size=6),
    "iterable of single samples": lambda: DataLoader(Stream(), batch_size=None),
}  # fmt: skip


def picture(x: Tensor) -> Any:
    return Image.fromarray((255 * x).round().byte().permute(1, 2, 0).numpy())


def collated(samples: list[Any]) -> dict[str, Tensor]:
    return {"y": torch.tensor([y for _, y in samples]), "x": torch.stack([x for x, _ in samples])}


class Stream(IterableDataset[Any]):
    def __init__(self, change: Callable[[int], int] = lambda place: place) -> None:
        self.change = change

    def __iter__(self) -> Iterator[Any]:
        for place in range(40):
            index = self.change(place)
            yield image_of(index), int(LABELS[index])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(form: str) -> None:
    whole, few = load(FORMS[form]()), load(FORMS[form](), count=11, seed=3)
    expected = pair()
    assert torch.allclose(whole.images, expected.images, atol=1e-7)
    assert whole.images.dtype == torch.float32 and whole.images.is_contiguous()
    assert torch.equal(whole.labels, expected.labels) and torch.equal(whole.ids, expected.ids)
    assert (whole.classes, whole.split, whole.total, whole.chosen_by) == (7, "all", 40, None)
    chosen = expected.subset(11, 3)
    assert torch.equal(few.ids, chosen.ids) and torch.equal(few.labels, chosen.labels)
    assert torch.allclose(few.images, chosen.images, atol=1e-7)
    assert (few.total, few.chosen_by) == (40, 3)


def test_only_the_chosen_samples_are_read() -> None:
    source = Images(length=50_000)
    data = load(source, count=200)
    assert len(data) == 200 and data.total == 50_000
    assert set(source.read) == set(data.ids.tolist())
    assert len(source.read) <= 200 + 40, "and few of them twice"
    looked = Images(length=50_000)
    load(DataLoader(looked, batch_size=32), count=200)
    assert set(looked.read) == set(source.read)


def test_many_images_are_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "_AT_ONCE", 1000)
    source = Images()
    data = load(source)
    assert not data.decoded and data.shape == (3, 6, 5)
    before = len(source.read)
    part = data.take([3, 30])
    assert len(source.read) == before, "nothing is read for a choice"
    assert torch.equal(part.images, pair().images[[3, 30]])
    assert source.read[before:] == [3, 30]
    assert data.digest == pair().digest
    # What changes later is noticed when it is read again.
    source.change = lambda x, y: (1 - x, y)
    with pytest.raises(InputError, match=r"sample 5 .*another image"):
        data.take([5]).images


SHUFFLED: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: DataLoader(Images(), batch_size=8, shuffle=True),
    "a generator": lambda: DataLoader(Images(), 8, shuffle=True, generator=torch.Generator()),
    "random sampler": lambda: DataLoader(Images(), 8, sampler=RandomSampler(Images())),
    "random subset": lambda: DataLoader(Images(), sampler=SubsetRandomSampler(range(20))),
    "single samples": lambda: DataLoader(Images(), batch_size=None, shuffle=True),
}


@pytest.mark.parametrize("form", SHUFFLED)
@pytest.mark.parametrize("count", [None, 5])
def test_a_loader_that_shuffles_is_refused(form: str, count: int | None) -> None:
    with pytest.raises(InputError, match=r"the DataLoader shuffles.*Set shuffle=False"):
        load(SHUFFLED[form](), count=count)


def test_a_loader_that_repeats_samples_is_refused() -> None:
    class Twice(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 2])

    with pytest.raises(InputError, match="some samples twice"):
        load(DataLoader(Images(), sampler=Twice()))
    weighted = WeightedRandomSampler([1.0] * 40, 40)
    with pytest.raises(InputError, match=r"shuffles|twice"):
        load(DataLoader(Images(), sampler=weighted))


def test_a_sampler_with_a_fixed_order_is_followed() -> None:
    data = load(DataLoader(Images(), batch_size=3, sampler=[9, 4, 30], drop_last=False))
    assert data.ids.tolist() == [4, 9, 30] and data.total == 3
    assert torch.equal(data.images, pair().images[[4, 9, 30]])


AUGMENTED: dict[str, Callable[[Tensor, int], Any]] = {
    "torch": lambda x, y: (x.flip(-1) if torch.rand(()) < 0.5 else x, y),
    "numpy": lambda x, y: (x * float(np.random.rand()), y),
    "python": lambda x, y: (x.flip(-1) if random.random() < 0.5 else x, y),
    "rarely": lambda x, y: (1 - x if torch.rand(()) < 0.15 else x, y),
    "labels": lambda x, y: (x, int(torch.randint(7, ()))),
}


@pytest.mark.parametrize("how", AUGMENTED)
@pytest.mark.parametrize("wrap", [lambda source: source, lambda source: DataLoader(source, 8)])
def test_a_dataset_that_augments_is_refused(how: str, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"of Images is another image.*transform of the test set"):
        load(wrap(Images(AUGMENTED[how])))


def test_a_stream_that_shuffles_is_refused() -> None:
    source = Stream(lambda place: int(torch.randint(40, ())))
    with pytest.raises(InputError, match="shuffles or augments"):
        load(DataLoader(source, batch_size=8))
    with pytest.raises(InputError, match="request 1 to 40"):
        load(DataLoader(Stream(), batch_size=8), count=41)


def test_a_stream_keeps_only_the_chosen_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    held, fewest = list[int](), loaders._fewest

    def counted(kept: Any, count: int, seed: int) -> Any:
        held.append(len(kept))
        return fewest(kept, count, seed)

    monkeypatch.setattr(loaders, "_fewest", counted)
    monkeypatch.setattr(loaders, "BATCH", 0)
    data = load(DataLoader(Stream(), batch_size=4), count=5, seed=1)
    assert max(held) <= 14 and len(held) > 1
    assert torch.equal(data.ids, pair().subset(5, 1).ids)


def test_random_states_stay_as_they_were() -> None:
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    generator = torch.Generator().manual_seed(5)
    own = generator.get_state()
    load(DataLoader(Images(), batch_size=8, generator=generator), count=9)
    with pytest.raises(InputError):
        load(DataLoader(Images(), shuffle=True, generator=generator))
    for change in AUGMENTED.values():
        with pytest.raises(InputError):
            load(Images(change))
    assert torch.equal(own, generator.get_state())
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # type: ignore[index]
    assert states[2] == random.getstate()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: x, "is a Tensor, but"),
        (lambda x, y: {"picture": x, "label": y}, "dictionary of picture, label"),
        (lambda x, y: (x, "cat"), "labels must be"),
        (lambda x, y: (x, torch.eye(7)[y]), "labels"),
        (lambda x, y: (x[:, : 3 + y % 2], y), "different shapes"),
        (lambda x, y: ((x - 0.5) / 0.25, y), r"undo that \(x \* std \+ mean\)"),
        (lambda x, y: (255 * x, y), "look like bytes"),
        (lambda x, y: (x / x.max() * 1.01, y), r"to 1\.01, but .*: clip them .*or scale"),
        (lambda x, y: (x, -1), r"labels\[0\] is -1"),
        (lambda x, y: 1 / 0, "could not be read: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_unusable_samples_say_what_to_do(
    change: Callable[[Tensor, int], Any], told: str, loaded: bool
) -> None:
    source = Images(change)
    with pytest.raises(InputError, match=told):
        load(DataLoader(source, batch_size=None) if loaded else source)


def test_workers_start_as_the_loader_says_and_their_errors_are_sentences(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    loader = DataLoader(Images(), 8, num_workers=1, worker_init_fn=lambda _: begun.touch())
    assert len(load(loader, count=5)) == 5 and begun.exists()
    broken = DataLoader(Images(lambda x, y: 1 / 0), 8, num_workers=1)
    with pytest.raises(InputError, match="Images could not be read: ZeroDivisionError"):
        load(broken)


def test_other_unusable_sources_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"has no samples by number: pass torch\.utils\.data"):
        load(Stream())
    with pytest.raises(InputError, match="has no samples"):
        load(Images(length=0))
    with pytest.raises(InputError, match="request 1 to 40"):
        load(Images(), count=41)
    with pytest.raises(InputError, match="a torch Dataset or a DataLoader"):
        load({"x": 1})
    dropping = DataLoader(Images(), 8, collate_fn=lambda held: collated(held[1:]))
    with pytest.raises(InputError, match="for 40 indices: let its collate_fn keep every sample"):
        load(dropping)


def test_boxes_and_layouts_of_datasets() -> None:
    wide = load(Images(lambda x, y: (2 * x - 1, y)), box=(-1, 1))
    assert torch.allclose(wide.images, 2 * pair().images - 1, atol=1e-6)
    for change in (
        lambda x, y: ((255 * x).round().byte(), y),  # bytes are scaled to the box
        lambda x, y: (picture(x), y),  # and so are pictures
    ):
        assert torch.allclose(load(Images(change), box=(-1, 1)).images, wide.images, atol=1e-6)
    square = Images(lambda x, y: (np.zeros((3, 3, 3), np.float32), y))
    with pytest.raises(InputError, match="layout='nchw'"):
        load(square)
    assert load(square, layout="nhwc").shape == (3, 3, 3)


def test_pictures_are_resized_and_cropped() -> None:
    source = Images(lambda x, y: (picture(x), y))
    assert load(source, resize=4, crop=3, count=4).shape == (3, 3, 3)
    assert load(source, channels=1, count=4).shape == (1, 6, 5)
    grey = Images(lambda x, y: (picture(x).convert("L"), y))
    assert load(grey, count=4).shape == (1, 6, 5)


def test_names_of_classes_come_from_the_dataset() -> None:
    source = Images()
    source.classes = list("abcdefgh")  # type: ignore[attr-defined]
    for one in (source, Subset(source, range(10)), DataLoader(source)):
        data = load(one)
        assert data.class_names == tuple("abcdefgh") and data.name == "Images"
    source.classes = ["a"]  # type: ignore[attr-defined]  # too few to be names of these labels
    assert load(source).class_names == tuple("0123456")


# Lists of files.


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{index}.png" for index in range(40)]
    for path, pixels in zip(paths, BYTES, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def test_lists_of_files_are_data(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, labels = pair(), LABELS.tolist()
    for source in (
        (files, labels),
        (list(map(str, files)), LABELS),
        (np.array(list(map(str, files))), torch.from_numpy(LABELS)),
        list(zip(files, labels, strict=True)),
        tuple(zip(map(str, files), labels, strict=True)),
    ):
        data = load(source)
        assert torch.equal(data.images, expected.images)
        assert torch.equal(data.labels, expected.labels) and torch.equal(data.ids, expected.ids)
        assert (data.name, data.split) == ("files", "all") and not is_in_box(source)
    two = load([(files[3], 1), (files[4], 0)])
    assert torch.equal(two.images, expected.images[3:5]) and two.labels.tolist() == [1, 0]
    pair_of_two = load(([str(files[3]), str(files[4])], [1, 0]))
    assert torch.equal(pair_of_two.images, two.images)
    few = load((files, labels), count=5, seed=2, resize=4, crop=(3, 4))
    assert torch.equal(few.ids, expected.subset(5, 2).ids) and few.shape == (3, 3, 4)
    monkeypatch.chdir(files[0].parent)
    relative = load((["7.png"], [2]))
    monkeypatch.chdir("/")
    assert torch.equal(relative.images, expected.images[7:8])


def test_unusable_lists_of_files_say_what_to_do(files: list[Path], tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (files, "files without labels"),
        ((files, LABELS[:5].tolist()), r"one per image is expected: \(40,\)"),
        ((files, ["cat"] * 40), "labels must be"),
        (([*files[:3], 4], [0, 1, 2, 3]), "a list of paths"),
        (([tmp_path / "absent.png"], [0]), "cannot be read"),
    ]
    for source, told in cases:
        with pytest.raises(besiege.BesiegeError, match=told):
            load(source)


# In evaluations and attacks.

ASK: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": False}
DIGITS = load("digits", count=30)


class Digits(Dataset[Any]):
    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def __len__(self) -> int:
        return len(DIGITS)

    def __getitem__(self, index: int) -> Any:
        pixels = self.low + (self.high - self.low) * DIGITS.images[index]
        return pixels, int(DIGITS.labels[index])


def test_every_form_is_evaluated_alike() -> None:
    model = "zoo:digits-natural"
    tensors = besiege.evaluate(model, (DIGITS.images, DIGITS.labels), **ASK)
    arrays = (DIGITS.images.permute(0, 2, 3, 1).numpy(), DIGITS.labels.numpy())
    sources = [arrays, Digits(), DataLoader(Digits(), batch_size=7)]
    for source in sources:
        found = besiege.evaluate(model, source, **ASK)
        assert found.clean == tensors.clean and found.robust == tensors.robust
        assert found.figures.data.digest == tensors.figures.data.digest
    with pytest.raises(InputError, match="shuffles"):
        besiege.evaluate(model, DataLoader(Digits(), shuffle=True), **ASK)


def test_several_models_and_threats_read_the_data_once() -> None:
    source = Images(lambda x, y: (x[:1, :5], y % 2))
    models = [
        besiege.Classifier(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(25, 3)),
            box=(0.0, high),
            name=name,
        )
        for name, high in (("one", 1.0), ("other", 1.0), ("wide", 2.0))
    ]
    ask: dict[str, Any] = {**ASK, "threat": ["linf:0.1", "linf:0.2"]}
    assert len(besiege.evaluate(models, source, count=20, **ask)) == 6
    # Once for each box, and each sample twice then.
    assert 2 * 20 <= len(source.read) <= 4 * 20


def test_floats_are_in_the_models_box() -> None:
    net = besiege.models.load("zoo:digits-natural").module
    wide = besiege.Classifier(net, mean=-1.0, std=2.0, box=(-1.0, 1.0))
    usual = besiege.evaluate(net, Digits(), **ASK)
    found = besiege.evaluate(wide, Digits(-1.0, 1.0), **{**ASK, "threat": "linf:0.2"})
    named = besiege.evaluate(wide, DIGITS, **{**ASK, "threat": "linf:0.2"})
    assert found.robust == named.robust == usual.robust
    assert found.figures.data.name == "Digits"


def test_a_run_is_resumed_with_a_loader(tmp_path: Path) -> None:
    model, out = "zoo:digits-natural", tmp_path / "run"
    first = besiege.evaluate(model, DataLoader(Digits(), batch_size=4), out=out, **ASK)
    records = sorted(path.name for path in (out / "records").iterdir())
    again = besiege.evaluate(model, Digits(), out=out, **ASK)
    assert sorted(path.name for path in (out / "records").iterdir()) == records
    assert again.robust == first.robust


def test_attacks_take_loaded_data() -> None:
    data = load(DataLoader(Digits(), batch_size=4), count=12)
    model = besiege.models.load("zoo:digits-natural")
    made = besiege.attack("pgd", model, data, threat="linf:0.1")
    same = besiege.attack("pgd", model, data.images, data.labels, ids=data.ids, threat="linf:0.1")
    assert torch.equal(made.images, same.images)
    wide = besiege.Classifier(model.module, mean=-1.0, std=2.0, box=(-1.0, 1.0))
    scaled = besiege.attack("pgd", wide, data, threat="linf:0.2")
    assert torch.equal(scaled.success, made.success)
    assert torch.allclose((scaled.images + 1) / 2, made.images, atol=1e-5)
    with pytest.raises(InputError, match=r"besiege\.data\.load\(loader, count=100\)"):
        besiege.attack("pgd", model, DataLoader(Digits()), threat="linf:0.1")
    with pytest.raises(InputError, match="no labels were given with the Tensor"):
        besiege.attack("pgd", model, data.images, threat="linf:0.1")


class Endless(IterableDataset[Any]):
    """The same thirty images from every worker."""

    def __iter__(self) -> Iterator[Any]:
        return ((image_of(index), int(LABELS[index])) for index in range(30))


def test_workers_that_all_read_everything_are_refused() -> None:
    assert len(load(DataLoader(Endless(), batch_size=10))) == 30
    with pytest.raises(InputError, match=r"60, of which 30 are different.*Set num_workers=0"):
        load(DataLoader(Endless(), batch_size=10, num_workers=2))


def test_a_collate_that_depends_on_the_batch_is_refused() -> None:
    def centred(items: list[Any]) -> tuple[Tensor, Tensor]:
        images = torch.stack([image for image, _ in items])
        return (images - images.mean(0)).clamp(0, 1), torch.tensor([label for _, label in items])

    loader = DataLoader(Images(), collate_fn=centred, batch_size=8)
    with pytest.raises(InputError, match="other samples of a batch"):
        load(loader)
