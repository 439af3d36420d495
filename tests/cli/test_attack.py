"""``besiege attack``: images in, images out, and what a PNG keeps of them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from tests.cli.conftest import Besiege

import besiege
import besiege as library
from besiege.attacks import parse
from besiege.cli.crafting import _rows
from besiege.core.samples import Samples
from besiege.core.threat import Threat
from besiege.evaluation import craft, judge

MODEL = "zoo:digits-natural"


def pixels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path)))[None, None].float() / 255


def digits(folder: Path, per_class: int = 2, classes: bool = True) -> dict[str, int]:
    """Some digits as PNG files, in class folders or flat; their names and labels."""
    data = library.data.load("digits")
    names = {}
    for label in range(10):
        for number in (data.labels == label).nonzero()[:per_class, 0].tolist():
            name = f"{label}/{number}.png" if classes else f"{number}.png"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            whole = (data.images[number, 0] * 255).round().to(torch.uint8).numpy()
            Image.fromarray(whole).save(folder / name)
            names[name] = label
    return names


def test_presets_are_refused_in_other_norms_and_noted_at_other_budgets(
    besiege: Besiege, tmp_path: Path
) -> None:
    digits(tmp_path / "in", per_class=1)
    tokens = ("--images", "in", "--attack", "pgd@madry(steps=2)", "--out", "out")
    said = besiege("attack", MODEL, *tokens, "--threat", "l1:3")
    assert said.code == 2 and "published for linf:8/255, not for l1" in said.err
    said = besiege("attack", MODEL, *tokens, "--threat", "linf:0.15", "--json")
    (note,) = [one for one in json.loads(said.out)["warnings"] if one["id"] == "W44"]
    assert note["level"] == "note" and "runs at linf:0.15" in note["seen"]


# The second lies more than half-way between two grey levels: rounding must go inward.
@pytest.mark.parametrize("eps", ["0.15", "386/2550"])
def test_what_it_writes_fools_the_model_within_the_budget(
    besiege: Besiege, tmp_path: Path, eps: str
) -> None:
    names = digits(tmp_path / "in")
    before = {p: p.read_bytes() for p in (tmp_path / "in").rglob("*.png")}
    tokens = ("--images", "in", "--attack", "pgd", "--threat", f"linf:{eps}", "--out", "out")
    said = besiege("attack", MODEL, *tokens, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found == json.loads((tmp_path / "out/results.json").read_text())
    assert found["count"] == 20 and found["broken"] >= 10
    net = library.models.load(MODEL)
    most = math.floor(255 * Fraction(eps))
    survived = 0
    for line in found["images"]:
        assert line["labels"] == names[line["name"]]
        path = tmp_path / "out" / line["name"]
        assert path.exists() == line["success"] == (line["file"] is not None)
        if not line["success"]:
            continue
        change = (pixels(path) - pixels(tmp_path / "in" / line["name"])).abs().max()
        assert round(float(change) * 255) <= most
        fooled = int(net(pixels(path)).argmax()) != line["labels"]
        assert fooled == line["rounded"]
        survived += fooled
    assert survived == found["broken_after_rounding"] > 0.8 * found["broken"]
    assert {p: p.read_bytes() for p in (tmp_path / "in").rglob("*.png")} == before


def test_flat_images_get_the_models_own_labels_and_it_says_so(
    besiege: Besiege, tmp_path: Path
) -> None:
    names = digits(tmp_path / "in", 1, classes=False)
    tokens = ("--images", "in", "--attack", "pgd", "--threat", "linf:0.15")
    said = besiege("attack", MODEL, *tokens, "--out", "out")
    assert said.code == 0 and "the model's own predictions" in said.out
    net = library.models.load(MODEL)
    found = json.loads((tmp_path / "out/results.json").read_text())
    for line in found["images"]:
        assert line["labels"] == int(net(pixels(tmp_path / "in" / line["name"])).argmax())
    (tmp_path / "labels.txt").write_text("\n".join(f"{n} {y}" for n, y in names.items()))
    order = ",".join(str(names[name]) for name in sorted(names))
    for place, labels in (("a", "labels.txt"), ("b", order)):
        besiege("attack", MODEL, *tokens, "--out", place, "--labels", labels)
        found = json.loads((tmp_path / place / "results.json").read_text())
        assert {line["name"]: line["labels"] for line in found["images"]} == names


def test_one_image_to_one_class(besiege: Besiege, tmp_path: Path) -> None:
    name = next(iter(digits(tmp_path / "in", 1, classes=False)))
    tokens = ("--attack", "pgd", "--threat", "linf:0.3", "--target", "8", "--labels", "0")
    said = besiege("attack", MODEL, "--images", f"in/{name}", *tokens, "--out", "out")
    assert said.code == 0
    net = library.models.load(MODEL)
    assert int(net(pixels(tmp_path / "out" / name)).argmax()) == 8
    other = ("--attack", "pgd", "--threat", "linf:0.3 targeted:class=8", "--labels", "0")
    said = besiege("attack", MODEL, "--images", f"in/{name}", *other, "--out", "again")
    assert said.code == 0
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    said = besiege("attack", MODEL, "--images", f"in/{name}", *other, "--target", "7", "--out", "x")
    assert said.code == 2 and "disagree" in said.flat


def test_exact_images_are_exact(besiege: Besiege, tmp_path: Path) -> None:
    data = library.data.load("digits", count=12)
    np.savez(
        tmp_path / "in.npz", x=data.images.numpy(), y=data.labels.numpy(), ids=data.ids.numpy()
    )
    tokens = ("--images", "in.npz", "--attack", "pgd(steps=5)", "--threat", "l2:0.5", "--seed", "3")
    assert besiege("attack", MODEL, *tokens, "--out", "a").code == 0
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "adversarial.npz",
        "results.json",
    ]
    made = np.load(tmp_path / "a/adversarial.npz")
    same = library.attack(
        "pgd(steps=5)", MODEL, data.images, data.labels, threat="l2:0.5", seed=3, ids=data.ids
    )
    assert np.array_equal(made["x"], same.images.numpy())
    assert np.array_equal(made["success"], same.success.numpy())
    more = ("--exact", "safetensors", "--png", "--all", "--out", "b")
    besiege("attack", MODEL, *tokens, *more)
    assert np.array_equal(load_file(tmp_path / "b/adversarial.safetensors")["x"], made["x"])
    assert len(list((tmp_path / "b").glob("*.png"))) == 12


def test_arrays_without_labels(besiege: Besiege, tmp_path: Path) -> None:
    data = library.data.load("digits", count=4)
    np.savez(tmp_path / "in.npz", x=data.images.numpy())
    tokens = ("--images", "in.npz", "--attack", "fgsm", "--threat", "linf:0.1", "--out", "a")
    said = besiege("attack", MODEL, *tokens)
    assert said.code == 0 and "the model's own predictions" in said.out


def test_successes_lost_by_rounding_are_said(besiege: Besiege, tmp_path: Path) -> None:
    tokens = ("--images", "digits", "--count", "20", "--attack", "minimal(pgd(steps=10))")
    said = besiege("attack", MODEL, *tokens, "--threat", "l2", "--out", "out", "--json")
    found = json.loads(said.out)
    assert found["broken_after_rounding"] < found["broken"] == 20
    assert [w["id"] for w in found["warnings"] if w["level"] == "note"] == ["W18"]


def test_two_inputs_never_share_a_file(besiege: Besiege, tmp_path: Path) -> None:
    names = sorted(digits(tmp_path / "in", 1, classes=False))[:2]
    for name in sorted(p.name for p in (tmp_path / "in").iterdir()):
        if name not in names:
            (tmp_path / "in" / name).unlink()
    (tmp_path / "in" / names[0]).rename(tmp_path / "in/a.png")
    Image.open(tmp_path / "in" / names[1]).save(tmp_path / "in/a.bmp")
    (tmp_path / "in" / names[1]).unlink()
    tokens = ("--images", "in", "--attack", "pgd", "--threat", "linf:0.3", "--out", "out", "--all")
    assert besiege("attack", MODEL, *tokens).code == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_a_model_with_another_box_gets_images_in_it(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import besiege\n"
        "from torch import nn\n"
        "class Half(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.net = besiege.models.load('zoo:digits-natural').module\n"
        "    def forward(self, x):\n"
        "        return self.net((x + 1) / 2)\n"
        "def make():\n"
        "    return besiege.Classifier(Half(), box=(-1, 1))\n"
    )
    digits(tmp_path / "in", 1)
    tokens = ("--images", "in", "--attack", "pgd", "--out", "out")
    said = besiege("attack", "mine.py:make", *tokens, "--threat", "linf:0.3", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    net = library.models.load(MODEL)
    assert found["broken"] > 3
    for line in found["images"]:
        if line["success"]:
            path = tmp_path / "out" / line["name"]
            change = (pixels(path) - pixels(tmp_path / "in" / line["name"])).abs().max()
            assert round(float(change) * 255) <= 38
            assert (int(net(pixels(path)).argmax()) != line["labels"]) == line["rounded"]


@pytest.mark.parametrize("levels", [2, 3, 4, 6, 8])
def test_a_budget_in_grey_levels_is_counted_in_them(tmp_path: Path, levels: int) -> None:
    """8/255 written as bytes is 8 levels, whatever float32 makes of the difference."""
    images = torch.randint(0, 256, (12, 1, 8, 8), generator=torch.Generator().manual_seed(levels))
    net = besiege.Classifier(torch.nn.Sequential(torch.nn.Flatten(), Sum()))
    samples = Samples.of(images / 255, (images.flatten(1).sum(1) > 8 * 8 * 127.5).long())
    threat = Threat.parse(f"linf:{levels}/255")
    crafted = craft(net, parse("fgsm"), samples, threat)
    made = _rows(net, crafted, judge(net, crafted, samples, threat), samples, threat, 0)
    assert bool(made["success"].any())
    received = (made["received"] * 255).round()
    wrong = net(made["received"]).argmax(1) != samples.labels
    near = (received - images).flatten(1).abs().amax(1) <= levels
    assert torch.equal(made["rounded"], wrong & near)


class Sum(torch.nn.Module):
    """Two classes by the brightness of the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bright = x.sum(1) - 8 * 8 / 2
        return torch.stack((-bright, bright), 1)


def test_an_attack_that_ignores_a_defense(besiege: Besiege) -> None:
    words = ("--images", "digits", "--count", "5", "--threat", "linf:0.15")
    asked = ("--attack", "oblivious(pgd)", *words, "--out")
    said = besiege("attack", "zoo:digits-natural+bits(depth=1)", *asked, "made")
    assert said.code == 0, said.err
    summary = json.loads(Path("made/results.json").read_text())
    assert summary["attack"] == "oblivious(pgd)"
    assert [image["queries"] for image in summary["images"]] == [1] * 5
    refused = besiege("attack", "zoo:digits-natural", *asked, "not-made")
    assert refused.code == 2 and "nothing to be oblivious of" in refused.flat
