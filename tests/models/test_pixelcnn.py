"""PixelCNN and autoencoder: no value depends on itself or a later one; shapes; what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from besiege.core.errors import InputError
from besiege.models import ARCHITECTURES, load
from besiege.models.pixelcnn import PixelCNN, pixelcnn
from besiege.models.sources import load_network
from besiege.training import fresh

SHAPE = (3, 5, 6)


def net(levels: int = 9, blocks: int = 3, channels: int = 3) -> PixelCNN:
    """A small network with weights that let every value matter."""
    made = fresh(lambda: pixelcnn(levels, 8, blocks, channels)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.0)
    return made


def images(rows: int = 2, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(1))


def order(channel: int, i: int, j: int, shape: tuple[int, int, int] = SHAPE) -> int:
    """The number of a value in raster order, channels of a pixel one after the other."""
    return (i * shape[2] + j) * shape[0] + channel


PLACES = [(0, 0, 0), (1, 0, 0), (2, 0, 5), (0, 1, 0), (1, 2, 3), (2, 2, 3), (0, 4, 5), (2, 4, 5)]


@pytest.mark.parametrize("place", PLACES)
def test_a_value_changes_only_the_logits_of_later_values(place: tuple[int, int, int]) -> None:
    network, x = net(), images()
    other = x.clone()
    other[(slice(None), *place)] = (x[(slice(None), *place)] + 0.5) % 1.0
    with torch.no_grad():
        change = (network(x) - network(other)).abs().amax((0, 2))
    for channel in range(SHAPE[0]):
        for i in range(SHAPE[1]):
            for j in range(SHAPE[2]):
                if order(channel, i, j) <= order(*place):
                    assert float(change[channel, i, j]) == 0, (channel, i, j)
    # The next channel of the pixel, or the next pixel of the row, sees it.
    later = order(*place) + 1
    if later % (SHAPE[0] * SHAPE[2]):
        pixel, channel = divmod(later, SHAPE[0])
        assert float(change[(channel, *divmod(pixel, SHAPE[2]))]) > 0


@pytest.mark.parametrize("place", PLACES)
def test_the_gradient_of_a_value_reaches_earlier_values_only(place: tuple[int, int, int]) -> None:
    network, x = net(), images().requires_grad_(True)
    channel, i, j = place
    (slope,) = torch.autograd.grad(network(x)[:, channel, :, i, j].square().sum(), x)
    reached = {tuple(at) for at in (slope.abs().sum(0) > 0).nonzero().tolist()}
    assert all(order(*at) < order(*place) for at in reached)
    # Three blocks see four rows above and five pixels to the left: no blind spot among them.
    for row in range(max(0, i - 4), i + 1):
        for column in range(SHAPE[2]):
            aside = abs(column - j) <= 1 if row < i else j - 5 <= column < j
            assert not aside or (0, row, column) in reached, (row, column)
    assert all((c, i, j) in reached for c in range(channel))


@pytest.mark.parametrize("channels", [1, 3])
def test_visiting_gives_the_logits_of_a_forward_pass(channels: int) -> None:
    network, x = net(channels=channels), images(3, (channels, 7, 5))
    x = (x * 8).round() / 8
    seen = torch.zeros(3, channels, 9, 7, 5)

    def choose(logits: Tensor, channel: int, i: int, j: int) -> Tensor:
        seen[:, channel, :, i, j] = logits
        return x[:, channel, i, j]

    network.visit(3, 7, 5, choose)
    with torch.no_grad():
        torch.testing.assert_close(seen, network(x), rtol=1e-5, atol=1e-5)


def test_visiting_passes_every_value_once_and_in_order() -> None:
    met: list[int] = []

    def choose(logits: Tensor, channel: int, i: int, j: int) -> Tensor:
        met.append(order(channel, i, j))
        return torch.zeros(len(logits))

    net().visit(2, *SHAPE[1:], choose)
    assert met == list(range(SHAPE[0] * SHAPE[1] * SHAPE[2]))


def test_values_are_seen_as_levels() -> None:
    network = net(levels=5)
    x = torch.randint(5, (2, *SHAPE), generator=torch.Generator().manual_seed(0)) / 4
    with torch.no_grad():
        assert torch.equal(network(x), network((x + 0.1 * (x < 1)).clamp(0, 1)))
        assert not torch.equal(network(x), network((x + 0.2).clamp(0, 1)))


def test_the_default_has_0_6_million_parameters() -> None:
    count = sum(p.numel() for p in ARCHITECTURES["pixelcnn"]().parameters())
    assert 0.55e6 < count < 0.65e6


@pytest.mark.parametrize("size", [8, 28, 32, 7])
@pytest.mark.parametrize("pool", [True, False])
def test_an_autoencoder_makes_images_of_the_same_shape(size: int, pool: bool) -> None:
    module = ARCHITECTURES["autoencoder"](pool=pool, in_channels=2).eval()
    with torch.no_grad():
        made = module(torch.rand(3, 2, size, size))
    assert made.shape == (3, 2, size, size) and 0 <= float(made.min()) <= float(made.max()) <= 1
    assert sum(v.ndim == 4 for v in module.state_dict().values()) == (5 if pool else 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pixelcnn(levels=1), "levels is 1"),
        (lambda: pixelcnn(blocks=0), "blocks is 0"),
        (lambda: pixelcnn(width=2.5), "width is 2.5"),  # type: ignore[arg-type]  # a user's mistake
        (lambda: ARCHITECTURES["autoencoder"](width=0), "width is 0"),
    ],
)
def test_sizes_that_make_no_network_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("text", "layer"),
    [("zoo:digits-pixelcnn", "pixeldefend"), ("zoo:digits-autoencoder", "reform")],
)
def test_the_network_of_a_layer_is_no_model(text: str, layer: str) -> None:
    from besiege.defenses import load as load_defended

    for read in (load, load_defended):
        with pytest.raises(InputError, match=rf"no classifier.*\+{layer}\('{text}'\)"):
            read(text)
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        assert load_network(text).answer(x).shape[-2:] == x.shape[-2:]
