from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import besiege.data
from besiege.models import ARCHITECTURES, CATALOGUE, PUBLIC
from besiege.models.residual import BasicBlock, BiasedBlock


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


CLASSIFIERS = sorted(name for name, known in CATALOGUE.items() if known.makes == "logits")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_an_architecture_answers_a_logit_per_class_at_its_size(name: str) -> None:
    module, shape = ARCHITECTURES[name]().eval(), CATALOGUE[name].shape
    assert module(torch.rand(2, *shape)).shape == (2, 1000 if shape[1] > 200 else 10)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_an_architecture_takes_other_images_and_classes(name: str) -> None:
    given = {"in_channels": 2, "classes": 7, "size": 20, "width": 8}
    taken = set(inspect.signature(ARCHITECTURES[name]).parameters)
    module = ARCHITECTURES[name](**{k: v for k, v in given.items() if k in taken}).eval()
    assert module(torch.rand(2, 2, 20, 20)).shape == (2, 7)


def test_networks_of_layers_answer_images_or_levels_of_any_size() -> None:
    others = {name: CATALOGUE[name].makes for name in ARCHITECTURES if name not in CLASSIFIERS}
    assert others == {"autoencoder": "images", "pixelcnn": "levels"}
    for name, makes in others.items():
        for shape in (CATALOGUE[name].shape, (CATALOGUE[name].shape[0], 9, 6)):
            with torch.no_grad():
                answer = ARCHITECTURES[name]().eval()(torch.rand(2, *shape))
            levels = () if makes == "images" else (256,)
            assert answer.shape == (2, shape[0], *levels, *shape[1:])


def test_the_catalogue_says_what_every_architecture_takes() -> None:
    assert set(CATALOGUE) == set(ARCHITECTURES)
    for name, make in ARCHITECTURES.items():
        taken = inspect.signature(make).parameters.values()
        assert CATALOGUE[name].arguments == ", ".join(f"{p.name}={p.default!r}" for p in taken)
        assert make.__name__ == name and CATALOGUE[name].about and make.__doc__


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_residual_networks_have_as_many_layers_as_their_name_says(depth: int) -> None:
    keys = ARCHITECTURES[f"resnet{depth}"]().state_dict()
    assert sum(v.ndim in (2, 4) for v in keys.values()) == depth
    assert {"conv1.weight", "bn1.weight", "layer3.2.bn2.running_var", "linear.bias"} <= set(keys)


def test_the_shortcut_keeps_every_other_pixel_and_pads_channels_on_both_sides() -> None:
    block = BasicBlock(16, 32, 2).eval()
    with torch.no_grad():
        block.bn2.weight.zero_()
        block.bn2.bias.zero_()
    x = torch.rand(1, 16, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert (out[:, :8] == 0).all() and (out[:, 24:] == 0).all()


def test_a_biased_block_projects_its_shortcut_only_where_the_shape_changes() -> None:
    x = torch.rand(1, 4, 6, 6)
    same, strided, wider = BiasedBlock(4, 4, 1), BiasedBlock(4, 4, 2), BiasedBlock(4, 8, 1)
    for block in (same, strided, wider):
        with torch.no_grad():
            block.conv2.weight.zero_()
            assert block.conv2.bias is not None
            block.conv2.bias.zero_()
    assert torch.equal(same(x), x)
    assert strided(x).shape == (1, 4, 3, 3) and wider(x).shape == (1, 8, 6, 6)
    assert "shortcut.0.bias" in strided.state_dict() and len(same.shortcut) == 0


def test_deepsecs_network_has_seven_layers_of_the_published_sizes() -> None:
    module = ARCHITECTURES["deepsec_cnn"]()
    weights = [tuple(v.shape) for k, v in module.state_dict().items() if k.endswith("weight")]
    assert weights == [
        (32, 1, 3, 3),
        (32, 32, 3, 3),
        (64, 32, 3, 3),
        (64, 64, 3, 3),
        (200, 4 * 4 * 64),
        (200, 200),
        (10, 200),
    ]
    assert parameters(module) == 312_202
    # The larger images of its randomising defense reach the layers at the same size.
    assert ARCHITECTURES["deepsec_cnn"](size=31).eval()(torch.rand(1, 1, 31, 31)).shape == (1, 10)
    # Units are dropped, not channels.
    assert [type(m) for m in module.modules() if "Dropout" in type(m).__name__] == [nn.Dropout]


def test_deepsecs_network_has_other_widths_and_takes_digits() -> None:
    weights = ARCHITECTURES["deepsec_cnn"](width=8).state_dict()
    assert [len(weights[key]) for key in ("0.weight", "5.weight", "11.weight")] == [8, 16, 200]
    small = ARCHITECTURES["deepsec_cnn"](size=8)
    assert small.eval()(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    # Only where the published form does not fit.
    published = ARCHITECTURES["deepsec_cnn"](size=16)
    for module, padding in ((published, (0, 0)), (small, (1, 1))):
        convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
        assert all(part.padding == padding for part in convolutions)


def test_deepdefenses_network_has_five_layers_and_no_batch_norm() -> None:
    module = ARCHITECTURES["conv5"]()
    weights = [tuple(v.shape) for k, v in module.state_dict().items() if k.endswith("weight")]
    assert weights == [
        *((32, 3, 5, 5), (32, 32, 5, 5), (64, 32, 5, 5)),
        *((64, 4 * 4 * 64), (10, 64)),
    ]
    for size in (1, 2, 7, 8, 28):
        small = ARCHITECTURES["conv5"](in_channels=1, size=size).eval()
        assert small(torch.rand(2, 1, size, size)).shape == (2, 10)


def test_wide_residual_networks_have_the_published_size() -> None:
    assert abs(parameters(ARCHITECTURES["wide_resnet"]()) - 36.5e6) < 5e4
    # The depth counts convolutions, those of shortcuts too, and not the linear layer.
    thin = ARCHITECTURES["wide_resnet"](depth=10, widen=2)
    assert sum(v.ndim in (2, 4) for v in thin.state_dict().values()) == 10 + 1
    assert thin.eval()(torch.rand(2, 3, 8, 8)).shape == (2, 10)
    with pytest.raises(ValueError, match=r"the depth is 27.* 6n \+ 4"):
        ARCHITECTURES["wide_resnet"](depth=27)


def test_every_public_entry_is_whole() -> None:
    assert len(PUBLIC) == 26 and len({entry.sha256 for entry in PUBLIC.values()}) == 26
    for entry in PUBLIC.values():
        assert len(entry.sha256) == 64 and entry.source and entry.licence
        known = besiege.data.entry(entry.data)
        assert (entry.shape, entry.classes) == (known.shape, known.classes)
        assert (entry.crop is None) == (entry.data != "imagenet-sample")
        assert set(entry.arguments) <= set(
            inspect.signature(ARCHITECTURES[entry.architecture]).parameters
        )
