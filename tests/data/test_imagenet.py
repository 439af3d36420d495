"""The sample of ImageNet: a named data set of one image file per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from besiege.core.errors import DataError, InputError
from besiege.data import entry, fetch, listing, load
from besiege.data.places import locate_in

ROOT = os.environ.get("BESIEGE_DATA", "")
here = pytest.mark.skipif(
    not ROOT or locate_in(Path(ROOT), entry("imagenet-sample"), "test") is None,
    reason="needs imagenet-sample: set BESIEGE_DATA",
)


def wnids() -> tuple[str, ...]:
    (layout,) = entry("imagenet-sample").layouts
    return layout.files["test"]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder per class; every image is one file by several names."""
    folder = tmp_path / "root" / "imagenet-sample"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    for wnid in wnids():
        (folder / wnid).mkdir()
        os.link(tmp_path / "noise.png", folder / wnid / f"{wnid}_x.png")
    monkeypatch.setenv("BESIEGE_DATA", str(folder.parent))
    return folder


def test_classes_are_numbered_in_the_order_of_their_wordnet_ids() -> None:
    known = entry("imagenet-sample")
    assert list(wnids()) == sorted(set(wnids())) and len(wnids()) == 1000
    assert known.classes == len(set(known.class_names)) == known.images["test"] == 1000
    numbered = {
        0: "tench",
        1: "goldfish",
        134: "crane (bird)",
        517: "crane (machine)",
        916: "web site",
    }
    assert {number: known.class_names[number] for number in numbered} == numbered


def test_images_are_decoded_when_they_are_needed(sample: Path) -> None:
    data = load("imagenet-sample")
    assert repr(data) == "Data('imagenet-sample', 'test', 1000 images 3x256x256)"
    assert not data.decoded, "1,000 images would take 0.8 GB"
    assert data.labels.tolist() == data.ids.tolist() == list(range(1000))
    assert data.classes == 1000 and data.class_names == entry("imagenet-sample").class_names
    first = next(data.shards(3))
    assert first.images.shape == (3, 3, 256, 256) and not data.decoded
    few = load("imagenet-sample", count=5, seed=3)
    assert few.decoded and few.total == 1000 and few.files is not None
    assert [Path(file).parent.name for file in few.files] == [wnids()[i] for i in few.ids.tolist()]
    assert {line.entry.name: line.where for line in listing()}["imagenet-sample"] == {
        "test": str(sample)
    }
    assert fetch("imagenet-sample") == sample


def test_the_sample_may_be_resized_and_cropped(sample: Path) -> None:
    whole, middle = (load("imagenet-sample", count=2, crop=crop) for crop in (None, 224))
    assert torch.equal(middle.images, whole.images[:, :, 16:240, 16:240])
    assert load("imagenet-sample", count=2, resize=64, channels=1).shape == (1, 64, 64)
    with pytest.raises(InputError, match=r"crop is for folders .* and imagenet-sample"):
        load("digits", crop=4)
    with pytest.raises(InputError, match="box is for pairs"):
        load("imagenet-sample", box=(0, 1))


def test_the_sample_has_no_training_images(sample: Path) -> None:
    with pytest.raises(InputError, match="split of imagenet-sample is 'train': write 'test'"):
        load("imagenet-sample", "train")


def test_an_incomplete_sample_is_refused(sample: Path) -> None:
    """With a folder less, the numbers of the classes after it must not shift."""
    image = sample / wnids()[7] / f"{wnids()[7]}_x.png"
    image.rename(sample / wnids()[8] / "other.png")
    with pytest.raises(DataError, match=f"{wnids()[7]} holds 0 images, .* one of each class"):
        load("imagenet-sample")
    image.parent.rmdir()
    with pytest.raises(DataError, match=f"needs .*imagenet-sample/{wnids()[7]}, .* not download"):
        load("imagenet-sample")


def test_images_of_another_size_are_refused(sample: Path) -> None:
    Image.new("RGB", (300, 280)).save(sample.parent.parent / "noise.png")
    with pytest.raises(DataError, match="280x300, but those of imagenet-sample are 256x256"):
        load("imagenet-sample", count=2)
    assert load("imagenet-sample", count=2, resize=256, crop=256).shape == (3, 256, 256)


def test_a_missing_sample_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    with pytest.raises(DataError) as error:
        load("imagenet-sample")
    assert "set BESIEGE_DATA to a data root that holds imagenet-sample/" in str(error.value)
    assert entry("imagenet-sample").addresses[0] in str(error.value)
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match="none, a folder that does not exist"):
        load("imagenet-sample", count=4)
    where = {line.entry.name: line.where for line in listing()}["imagenet-sample"]
    assert where == {"test": "not in BESIEGE_DATA/imagenet-sample"}


@here
def test_files_of_the_sample_are_named_as_their_classes() -> None:
    data = load("imagenet-sample")
    assert data.files is not None and len(data.files) == 1000
    for file, label in zip(data.files, data.labels.tolist(), strict=True):
        named = Path(file).stem.partition("_")[2].replace("_", " ")
        # Two classes are called 'maillot' there.
        assert named == ("maillot" if label == 639 else data.class_names[label].partition(" (")[0])
