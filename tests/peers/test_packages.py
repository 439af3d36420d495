"""Models of the real torchvision, timm, transformers and robustbench, with their own transforms.

Networks have random weights, so that nothing is fetched; their logits are still those of the
package's own transform, to 1e-5.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.models import Classifier, load
from besiege.models.preprocessing import of_processor

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

SIZES = ((224, 224), (200, 301), (331, 250), (40, 30))
TORCHVISION = ("resnet18", "convnext_tiny", "swin_t", "regnet_y_400mf", "convnext_small")
TIMM = (
    "resnetv2_50x1_bit.goog_in21k_ft_in1k",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "xcit_nano_12_p16_224",
    "deit_tiny_patch16_224",
)


def installed(name: str) -> Any:
    """A package; torchvision's wheel for CUDA lacks compiled operators beside a CPU torch.

    They are for detection only, and declaring them lets it be imported.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in ("nms", "qnms"):
            with suppress(RuntimeError):  # it is there
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                if not hasattr(torch.ops.torchvision, operator):
                    torch.library.define(f"torchvision::{operator}", signature)
        if not hasattr(sys.modules.get("torchvision"), "__path__"):
            sys.modules.pop("torchvision", None)  # a stand-in of benchmarks/peers.py
        try:
            return import_module(name)
        except Exception as problem:
            pytest.skip(f"{name} does not import here: {problem}")


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def must_agree(victim: Classifier, original: nn.Module, own: Callable[[Tensor], Tensor]) -> None:
    """Logits to 1e-5, for images of several sizes, and a gradient."""
    draw = torch.Generator().manual_seed(1)
    for height, width in SIZES:
        x = torch.rand(2, 3, height, width, generator=draw).requires_grad_(True)
        with torch.no_grad():
            expected = original(own(x))
            expected = getattr(expected, "logits", expected)
        logits = victim(x)
        scale = float(expected.abs().max())
        assert scale > 1e-3, "these logits would agree whatever the images were"
        difference = float((logits - expected).abs().max())
        assert difference <= 1e-5 * max(1.0, scale) and difference <= 1e-3 * scale
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), x)
        assert bool(torch.isfinite(gradient).all()) and bool((gradient != 0).any())


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    models = installed("torchvision").models
    original = seeded(lambda: models.get_model(name, weights=None))
    own = models.get_model_weights(name).DEFAULT.transforms()
    victim = load(f"torchvision:{name}(weights=None, resize=always)")
    must_agree(victim, original, own)
    assert victim.digest() == load(f"torchvision:{name}(weights=None, resize=always)").digest()


def test_torchvisions_other_weights_have_their_own_transform() -> None:
    models = installed("torchvision").models
    for weights in models.ResNet50_Weights:
        with pytest.raises(DataError, match=r"resnet50-\w+\.pth, and BESIEGE_OFFLINE"):
            load(f"torchvision:resnet50(weights={weights.name})")
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        load("torchvision:resnt50")
    with pytest.raises(UnknownNameError, match="no classifier called 'fcn_resnet50'"):
        load("torchvision:fcn_resnet50")


def test_every_classifier_of_torchvision_has_a_transform_that_is_read() -> None:
    from besiege.models.preprocessing import of_preset

    models = installed("torchvision").models
    for name in models.list_models(module=models):
        for weights in models.get_model_weights(name):
            assert of_preset(weights.transforms(), name).sizing is not None


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    installed("torchvision")
    timm = installed("timm")
    original = seeded(lambda: timm.create_model(name))
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(original))
    must_agree(load(f"timm:{name}(weights=None, resize=always)"), original, own)


def test_timm_names_and_its_cache() -> None:
    installed("torchvision")
    installed("timm")
    with pytest.raises(UnknownNameError, match=r"did you mean 'resnet50\.a1_in1k'"):
        load("timm:resnet50.a1_in2k")
    for name in ("resnet50.a1_in1k", "hf-hub:timm/no_such_model"):
        with pytest.raises(DataError, match="not in the cache of timm, and BESIEGE_OFFLINE"):
            load(f"timm:{name}")


