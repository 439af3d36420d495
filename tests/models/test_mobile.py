"""Networks for ImageNet: padding as in TensorFlow, the channels' order, the background class."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from besiege.core.errors import DataError, InputError
from besiege.models import ARCHITECTURES, CATALOGUE, Classifier, load
from besiege.models.mobile import same
from besiege.models.sizing import Sizing

NETWORKS = ("squeezenet", "mobilenet_v1", "mobilenet_v2", "efficientnet_lite0")


def made(name: str, **arguments: object) -> nn.Module:
    """A network with weights that keep the size of features, so that gradients are not tiny."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = ARCHITECTURES[name](**arguments).eval()
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight)
    return module


# Of SqueezeNet torchvision's number, of the others 4.2 M, 2.6 M, 3.5 M and 4.7 M as published.
@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("squeezenet", {}, 1_235_496),
        ("mobilenet_v1", {}, 4_231_976),
        ("mobilenet_v1", {"multiplier": 0.75}, 2_585_560),
        ("mobilenet_v2", {}, 3_489_097),
        ("efficientnet_lite0", {}, 4_652_008),
    ],
)
def test_networks_for_imagenet_have_the_published_size(
    name: str, arguments: dict[str, float], count: int
) -> None:
    module = ARCHITECTURES[name](**arguments)
    assert sum(p.numel() for p in module.parameters()) == count


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_every_pixel_of_an_image(name: str) -> None:
    x = torch.rand(1, *CATALOGUE[name].shape, generator=torch.Generator().manual_seed(0))
    x.requires_grad_(True)
    logits = made(name)(x)
    assert logits.shape == (1, 1000)
    (slope,) = torch.autograd.grad(logits.square().sum(), x)
    assert torch.isfinite(slope).all()
    assert (slope != 0).float().mean() > 0.9


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [(6, 6), (7, 7), (8, 5)])
def test_padding_is_that_of_tensorflow(kernel: int, stride: int, size: tuple[int, int]) -> None:
    x = torch.ones(1, 1, *size)
    padded = same(x, kernel, stride)
    assert functional.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=stride).shape[2:] == (
        -(-size[0] // stride),
        -(-size[1] // stride),
    )
    for side, along in zip(size, (padded[0, 0].amax(1), padded[0, 0].amax(0)), strict=True):
        # TensorFlow's own formula, with the larger half at the end.
        whole = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        first = int(along.nonzero()[0, 0])
        assert (first, len(along) - side) == (whole // 2, whole)


def test_an_even_image_is_padded_below_and_to_the_right_only() -> None:
    padded = same(torch.ones(1, 1, 4, 4), 3, 2)[0, 0]
    assert padded.shape == (5, 5)
    assert (padded[:4, :4] == 1).all() and padded[4].sum() == padded[:, 4].sum() == 0


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "efficientnet_lite0"])
def test_phone_networks_can_be_traced_for_any_size(name: str) -> None:
    """Otherwise batch norm could not be folded into the convolutions of a twin."""
    module = made(name, classes=7)
    traced = fx.symbolic_trace(module)
    for size in ((40, 40), (33, 46)):
        x = torch.rand(2, 3, *size)
        assert torch.allclose(traced(x), module(x), rtol=1e-4, atol=1e-4)


def test_the_background_is_not_among_the_answers_of_mobilenet_v2() -> None:
    module = made("mobilenet_v2", classes=5)
    logits = list(module.modules())[-1]
    assert isinstance(logits, nn.Conv2d) and logits.bias is not None
    with torch.no_grad():
        logits.weight.zero_()
        logits.bias.copy_(torch.tensor([100.0, 0, 1, 2, 3, 4]))
    assert module(torch.rand(2, 3, 32, 32)).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_squeezenet_reverses_the_channels_where_its_weights_need_it() -> None:
    plain, reversed_ = made("squeezenet"), made("squeezenet", bgr=True)
    x = torch.rand(2, 3, 64, 64)
    assert torch.equal(reversed_(x), plain(x.flip(1)))
    assert not torch.equal(reversed_(x), plain(x))


def test_images_are_cropped_in_the_middle_and_smaller_ones_refused() -> None:
    """The sizing of the public weights for ImageNet."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    victim = Classifier(net, sizing=Sizing(crop=(224, 224)))
    x = torch.rand(2, 3, 256, 300)
    assert torch.equal(victim(x), net(x[:, :, 16:240, 38:262]))
    assert torch.equal(victim(x[:, :, :224, :224]), net(x[:, :, :224, :224]))
    with pytest.raises(InputError, match="smaller than the 224x224"):
        victim(x[:, :, :200])


def test_missing_weights_are_named_with_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    file = r"weights/imagenet_mobilenet_v2_1\.0_dequant_fp16\.safetensors"
    with pytest.raises(DataError, match=rf"needs {file}: set BESIEGE_DATA"):
        load("public:imagenet_mobilenet_v2_1.0")
    monkeypatch.setenv("BESIEGE_DATA", "/nowhere")
    with pytest.raises(DataError, match=f"needs /nowhere/{file}, which does not exist"):
        load("public:imagenet_mobilenet_v2_1.0")
