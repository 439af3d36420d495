from __future__ import annotations

import base64
import io
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.report.sample import item, pictures

from besiege.core.errors import DataError
from besiege.metrics.values import Picture
from besiege.report.pictures import encoded, gallery, magnification


def decoded(address: str) -> NDArray[np.uint8]:
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 1, 64), (3, 28, 20)])
def test_clean_and_adversarial_decode_to_the_very_pixels(shape: tuple[int, int, int]) -> None:
    given = item(3)
    clean, adversarial = pictures(given, shape)
    (shown,) = gallery([given], partial(pictures, shape=shape))
    for address, image in ((shown.clean, clean), (shown.adversarial, adversarial)):
        expected = np.rint(image * 255).astype(np.uint8)
        expected = expected[0] if len(expected) == 1 else expected.transpose(1, 2, 0)
        assert np.array_equal(decoded(address), expected)
    assert (shown.height, shown.width) == shape[1:]


def test_the_change_is_magnified_around_mid_grey_by_the_factor_it_states() -> None:
    given = item(3)
    clean, adversarial = pictures(given)
    (shown,) = gallery([given], pictures)
    assert shown.times == 4  # a tenth, four times, is short of full contrast
    expected = np.rint(255 * (0.5 + 4 * (adversarial - clean)))[0].clip(0, 255)
    assert np.array_equal(decoded(shown.change), expected.astype(np.uint8))
    assert decoded(shown.change)[clean[0] == adversarial[0]].tolist() in ([], [128] * 64)


def test_no_change_is_grey_and_a_vast_one_is_not_magnified() -> None:
    assert magnification(np.zeros((1, 4, 4), np.float32)) == 1
    assert magnification(np.ones((1, 4, 4), np.float32)) == 1
    same = np.full((1, 4, 4), 0.3, np.float32)
    (shown,) = gallery([item(0)], lambda _: (same, same))
    assert np.all(decoded(shown.change) == 128)


def test_a_box_other_than_the_unit_one_is_mapped_to_it() -> None:
    clean = np.array([[[-1.0, 0.0, 1.0]]], np.float32)
    (shown,) = gallery([item(0)], lambda _: (clean, clean), box=(-1.0, 1.0))
    assert decoded(shown.clean).tolist() == [[0, 128, 255]]


def test_other_numbers_of_channels_are_averaged() -> None:
    clean = np.stack([np.zeros((4, 4)), np.ones((4, 4))]).astype(np.float32)
    (shown,) = gallery([item(0)], lambda _: (clean, clean))
    assert np.all(decoded(shown.clean) == 128)


def test_values_outside_the_box_are_clipped_not_wrapped() -> None:
    assert decoded(encoded(np.array([[[-0.2, 1.2]]], np.float32))).tolist() == [[0, 255]]


def test_a_large_gallery_is_shown_smaller_and_says_so() -> None:
    items = [item(k) for k in range(24)]
    made = gallery(items, partial(pictures, shape=(3, 224, 224)), room=2_000_000)
    assert made[0].reduced > 1
    assert sum(len(m.clean) + len(m.change) + len(m.adversarial) for m in made) <= 2_000_000
    clean, _ = pictures(items[0], (3, 224, 224))
    factor = made[0].reduced
    block = clean[:, :factor, :factor].mean(axis=(1, 2)) * 255
    assert np.abs(decoded(made[0].clean)[0, 0] - block).max() <= 0.51


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_shown() -> None:
    def some(given: Picture) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if given.sample == 1:
            raise DataError("images.safetensors is truncated")
        return pictures(given)

    first, second = gallery([item(0), item(1)], some)
    assert first.clean and not first.missing
    assert second.missing == "DataError: images.safetensors is truncated"


@pytest.mark.parametrize(
    ("width", "height", "style", "fine"),
    [
        (8, 8, "--wide:128px;--ratio:128/128;--across:8px", False),
        (28, 28, "--wide:112px;--ratio:112/112;--across:28px", False),
        (224, 224, "--wide:128px;--ratio:128/128;--across:224px", True),
        (64, 1, "--wide:128px;--ratio:128/16;--across:64px", False),
    ],
)
def test_pictures_are_shown_at_a_sensible_size(
    width: int, height: int, style: str, fine: bool
) -> None:
    image = np.zeros((1, height, width), np.float32)
    (shown,) = gallery([item(0)], lambda _: (image, image))
    assert shown.size == style and shown.fine is fine