TINY: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 7}
HUGGING_FACE: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "ViT": (
        {"hidden_size": 32, "intermediate_size": 64, "image_size": 32, "patch_size": 8, **TINY},
        "ViTImageProcessor",
        {"size": {"height": 32, "width": 32}},
    ),
    "Dinov2": (
        {"hidden_size": 32, "image_size": 32, "patch_size": 8, **TINY},
        "BitImageProcessor",
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
    ),
    "ConvNext": (
        {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 7},
        "ConvNextImageProcessor",
        {"size": {"shortest_edge": 64}},
    ),
    "ResNet": (
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1, 1, 1, 1],
            "layer_type": "basic",
            "num_labels": 7,
        },
        "ConvNextImageProcessor",
        {"size": {"shortest_edge": 384}},
    ),
}


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_face(kind: str, tmp_path: Path) -> None:
    installed("torchvision")
    transformers = installed("transformers")
    about, processor, sizes = HUGGING_FACE[kind]
    config = getattr(transformers, f"{kind}Config")(**about)
    original = seeded(lambda: getattr(transformers, f"{kind}ForImageClassification")(config))
    own = getattr(transformers, processor)(**sizes)
    if not hasattr(own, "backend"):
        pytest.skip("this version rounds to bytes")
    parts: tuple[Any, Any] = (original, own)
    for part in parts:
        part.save_pretrained(tmp_path / "repository")
    victim = load(f"hf:{tmp_path}/repository(resize=always)")
    must_agree(victim, original, lambda x: own(255 * x, return_tensors="pt")["pixel_values"])
    (tmp_path / "repository").rename(tmp_path / "moved")
    assert load(f"hf:{tmp_path}/moved(resize=always)").digest() == victim.digest()
    # The model itself is a victim as well, without its processor.
    x = torch.rand(2, 3, 384, 384) if kind == "ResNet" else torch.rand(2, 3, 32, 32)
    assert Classifier(original)(x).shape == (2, 7)


def test_hugging_face_repositories_that_are_no_classifiers(tmp_path: Path) -> None:
    transformers = installed("transformers")
    small: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = transformers.BertConfig(intermediate_size=32, vocab_size=50, **small)
    transformers.BertForMaskedLM(text).save_pretrained(tmp_path / "text")
    with pytest.raises(InputError, match="is a BertForMaskedLM, not an image classifier"):
        load(f"hf:{tmp_path}/text")
    body = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **small))
    body.save_pretrained(tmp_path / "body")
    with pytest.raises(InputError, match="is a ViTModel"):
        load(f"hf:{tmp_path}/body")
    body.config.architectures = ["ViTForImageClassification"]
    body.config.save_pretrained(tmp_path / "body")
    with pytest.raises(InputError, match=r"has no weights for classifier\..*would be random"):
        load(f"hf:{tmp_path}/body")
    with pytest.raises(DataError, match="not in the cache of transformers"):
        load("hf:somebody/nothing")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        *((f"{kind}ImageProcessor", True) for kind in ("Beit", "DeiT", "PoolFormer", "CLIP")),
        *((f"{kind}ImageProcessor", True) for kind in ("Siglip", "Pvt", "MobileNetV2")),
        ("EfficientNetImageProcessor", True),
        ("MobileViTImageProcessor", False),  # swaps the channels, and pads
        ("LevitImageProcessor", False),  # has a rule of its own for the size
    ],
)
def test_processors_are_read_or_refused(name: str, read: bool) -> None:
    installed("torchvision")
    own = getattr(installed("transformers"), name)()
    if read:
        of_processor(own, name)
        return
    with pytest.raises(InputError, match="which besiege cannot put inside the model"):
        of_processor(own, name)


def test_robustbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("torchvision")
    if "autoattack" not in sys.modules:  # the same code, under the name that robustbench imports
        with suppress(ImportError):
            monkeypatch.setitem(sys.modules, "autoattack", import_module("pyautoattack"))
    zoo = installed("robustbench.model_zoo").model_dicts
    enums = import_module("robustbench.model_zoo.enums")
    entry = zoo[enums.BenchmarkDataset.cifar_10][enums.ThreatModel.Linf]["Wong2020Fast"]
    original = seeded(entry["model"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="not in the cache of robustbench"):
        load("robustbench:cifar10/Linf/Wong2020Fast")
    Path("models/cifar10/Linf").mkdir(parents=True)
    torch.save(original.state_dict(), "models/cifar10/Linf/Wong2020Fast.pt")
    victim = load("robustbench:cifar10/linf/Wong2020Fast")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(victim(x), original(x))
    with pytest.raises(UnknownNameError, match="did you mean 'Wong2020Fast'"):
        load("robustbench:cifar10/Linf/Wong2020Fst")


def test_an_evaluation_with_a_loader_and_a_datasets_pictures() -> None:
    transforms = installed("torchvision").transforms
    datasets = import_module("torchvision.datasets")
    to_tensor = transforms.Compose([transforms.Resize(64), transforms.ToTensor()])
    fake = datasets.FakeData(16, (3, 72, 80), 10, transform=to_tensor)
    loader = torch.utils.data.DataLoader(fake, batch_size=4)
    found = besiege.evaluate(
        "torchvision:mobilenet_v3_small(weights=None, num_classes=10)", loader,
        threat="linf:8/255", attacks="fgsm", curve=False, count=8,
    )  # fmt: skip
    assert found.figures.data.name == "FakeData" and found.figures.model.classes == 10
    random = transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor()])
    with pytest.raises(InputError, match="augments"):
        besiege.data.load(datasets.FakeData(16, (3, 40, 40), 10, transform=random))
    pictures = besiege.data.load(datasets.FakeData(16, (3, 40, 44), 10), resize=32, crop=32)
    assert pictures.shape == (3, 32, 32)
