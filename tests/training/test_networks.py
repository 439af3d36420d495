"""Networks of layers in the one training loop: PixelCNN by likelihood, reformers by their error."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, InputError, VictimError
from besiege.data import Data
from besiege.defenses import load
from besiege.models import ARCHITECTURES, Classifier
from besiege.training import Epoch, fit, fresh, recipe, train
from besiege.training.fitting import build
from besiege.training.loop import identify
from besiege.training.objectives import LANGUAGE, Objective, Step
from besiege.training.restoring import Likelihood, Reconstruction

TINY = "pixelcnn(levels=17, width=8, blocks=1)"


@pytest.fixture(scope="module")
def data() -> Data:
    return besiege.data.load("digits", "train", count=200)


def step_of(network: nn.Module, x: Tensor, **given: Any) -> Step:
    return Step(
        x=x,
        y=torch.zeros(len(x), dtype=torch.int64),
        crafted=x,
        ask=network,
        still=network,
        each=network,
        teacher=None,
        dice=Dice.throw(0, torch.arange(len(x))),
        epoch=1,
        network=network,
        classifies=False,
        **given,
    )


def read(text: str) -> Objective:
    made: Objective = LANGUAGE.read(text)
    return made


@pytest.mark.parametrize("box", [(0.0, 1.0), (-1.0, 3.0)])
def test_likelihood_is_a_plain_computation_in_bits_per_dimension(box: tuple[float, float]) -> None:
    network = fresh(lambda: ARCHITECTURES["pixelcnn"](levels=5, width=4, blocks=1, in_channels=2))
    x = torch.rand(3, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    low, high = box
    shown = Classifier(network, mean=low, std=high - low, box=box)
    step = step_of(network, x * (high - low) + low, box=box)
    with torch.no_grad():
        found = float(read("likelihood")(replace(step, network=shown.answer)))
        logits = network(x).double()
    bits = []
    for row in range(3):
        for channel in range(2):
            for i in range(3):
                for j in range(4):
                    level = round(4 * float(x[row, channel, i, j]))
                    odds = logits[row, channel, :, i, j].softmax(0)[level]
                    bits.append(-math.log2(float(odds)))
    assert found == pytest.approx(sum(bits) / len(bits), rel=1e-5)


def test_a_network_that_knows_nothing_needs_the_bits_of_its_levels() -> None:
    class Uniform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 1, 16, 4, 4)

    assert float(read("likelihood")(step_of(Uniform(), torch.rand(2, 1, 4, 4)))) == pytest.approx(4)


def test_reconstruction_is_the_squared_error_of_noisy_images_clipped_to_the_box() -> None:
    met: list[Tensor] = []

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            met.append(x)
            return 0.5 * x

    x = torch.rand(500, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = float(read("reconstruction(noise=0.3)")(step_of(Half(), x)))
    (noisy,) = met
    assert found == pytest.approx(float((0.5 * noisy - x).square().mean()))
    assert float(noisy.min()) >= 0 and float(noisy.max()) <= 1
    inside = (noisy > 0) & (noisy < 1) & (x > 0.4) & (x < 0.6)
    spread = float((noisy - x)[inside].std())
    # A normal deviation of 0.3, cut at half a box on each side.
    assert 0.22 < spread < 0.28
    wide = step_of(Half(), 10 * x, box=(0.0, 10.0))
    assert float(read("reconstruction(noise=0.3)")(wide)) == pytest.approx(100 * found, rel=1e-4)
    assert float(read("reconstruction(noise=0)")(step_of(Half(), x))) == pytest.approx(
        float((0.5 * x).square().mean())
    )


def test_a_guide_compares_logits_and_is_not_trained(data: Data) -> None:
    network = fresh(lambda: ARCHITECTURES["autoencoder"](), 1)
    guide = besiege.models.load("zoo:digits-natural")
    x = data.images[:6]
    step = step_of(network, x, guide=guide)
    with torch.no_grad():
        loss = read("reconstruction(noise=0, guide='zoo:digits-natural')")(step)
        wanted = (guide(network(x)) - guide(x)).abs().mean()
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    plan = recipe("reformer(epochs=3)", objective="reconstruction(guide='zoo:digits-natural')")
    before = guide.digest()
    history = train(network, data, plan)
    assert history[-1].loss < history[0].loss and guide.digest() == before


def bits(network: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float(read("likelihood")(step_of(network.eval(), x)))


def test_training_lowers_the_bits_per_dimension_of_images_it_has_not_seen(data: Data) -> None:
    victim, _ = build("pixelcnn(levels=17, width=16, blocks=2)", data)
    test = besiege.data.load("digits", count=100).images
    assert bits(victim.module, test) == pytest.approx(math.log2(17), abs=0.3)
    history = train(victim, data, "pixelcnn(epochs=20, average=0.9)")
    assert history[-1].loss < 2.6 and bits(victim.module, test) < 2.6
    assert [(epoch.accuracy, epoch.score) for epoch in history] == [(None, None)] * 20


def test_training_lowers_the_error_of_a_reformer(data: Data) -> None:
    victim, _ = build("autoencoder(width=8, pool=False)", data)
    history = train(victim, data, "reformer(epochs=25)")
    assert history[-1].loss < 0.4 * history[0].loss


@pytest.mark.parametrize(
    ("how", "arch"), [("pixelcnn(epochs=4)", TINY), ("reformer(epochs=4)", "autoencoder")]
)
def test_an_interrupted_training_ends_with_the_same_bits(
    how: str, arch: str, data: Data, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise Stop

    whole = fit(how, data, arch, tmp_path / "whole.safetensors", device="cpu")
    out = tmp_path / "parts.safetensors"
    with pytest.raises(Stop):
        fit(how, data, arch, out, device="cpu", watch=stop)
    fit(how, data, arch, out, device="cpu")
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("how", "arch", "layer"),
    [("pixelcnn", TINY, "pixeldefend"), ("reformer", "autoencoder(width=4)", "reform")],
)
def test_the_card_has_the_text_that_the_layer_takes(
    how: str, arch: str, layer: str, data: Data, tmp_path: Path
) -> None:
    out = fit(how, data, arch, tmp_path / "net.safetensors", device="cpu", epochs=1)
    card = json.loads(out.with_suffix(".json").read_text())
    assert "classes" not in card and "mean" not in card and card["epoch"]["accuracy"] is None
    victim = load(f"zoo:digits-natural+{layer}('{card['source']}')")
    assert victim(data.images[:8]).shape == (8, 10)
    # Its weights are a start, as those of a classifier are.
    fit(how, data, card["source"], tmp_path / "more.safetensors", device="cpu", epochs=1)


def test_networks_see_images_of_cifar_as_they_are() -> None:
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8)
    colour = Data("cifar10", "train", images, labels, labels, 10, tuple("0123456789"))
    victim, made = build("autoencoder", colour)
    assert victim.mean is None and victim.classes is None
    assert made == {"arch": "autoencoder", "arguments": {"in_channels": 3}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"held_out": 20}, "trains no classifier"),
        ({"attack": "pgd", "threat": "linf:0.1"}, "trains no classifier"),
        ({"layers": "bits"}, "trains no classifier"),
    ],
)
def test_recipes_that_need_a_classifier_are_refused(change: dict[str, Any], said: str) -> None:
    for name in ("pixelcnn", "reformer"):
        with pytest.raises(InputError, match=said):
            recipe(name, **change)


@pytest.mark.parametrize(
    ("how", "arch", "kind", "said"),
    [
        ("pixelcnn", "digits_cnn", InputError, "such as pixelcnn"),
        ("pixelcnn", "autoencoder", InputError, "such as pixelcnn"),
        ("reformer", "digits_cnn", InputError, "such as autoencoder"),
        ("reformer", TINY, InputError, "such as autoencoder"),
        ("natural", TINY, VictimError, "a classifier answers"),
        ("natural", "autoencoder", VictimError, "a classifier answers"),
        (
            "reformer(objective=reconstruction(guide='zoo:digits-naturl'))",
            "autoencoder",
            None,
            "did you mean",
        ),
        ("reformer(objective=reconstruction(noise=-1))", "autoencoder", None, "noise is -1"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_the_first_batch(
    how: str, arch: str, kind: type[BesiegeError] | None, said: str, data: Data
) -> None:
    victim, _ = build(arch, data)
    with pytest.raises(kind or BesiegeError, match=said):
        train(victim, data, how, watch=lambda epoch: pytest.fail("it was trained"))


def test_the_network_stands_by_itself(data: Data) -> None:
    victim, _ = build("autoencoder", data)
    from besiege.defenses import BitDepth, Defended

    with pytest.raises(InputError, match="give the network by itself"):
        train(Defended(victim, BitDepth(3)), data, "reformer")


def test_the_identity_of_a_training_holds_its_guide(data: Data, tmp_path: Path) -> None:
    victim, _ = build("autoencoder", data)
    plain, guided = (
        identify(victim, data, recipe("reformer", "digits", objective=objective), 0)
        for objective in (Reconstruction(), Reconstruction(guide="zoo:digits-natural"))
    )
    digest = besiege.models.load("zoo:digits-natural").digest()
    assert guided["other models"] == digest and "other models" not in plain


def test_every_data_set_has_its_settings() -> None:
    for data in ("", "digits", "mnist", "cifar10"):
        likelihood, reformer = (recipe(name, data or None) for name in ("pixelcnn", "reformer"))
        assert likelihood.objective == Likelihood() and likelihood.optimiser == "adam"
        noise = 0.025 if data == "cifar10" else 0.1
        assert reformer.objective == Reconstruction(noise) and not reformer.flip
    assert recipe("reformer", "mnist").epochs == 100 and recipe("reformer", "cifar10").epochs == 400
