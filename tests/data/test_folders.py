from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.data import folders, load, pictures

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Array:
    """Write an image of (height, width) and give its bytes."""
    shape = size if mode == "L" else (*size, len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of four images each, with things beside them that are no images."""
    root = tmp_path / "photos"
    for label, name in enumerate(("cat", "dog", "owl")):
        for i in range(4):
            picture(root / name / f"{i}.png", seed=10 * label + i)
    (root / "cat" / "Thumbs.db").write_bytes(b"no image")
    (root / ".cache" / "x").mkdir(parents=True)
    (root / "readme.txt").write_text("mine")
    return root


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded from here on."""
    seen: list[Path] = []
    whole = pictures.Pictures._pixels

    def noted(self: pictures.Pictures, path: Path) -> object:
        seen.append(path)
        return whole(self, path)

    monkeypatch.setattr(pictures.Pictures, "_pixels", noted)
    return seen


def test_a_folder_of_class_folders(photos: Path) -> None:
    data = load(photos)
    assert repr(data) == "Data('photos', 'all', 12 images 3x6x4)"
    assert (data.classes, data.class_names) == (3, ("cat", "dog", "owl"))
    assert torch.bincount(data.labels).tolist() == [4, 4, 4]
    assert (data.ids.diff() > 0).all()
    row = data.ids.tolist().index(folders.file_id("dog/2.png"))
    assert data.labels[row] == 1
    pixels = picture(photos / "dog" / "2.png", seed=12)
    expected = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    assert torch.equal(data.images[row], torch.from_numpy(expected))
    assert data.images.is_contiguous()


def test_ids_come_from_the_relative_path_alone(photos: Path, tmp_path: Path) -> None:
    # Pinned: whoever changes ids orphans every record of every folder.
    assert folders.file_id("dog/2.png") == 4691082717923222948
    before = load(photos)
    (photos / "cat" / "0.png").unlink()
    moved = photos.rename(tmp_path / "elsewhere")
    after = load(moved)
    assert set(after.ids.tolist()) == set(before.ids.tolist()) - {folders.file_id("cat/0.png")}
    assert folders.file_id("caf\u00e9/1.png") == folders.file_id("cafe\u0301/1.png")
    assert all(0 <= number < 2**63 for number in before.ids.tolist())


def test_two_files_with_one_id_are_refused(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "file_id", lambda relative: len(relative))
    with pytest.raises(DataError, match=r"1\.png.*0\.png get the same id"):
        load(photos)


def test_only_the_chosen_images_are_decoded(photos: Path, decoded: list[Path]) -> None:
    some = load(photos, count=3, seed=1)
    assert len(decoded) == 3
    assert (some.total, some.chosen_by, len(some)) == (12, 1, 3)
    whole = load(photos)
    assert torch.equal(some.images, whole.subset(3, seed=1).images)
    assert some.digest == whole.subset(3, seed=1).digest
    assert set(some.ids.tolist()) < set(load(photos, count=7, seed=1).ids.tolist())


def test_large_folders_are_decoded_shard_by_shard(
    photos: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = load(photos)
    decoded.clear()
    monkeypatch.setattr(folders, "_AT_ONCE", 100)
    monkeypatch.chdir(photos.parent)
    data = load("photos")
    monkeypatch.chdir("/")
    assert not data.decoded and decoded == []
    assert (len(data), data.shape) == (12, (3, 6, 4))
    shards = data.shards(5)
    assert torch.equal(next(shards).images, eager.images[:5])
    assert len(decoded) == 5
    assert data.digest == eager.digest


def test_images_are_found_whatever_their_kind(tmp_path: Path) -> None:
    for number, ending in enumerate(sorted(pictures.ENDINGS)):
        mode = "L" if ending in (".pgm", ".pbm") else "RGB"
        picture(tmp_path / "a" / f"{number}{ending.upper()}", mode=mode)
    picture(tmp_path / "b" / "deeper" / "still" / "1.png")
    picture(tmp_path / "b" / ".hidden" / "1.png")
    data = load(tmp_path)
    assert torch.bincount(data.labels).tolist() == [len(pictures.ENDINGS), 1]
    assert data.shape == (3, 6, 4)


def test_class_folders_may_be_links(photos: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("cat", "dog"):
        (linked / name).symlink_to(photos / name)
    assert len(load(linked)) == 8


# Numbers and lists of classes


def labels_by_folder(root: Path) -> dict[str, int]:
    data = load(root)
    known = {folders.file_id(f"{p.parent.name}/{p.name}"): p.parent.name for p in root.glob("*/*")}
    return {known[i]: y for i, y in zip(data.ids.tolist(), data.labels.tolist(), strict=True)}


def test_folders_that_are_numbers_sort_as_numbers(tmp_path: Path) -> None:
    for number in range(1, 12):
        picture(tmp_path / str(number) / "x.png")
    assert labels_by_folder(tmp_path)["10"] == 9
    assert load(tmp_path).class_names[1] == "2"
    (tmp_path / "5").rename(tmp_path / "50")
    with pytest.raises(DataError, match=r"gaps.*'50' may be class 10 or 50.*classes\.txt"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "expected", "names"),
    [
        ("classes.txt", "owl\ncat\ndog\n", {"owl": 0, "cat": 1, "dog": 2}, ("owl", "cat", "dog")),
        ("labels.txt", "# mine\nemu\nowl\ndog\ncat\n", {"owl": 1, "dog": 2, "cat": 3}, None),
        ("classes.txt", "cat 4\ndog, 2\nowl = 0", {"cat": 4, "dog": 2, "owl": 0}, None),
        (
            "classes.txt",
            "\ufeffcat\t2\r\ndog\t1\r\nowl\t0\r\n",
            {"cat": 2, "dog": 1, "owl": 0},
            None,
        ),
    ],
)
def test_a_list_fixes_the_numbers(
    photos: Path, file: str, text: str, expected: dict[str, int], names: tuple[str, ...] | None
) -> None:
    (photos / file).write_bytes(text.encode())
    (photos / "empty").mkdir()
    assert labels_by_folder(photos) == expected
    data = load(photos)
    assert data.classes == max(expected.values()) + 1 == len(data.class_names)
    if names is not None:
        assert data.class_names == names
    for name, label in expected.items():
        assert data.class_names[label] == name


def test_names_that_end_in_numbers_are_names(tmp_path: Path) -> None:
    for name in ("class 2", "class 1"):
        picture(tmp_path / name / "x.png")
    (tmp_path / "classes.txt").write_text("class 2\nclass 1\n")
    assert labels_by_folder(tmp_path) == {"class 2": 0, "class 1": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cat\ndog\nowls\n", r"does not list the folder 'owl'.*'owls'"),
        ("cat\ndog\nowl\ncat\n", "a folder twice"),
        ("cat 1\ndog 1\nowl 2\n", "a number twice"),
        ("emu\nfox\n", "none of the classes"),
        ("", "none of the classes"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(photos: Path, text: str, told: str) -> None:
    (photos / "classes.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        load(photos)


# Splits


def test_split_folders_are_splits(photos: Path, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    root.mkdir()
    photos.rename(root / "train")
    for name in ("cat", "dog"):
        picture(root / "Test" / name / "9.png")
    assert (len(load(root)), load(root).split, load(root).name) == (2, "test", "parts")
    train = load(root, "train")
    assert (len(train), train.split) == (12, "train")
    direct = load(root / "train")
    assert (direct.digest, direct.name, direct.split) == (train.digest, "parts", "train")
    with pytest.raises(InputError, match=r"no split 'val'.*train"):
        load(root, "val")
    (root / "classes.txt").write_text("owl\ndog\ncat\n")
    assert load(root).class_names == load(root, "train").class_names == ("owl", "dog", "cat")


def test_classes_may_be_called_like_splits(tmp_path: Path) -> None:
    for name in ("train", "test"):
        picture(tmp_path / name / "x.png")
        picture(tmp_path / name / "more" / "x.png")
    data = load(tmp_path)
    assert (data.class_names, data.split) == (("test", "train"), "all")


# What images become


def two(tmp_path: Path, save: Callable[[Path], object]) -> Path:
    """A folder of two classes with one image each, the first saved by the caller."""
    picture(tmp_path / "b" / "x.png", mode="L")
    (tmp_path / "a").mkdir()
    save(tmp_path / "a" / "x.png")
    return tmp_path


def first(data_root: Path, **options: int) -> torch.Tensor:
    data = load(data_root, **options)  # type: ignore[arg-type]
    return data.images[data.labels.tolist().index(0)]


def test_grey_images_stay_grey_and_one_in_colour_makes_all_colour(tmp_path: Path) -> None:
    root = two(tmp_path, lambda path: picture(path, mode="L"))
    grey = first(root)
    assert grey.shape == (1, 6, 4)
    assert torch.equal(first(root, channels=3), grey.expand(3, -1, -1))
    picture(root / "c" / "x.png")
    assert torch.equal(first(root), grey.expand(3, -1, -1))
    assert load(root, channels=1).shape == (1, 6, 4)
    # Which images are chosen does not decide it.
    assert {load(root, count=1, seed=seed).shape for seed in range(8)} == {(3, 6, 4)}


def test_colour_that_was_not_expected_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_LOOKED_AT", 1)
    root = two(tmp_path, lambda path: picture(path, mode="L"))
    picture(root / "c" / "x.png")
    with pytest.raises(InputError, match=r"x\.png is in colour.*channels=3"):
        load(root)


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    def save(path: Path) -> None:
        pixels = np.full((6, 4, 4), 100, dtype=np.uint8)
        pixels[..., 3] = 255
        pixels[0, 0] = (10, 20, 30, 0)
        Image.fromarray(pixels).save(path)

    image = first(two(tmp_path, save))
    assert image[:, 0, 0].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(image[:, 1], torch.full((3, 4), 100).float() / 255)


def test_sixteen_bits_are_kept(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 24).astype(np.uint16).reshape(6, 4)
    image = first(two(tmp_path, lambda path: Image.fromarray(deep).save(path)))
    assert image.shape == (1, 6, 4)
    assert torch.equal(image[0], torch.from_numpy(deep.astype(np.float32) / np.float32(65535)))


def test_photographs_are_upright(tmp_path: Path) -> None:
    pixels = np.zeros((16, 32), dtype=np.uint8)
    pixels[:, :16] = 255  # the camera's left is the picture's top when turned clockwise
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "x.jpg", exif=exif)
    image = first(tmp_path)
    assert image.shape == (1, 32, 16)
    assert float(image[0, :15].min()) > 0.9 and float(image[0, 17:].max()) < 0.1


def test_palettes_bits_and_animations_are_read(tmp_path: Path) -> None:
    frames = [Image.new("P", (4, 6), colour) for colour in (7, 9)]
    (tmp_path / "a").mkdir()
    frames[0].save(tmp_path / "a" / "x.gif", save_all=True, append_images=frames[1:])
    (tmp_path / "b").mkdir()
    Image.new("1", (4, 6), 1).save(tmp_path / "b" / "x.png")
    data = load(tmp_path)
    assert data.shape == (3, 6, 4)
    assert float(data.images[data.labels == 1].min()) == 1.0


def test_images_of_many_sizes_are_resized_or_cropped_when_asked(photos: Path) -> None:
    picture(photos / "cat" / "big.png", size=(12, 8))
    with pytest.raises(InputError, match=r"6x4.*12x8|12x8.*6x4"):
        load(photos)
    assert load(photos, resize=4).shape == (3, 6, 4)
    assert load(photos, resize=(5, 7)).shape == (3, 5, 7)
    assert load(photos, resize=8, crop=8).shape == (3, 8, 8)
    assert load(photos, crop=(3, 2)).shape == (3, 3, 2)
    with pytest.raises(InputError, match=r"5x5.*6x4.*resize=5"):
        load(photos, crop=5)


def test_a_crop_is_the_middle_and_resizing_is_pillows(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a" / "x.png", size=(10, 6))
    picture(tmp_path / "b" / "x.png", size=(10, 6))
    plain = torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    assert torch.equal(first(tmp_path, crop=4), plain[:, 3:7, 1:5])
    small = np.asarray(Image.fromarray(pixels).resize((3, 5), Image.Resampling.BILINEAR))
    expected = small.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    assert torch.equal(first(tmp_path, resize=3), torch.from_numpy(expected))


@pytest.mark.parametrize(
    "options",
    [
        *({"resize": 0}, {"resize": "big"}, {"crop": (3,)}, {"crop": 2.5}, {"channels": 4}),
        *({"crop": 10**5000}, {"resize": (3, 10**5000)}),
    ],
)
def test_impossible_sizes_are_refused(photos: Path, options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="write"):
        load(photos, **options)  # type: ignore[arg-type]


# What cannot be read


def test_a_damaged_image_is_named(photos: Path) -> None:
    path = photos / "dog" / "2.png"
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[:40], whole[:-40]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"dog/2\.png cannot be read as an image"):
            load(photos)
    path.unlink()
    path.symlink_to("nowhere.png")
    with pytest.raises(DataError, match=r"dog/2\.png cannot be read"):
        load(photos)


def test_an_image_that_changed_meanwhile_is_noticed(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_AT_ONCE", 0)
    data = load(photos)
    picture(photos / "owl" / "3.png", size=(8, 8))
    with pytest.raises(DataError, match=r"owl/3\.png has changed"):
        _ = data.images


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / name / "x.tif")
    with pytest.raises(DataError, match="floating point"):
        load(tmp_path)


def test_folders_without_classes_say_how_to_arrange_them(tmp_path: Path, photos: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"empty is empty: .*cat/1\.png"):
        load(empty)
    picture(empty / "7.png")
    with pytest.raises(DataError, match=r"holds images itself.*empty/cat/7\.png"):
        load(empty)
    (photos / "stray").mkdir()
    with pytest.raises(DataError, match=r"stray holds no images.*classes\.txt"):
        load(photos)
    with pytest.raises(DataError, match=r"only one class folder, 'photos'.*pass .*photos"):
        bare = tmp_path / "bare"
        bare.mkdir()
        photos.rename(bare / "photos")
        load(bare)
    (tmp_path / "none" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="folders without images"):
        load(tmp_path / "none")
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    (batches / "test_batch").write_bytes(b"")
    with pytest.raises(DataError, match=f"cifar10, set BESIEGE_DATA={tmp_path}"):
        load(batches)
    whole = tmp_path / "root"
    whole.mkdir()
    batches.rename(whole / batches.name)
    with pytest.raises(DataError, match=f"cifar10, set BESIEGE_DATA={whole}"):
        load(whole)


def test_paths_that_lead_nowhere_say_what_is_near(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"fotos does not exist: did you mean 'photos'"):
        load(photos.parent / "fotos")
    with pytest.raises(DataError, match="neither does"):
        load("./not/there")
    with pytest.raises(DataError, match="check the path"):
        load(str(photos / "zzzzzz.npz"))
    monkeypatch.chdir(photos.parent)
    with pytest.raises(UnknownNameError, match=r"'photo'.*'photos'"):
        load("photo")
    with pytest.raises(UnknownNameError, match="fashion-mnist"):
        load("fashion")
    for nothing in ("", "a" * 5000, "\0"):
        with pytest.raises((InputError, UnknownNameError)):
            load(nothing)
    with pytest.raises(InputError, match=r"readme\.txt is a file"):
        load(photos / "readme.txt")
    with pytest.raises(InputError, match="1 to 12"):
        load(photos, count=13)
    for wrong in (None, 3, (1, 2, 3), torch.zeros(2, 1, 2, 2)):
        with pytest.raises(InputError, match="cannot be read from"):
            load(wrong)
    with pytest.raises(InputError, match="resize is for folders"):
        load("digits", resize=3)
    with pytest.raises(InputError, match="layout is for arrays"):
        load(photos, layout="nchw")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_says_so(photos: Path) -> None:
    photos.chmod(0)
    try:
        with pytest.raises(DataError, match="rights"):
            load(photos)
    finally:
        photos.chmod(0o700)


def test_a_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        picture(tmp_path / "digits" / name / "x.png")
    monkeypatch.chdir(tmp_path)
    assert len(load("digits")) == 397
    assert len(load("./digits")) == 2
