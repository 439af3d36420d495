"""An earlier run to compare with: which evaluation it is, and what differs where none fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import besiege
from besiege.bench.baseline import Baseline, plans_of
from besiege.bench.results import summarise
from besiege.core.errors import InputError

ASK: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "count": 30, "curve": False}
MODELS = ("zoo:digits-natural", "zoo:digits-pgd-at")


def measured(out: Path, model: Any = MODELS[0], data: Any = "digits", **changes: Any) -> Baseline:
    besiege.evaluate(model, data, out=out, **{**ASK, **changes})
    return Baseline.of(out)


def test_the_difference_is_that_of_the_same_samples(tmp_path: Path) -> None:
    natural, trained = (
        besiege.evaluate(model, "digits", out=tmp_path / model[4:], shard=shard, **ASK)
        for model, shard in zip(MODELS, (7, 30), strict=True)
    )
    gate = Baseline.of(natural.folder).gate(trained.folder, [trained.figures])
    found = gate.differences[trained.figures.name]
    stood = {one.folder: one.by_sample["fate"] == "standing" for one in (natural, trained)}
    assert np.array_equal(natural.by_sample["sample"], trained.by_sample["sample"])
    gained = (stood[trained.folder] & ~stood[natural.folder]).sum()
    lost = (stood[natural.folder] & ~stood[trained.folder]).sum()
    assert (found.only_first, found.only_second, found.count) == (gained, lost, 30)
    assert found.value > 0 and gained > lost
    assert gate.check == f"not-worse-than {natural.folder}"


def test_an_evaluation_that_is_not_complete_has_no_difference(tmp_path: Path) -> None:
    baseline = measured(tmp_path / "old")
    found = besiege.evaluate(MODELS[1], "digits", out=tmp_path / "new", **ASK)
    for path in (tmp_path / "new" / "records").iterdir():
        if '"judge"' in (path / "record.json").read_text():
            (path / "record.json").unlink()
    figures = summarise(found.folder).evaluations
    assert not figures[0].complete and plans_of(found.folder, figures) == {}
    assert baseline.gate(found.folder, figures).differences == {}
    with pytest.raises(InputError, match=r"no evaluation of .*new is complete: run its command"):
        Baseline.of(found.folder)


def test_what_distinguishes_the_samples_is_named(tmp_path: Path) -> None:
    class Signed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = besiege.models.load(MODELS[0]).module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.inner((x + 1) / 2)
            return logits

    old = measured(tmp_path / "old")
    wide = besiege.Classifier(Signed(), box=(-1.0, 1.0))
    other = measured(tmp_path / "box", wide).plans[0]
    with pytest.raises(InputError, match=r"range of pixels \(0.0, 1.0\) there and \(-1.0, 1.0\)"):
        old.counterpart(other)
    few = besiege.data.load("digits", count=30)
    changed = few.images.clone()
    changed[0, 0, 0, 0] = 1 - changed[0, 0, 0, 0]
    pairs = [
        measured(tmp_path / name, data=(images, few.labels), count=None)
        for name, images in (("a", few.images), ("b", changed))
    ]
    with pytest.raises(InputError, match="the same names and numbers, but other images or labels"):
        pairs[0].counterpart(pairs[1].plans[0])


def test_images_that_are_decoded_when_needed_need_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    few = besiege.data.load("digits", count=8)
    for number, (image, label) in enumerate(zip(few.images, few.labels, strict=True)):
        folder = tmp_path / "pictures" / f"class {int(label)}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image[0]).round().byte().numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    ask: dict[str, Any] = {"data": str(tmp_path / "pictures"), "count": None}
    old = measured(tmp_path / "old", shard=3, **ask)
    other = measured(tmp_path / "other", MODELS[1], shard=4, **ask).plans[0]
    assert old.counterpart(other) == old.plans[0]
    monkeypatch.setattr("besiege.data.folders._AT_ONCE", 0)
    old = measured(tmp_path / "lazy", shard=3, **ask)
    same = measured(tmp_path / "same", MODELS[1], shard=3, **ask).plans[0]
    assert old.counterpart(same) == old.plans[0]
    other = measured(tmp_path / "others", MODELS[1], shard=4, **ask).plans[0]
    with pytest.raises(InputError, match="3 images per record there and 4 here"):
        old.counterpart(other)


def test_of_two_ways_of_attacking_the_same_one_is_compared(tmp_path: Path) -> None:
    measured(tmp_path / "old", attacks="fgsm")
    old = measured(tmp_path / "old", attacks="bim(steps=2)")
    assert len(old.plans) == 2
    new = measured(tmp_path / "new", MODELS[1], attacks="fgsm", threat="linf:1/10").plans[0]
    assert old.counterpart(new).attacks[0].text == new.attacks[0].text
    in_turn = measured(tmp_path / "turn", attacks=None, suite="fgsm, bim(steps=2)").plans[0]
    with pytest.raises(InputError, match=r"not by fgsm, bim\(steps=2\), one after the other"):
        old.counterpart(in_turn)
