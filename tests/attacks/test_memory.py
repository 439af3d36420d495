"""Attacks that hold many gradients, or a map of pairs, hold no more than they say."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from tests.victims import smallest
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from besiege.attacks import deepfool, jsma, planes
from besiege.attacks.attack import parse
from besiege.core.samples import Samples
from besiege.core.siege import Siege
from besiege.core.threat import L0, L2, Norm, Threat
from besiege.defenses import BitDepth, Calibration, Detected, Squeezing
from besiege.evaluation import craft
from besiege.models.classifier import Classifier
from besiege.testing.victims import digits, images_of, natural

MB = 2**20


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Counts the bytes of all tensors made while it lasts: those alive, and the most that were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                self._count(one.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        name, size = id(storage), storage.nbytes()
        if name in self._known:
            return
        self._known.add(name)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, name, size)

    def _gone(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.now -= size


def test_live_bytes_are_counted() -> None:
    with Live() as live:
        kept = torch.zeros(MB // 4)
        for _ in range(3):
            kept = kept + 1  # two at a time
        view = kept.view(2, -1)[1]
    assert (live.now, live.peak, len(view)) == (MB, 2 * MB, MB // 8)


def many_classes(classes: int, size: int, pool: int) -> Classifier:
    """A network of many classes that costs next to nothing."""
    torch.manual_seed(0)
    flat = 3 * (size // pool) ** 2
    net = nn.Sequential(nn.AvgPool2d(pool), nn.Flatten(), nn.Linear(flat, classes))
    return Classifier(net.eval(), classes=classes)


def own_labels(victim: Classifier, rows: int, size: int) -> Samples:
    images = images_of((3, size, size), rows)
    return Samples.of(images, victim(images).argmax(1))


class Request:
    """The requests for gradients of several classes: rows and classes of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, int]] = []
        ask = Siege.gradients

        def spied(siege: Siege, x: Tensor, classes: Tensor, **given: Any) -> Any:
            self.shapes.append((len(x), classes.shape[1]))
            return ask(siege, x, classes, **given)

        monkeypatch.setattr(Siege, "gradients", spied)


