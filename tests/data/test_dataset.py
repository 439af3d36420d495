from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from besiege.core.errors import InputError
from besiege.data import Data, Pixels, load


@dataclass(frozen=True)
class Drawn:
    """Undecoded images that note which of them were decoded."""

    rows: tuple[int, ...]
    seen: list[int] = field(default_factory=list)
    shape: tuple[int, int, int] = (1, 2, 2)

    def at(self, rows: Sequence[int]) -> Drawn:
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def decode(self) -> Tensor:
        self.seen.extend(self.rows)
        return torch.tensor(self.rows).float().view(-1, 1, 1, 1).expand(-1, *self.shape) / 1000


def both(rows: int) -> tuple[Data, Data, list[int]]:
    """The same samples in memory and undecoded, and what is noted of the second."""
    pixels = Drawn(tuple(range(rows)))
    fields = {
        "name": "drawn",
        "split": "all",
        "labels": torch.arange(rows) % 3,
        "ids": torch.arange(rows) * 7,
        "classes": 3,
        "class_names": ("a", "b", "c"),
    }
    eager = Data(images=Drawn(pixels.rows).decode().contiguous(), **fields)  # type: ignore[arg-type]
    return eager, Data.lazy(pixels, **fields), pixels.seen


def test_undecoded_samples_are_the_same_samples() -> None:
    eager, lazy, seen = both(600)
    assert repr(lazy) == repr(eager) == "Data('drawn', 'all', 600 images 1x2x2)"
    assert lazy.shape == eager.shape and len(lazy) == 600
    assert seen == []
    assert lazy.digest == eager.digest
    assert "images" not in vars(lazy), "a digest streams"
    assert torch.equal(lazy.images, eager.images)
    assert lazy.decoded and eager.decoded
    assert lazy.images is lazy.images


def test_only_what_is_looked_at_is_decoded() -> None:
    eager, lazy, seen = both(50)
    some = lazy.subset(10, seed=3).take([4, 2])
    assert seen == []
    expected = eager.subset(10, seed=3).take([4, 2])
    assert some.ids.tolist() == expected.ids.tolist()
    assert torch.equal(some.images, expected.images)
    assert seen == [int(number) // 7 for number in some.ids]
    assert not lazy.decoded


def test_shards_are_in_order_and_decoded_one_by_one() -> None:
    eager, lazy, seen = both(10)
    shards = lazy.shards(4)
    first = next(shards)
    _ = first.images
    assert seen == [0, 1, 2, 3]
    rest = list(shards)
    assert [len(shard) for shard in (first, *rest)] == [4, 4, 2]
    assert torch.cat([shard.images for shard in (first, *rest)]).equal(eager.images)
    assert [s.digest for s in lazy.shards(4)] == [s.digest for s in eager.shards(4)]
    with pytest.raises(InputError, match="whole number from 1"):
        eager.shards(0)


def test_undecoded_samples_travel_undecoded() -> None:
    eager, lazy, _ = both(5)
    there = pickle.loads(pickle.dumps(lazy))
    assert not there.decoded
    assert there.digest == eager.digest
    with pytest.raises(AttributeError, match="imagess"):
        there.imagess


def test_a_choice_says_what_it_was_chosen_from() -> None:
    eager, lazy, _ = both(20)
    for data in (eager, lazy):
        assert (data.total, data.chosen_by) == (20, None)
        some = data.subset(6, seed=5)
        assert (some.total, some.chosen_by) == (20, 5)
        shard = next(some.shards(2))
        assert (shard.total, shard.chosen_by, len(shard)) == (20, 5, 2)
    assert (load("digits", count=50).total, load("digits", count=50).chosen_by) == (397, 0)
    assert load(load("digits"), count=50, seed=2).digest == load("digits", count=50, seed=2).digest


def test_rows_may_be_a_mask_and_must_exist() -> None:
    data, _, _ = both(6)
    mask = data.labels == 1
    assert data.take(mask).ids.tolist() == data.ids[mask].tolist()
    assert data.take([-1]).ids.tolist() == [35]
    assert len(data.take([])) == 0
    assert len(data.take([]).digest) == 64
    with pytest.raises(InputError, match="0 to 5"):
        data.take([6])
    with pytest.raises(InputError, match="mask has 5"):
        data.take(mask[:5])
    with pytest.raises(InputError, match="whole numbers"):
        data.subset(2.5)  # type: ignore[arg-type]


def test_pixels_is_what_undecoded_images_offer() -> None:
    pixels: Pixels = Drawn((0,))
    assert pixels.at([0]).decode().shape == (1, 1, 2, 2)


@pytest.mark.parametrize("rows", [3, "abcd", -(2**70), [0.5], None, torch.zeros(2, 2)], ids=str)
def test_what_are_no_rows_is_refused(rows: Any) -> None:
    with pytest.raises(InputError, match="whole numbers, or a mask"):
        load("digits", count=6).take(rows)


def test_numbers_beyond_64_bits_are_refused() -> None:
    data = load("digits", count=6)
    for call in (
        lambda: data.subset(10**5000),
        lambda: data.subset(2, 10**5000),
        lambda: data.shards(10**5000),
    ):
        with pytest.raises(InputError, match="far too large"):
            call()