@pytest.mark.parametrize(
    ("name", "rows", "size", "pool", "pieces"),
    [
        ("deepfool", 180, 8, 4, [(174, 1000), (6, 1000)]),  # all classes, some rows at a time
        pytest.param(
            *("deepfool", 10, 64, 32),
            [(8, 341), (8, 341), (8, 318), (2, 341), (2, 341), (2, 318)],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("superdeepfool", 8, 64, 32, [(8, 341), (8, 341), (8, 318)]), marks=pytest.mark.slow
        ),
        # At once they would be 602 MB for one image, and several times that with what is done.
        pytest.param(*("deepfool", 1, 224, 112), [(1, 27)] * 37 + [(1, 1)], marks=pytest.mark.slow),
    ],
)
def test_gradients_of_a_thousand_classes_are_asked_in_pieces(
    name: str,
    rows: int,
    size: int,
    pool: int,
    pieces: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim = many_classes(1000, size, pool)
    samples = own_labels(victim, rows, size)
    asked = Request(monkeypatch)
    rounds = ", rounds=1" if name == "superdeepfool" else ""
    attack = parse(f"{name}(steps=1, classes=1000, search=0{rounds})")
    with Live() as live:
        found = smallest(victim, attack, samples, L2)
    assert asked.shapes == pieces
    assert all(n * c * 3 * size**2 <= planes.ENTRIES for n, c in asked.shapes)
    # Every class is read once, for one backward; every piece of them costs one forward.
    more = 0 if name == "deepfool" else 1  # the one round
    assert bool((found.backwards == 1000 + more).all())
    assert bool((found.forwards - pieces.count(pieces[0]) - 1 <= 3 + more).all())
    # Gradients are 128 MB at most, and what is done with them takes a few times that.
    assert live.peak < 4 * 4 * planes.ENTRIES


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_classes_read_in_pieces_lead_to_the_same_points(
    norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, samples = natural(), digits(20)
    attack = parse("deepfool(search=0)")
    whole = smallest(victim, attack, samples, Norm(norm))
    monkeypatch.setattr(deepfool, "ENTRIES", 3 * deepfool.ROWS * 64)  # three classes at a time
    asked = Request(monkeypatch)
    parts = smallest(victim, attack, samples, Norm(norm))
    assert {c for _, c in asked.shapes} == {3, 1}, "3, 3, 3 and the last"
    assert torch.equal(parts.images, whole.images)
    assert torch.equal(parts.backwards, whole.backwards)
    assert bool((parts.forwards > whole.forwards)[whole.backwards > 0].all())
    few = torch.tensor([3, 11])
    alone = smallest(victim, attack, samples.at(few), Norm(norm))
    assert torch.equal(alone.images, parts.images[few])
    assert torch.equal(alone.forwards, parts.forwards[few]), "what it costs is each row's own"


def test_rows_that_run_out_of_queries_between_two_pieces_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deepfool, "ENTRIES", 3 * deepfool.ROWS * 64)
    victim, samples = natural(), digits(20)
    for queries in (2, 3, 4, 5, 6):
        found = craft(victim, parse("deepfool"), samples, Threat.parse("l2"), queries=queries)
        assert bool((found.queries <= queries).all())


def test_the_map_of_pairs_of_a_large_image_stays_below_its_limit() -> None:
    """The worst case: no move surpasses another, so that every one may be in the best pair."""
    entries = 3 * 224 * 224
    rise = torch.linspace(2.0, 0.1, 2 * entries).repeat(3, 1)
    with Live() as live:
        found, pair = jsma.best_pair(rise, rise.flip(1), entries)
    assert found.all() and pair.shape == (3, 2)
    assert jsma.BYTES == 512 * MB
    # Beside the map there are a few tensors of the size of the input, 7 MB each.
    assert jsma.BYTES / 2 < live.peak < jsma.BYTES + 100 * MB


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_share_a_map_as_far_as_it_holds_them(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsma, "BYTES", 4 * MB)
    sizes: list[int] = []
    ask = jsma._best_of

    def spied(rise: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        with Live() as live:
            found = ask(rise, *rest)
        sizes.append(len(rise))
        assert live.peak <= 4 * MB
        return found

    monkeypatch.setattr(jsma, "_best_of", spied)
    rise = torch.linspace(2.0, 0.1, 200).repeat(rows, 1)
    found, pair = jsma.best_pair(rise, rise.flip(1), 200)
    assert found.all() and len(pair) == rows == sum(sizes)
    assert sizes == ([1] if rows == 1 else [6] * 6 + [4])


def test_jsma_on_large_images_keeps_its_map_small(monkeypatch: pytest.MonkeyPatch) -> None:
    maps: list[int] = []
    ask = jsma._best_of

    def spied(rise: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        maps.append(len(rise) * rise.shape[1] ** 2 * 4 * jsma.COPIES)
        return ask(rise, *rest)

    monkeypatch.setattr(jsma, "_best_of", spied)
    victim = many_classes(10, 224, 16)
    samples = own_labels(victim, 2, 224)
    attack = jsma.JSMA(gamma=4.5 / (3 * 224**2), targets=3)  # two pairs
    with Live() as live:
        smallest(victim, attack, samples, L0)
    assert maps and max(maps) <= jsma.BYTES
    assert live.peak < jsma.BYTES


def test_beam_searches_pixel_values_of_some_rows_at_a_time() -> None:
    bare = many_classes(10, 32, 16)
    victim = Detected(bare, Squeezing((BitDepth(3),)), Calibration(1e-4))
    attack, peaks = parse("beam(steps=6, climb=1)"), []
    for rows in (32, 64):
        samples = own_labels(bare, rows, 32)
        with Live() as live:
            craft(victim, attack, samples, Threat.parse("linf:8/255"))
        peaks.append(live.peak / (4 * 3 * 32**2))
    # A further row has its cells, as whole numbers; searched at once, it was 107 images.
    assert (peaks[1] - peaks[0]) / 32 < 40
