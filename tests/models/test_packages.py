"""Models of other packages: found, prepared as their package prepares them, or refused in words."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.fake_packages import NAMES, installed
from torch import nn

import besiege
from besiege.bench.answered import stamp_of
from besiege.bench.spec import Request
from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.defenses import load as load_victim
from besiege.models import Classifier, catalogue, load
from besiege.models.packages import PACKAGES

SIZES = ((16, 16), (21, 35), (40, 23), (9, 12))


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    with installed(tmp_path, *NAMES) as site:
        yield site


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Published weights, and an empty cache of torch.hub."""
    monkeypatch.setenv("FAKE_WEIGHTS", str(tmp_path / "published"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    (tmp_path / "published").mkdir()
    return tmp_path


def images(height: int = 21, width: int = 35) -> torch.Tensor:
    draw = torch.Generator().manual_seed(height * width)
    return torch.rand(4, 3, height, width, generator=draw)


def answers(module: nn.Module, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return module.eval()(x)


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def test_the_schemes_are_those_that_are_listed() -> None:
    assert tuple(PACKAGES) == catalogue.SCHEMES


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weights", ["IMAGENET1K_V1", "IMAGENET1K_V2"])
def test_torchvision_models_have_the_transform_of_their_weights(
    packages: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, weights: str, size: tuple[int, int]
) -> None:
    models = imported("torchvision.models")
    original = models.Net()
    chosen = models.Small_Weights[weights]
    torch.save(original.state_dict(), chosen.url.removeprefix("file://"))
    monkeypatch.setenv("BESIEGE_OFFLINE", "0")
    victim = load(f"torchvision:small_net(weights={weights}, resize=always)")
    x = images(*size).requires_grad_(True)
    expected = answers(original, chosen.transforms()(x))
    logits = victim(x)
    assert torch.allclose(logits, expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), x)
    assert bool((gradient != 0).any())
    assert not victim.module.training
    # An image that has the final size already was prepared before, unless the text says otherwise.
    usual = load(f"torchvision:small_net(weights={weights})")
    prepared = Classifier(original, mean=victim.mean, std=victim.std)
    wanted = prepared(x) if size == (16, 16) else expected
    assert torch.allclose(usual(x), wanted, atol=1e-5)


def test_the_default_weights_are_the_packages(
    packages: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = imported("torchvision.models")
    for seed, one in enumerate(models.Small_Weights):
        torch.manual_seed(seed)
        torch.save(models.Net().state_dict(), one.url.removeprefix("file://"))
    monkeypatch.setenv("BESIEGE_OFFLINE", "0")
    default, first, second = (
        load(f"torchvision:small_net{arguments}").digest()
        for arguments in ("", "(weights=IMAGENET1K_V1)", "(weights='IMAGENET1K_V2')")
    )
    assert default == second != first
    printed = capsys.readouterr()
    assert printed.out == "" and "a line that a package prints" in printed.err
    # Now they are in the cache, and nothing has to be fetched.
    monkeypatch.setenv("BESIEGE_OFFLINE", "1")
    assert load("torchvision:small_net").digest() == default
    always = load("torchvision:small_net(resize=always)").digest()
    never = load("torchvision:small_net(resize=never)").digest()
    assert len({default, always, never}) == 3, "the preprocessing is part of the digest"


def test_nothing_is_fetched_offline(
    packages: Path, hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = imported("torchvision.models")
    for file in ("small_v2.pth", "old.pth"):  # they could be fetched
        torch.save(models.Net().state_dict(), hub / "published" / file)
    with pytest.raises(DataError, match=r"small_v2\.pth, and BESIEGE_OFFLINE is set: unset it"):
        load("torchvision:small_net")
    assert capsys.readouterr().err == "", "nor is a download announced"
    with pytest.raises(DataError, match=r"cache/hub/checkpoints/old\.pth, and BESIEGE_OFFLINE"):
        load("timm:old_net")
    assert not list(hub.glob("cache/**/*.pth"))
    assert "HF_HUB_OFFLINE" not in os.environ
    assert torch.hub.download_url_to_file.__module__ == "torch.hub"


def test_what_cannot_be_fetched_is_one_sentence(
    packages: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESIEGE_OFFLINE", "0")
    with pytest.raises(DataError, match=r"torchvision could not fetch 'torchvision:small_net'"):
        load("torchvision:small_net")
    with pytest.raises(DataError, match=r"timm could not fetch .*no route to the hub"):
        load("timm:tiny_vit.a1_in1k")
    monkeypatch.setenv("BESIEGE_OFFLINE", "1")
    with pytest.raises(DataError, match="not in the cache of timm, and BESIEGE_OFFLINE"):
        load("timm:tiny_vit.a1_in1k")


def test_random_weights_are_those_of_a_seed(packages: Path) -> None:
    state = torch.random.get_rng_state()
    one, same, other = (
        load(f"timm:tiny_vit(weights=None{more})").digest() for more in ("", ", seed=0", ", seed=1")
    )
    assert one == same != other
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("package", ["torchvision:small_net", "timm:tiny_vit"])
def test_own_weights_have_own_preprocessing(packages: Path, tmp_path: Path, package: str) -> None:
    net = imported(f"{package.partition(':')[0]}.{'models.' if 'vision' in package else ''}net")
    own = net.Net(3)
    torch.save({"state_dict": own.state_dict()}, tmp_path / "best.pt")
    x = images(16, 16)
    for written in (f"{tmp_path}/best.pt", f"'{tmp_path}/best.pt'"):
        victim = load(f"{package}(num_classes=3, weights={written})")
        assert victim.sizing is None and victim.mean is None
        assert torch.equal(victim(x), answers(own, x))
    scaled = load(f"{package}(num_classes=3, weights={tmp_path}/best.pt, mean=0.5, std=0.25)")
    assert torch.allclose(scaled(x), answers(own, (x - 0.5) / 0.25), atol=1e-5)
    with pytest.raises(DataError, match="does not fit"):
        load(f"{package}(num_classes=4, weights={tmp_path}/best.pt)")
    with pytest.raises(DataError, match="does not exist"):
        load(f"{package}(weights={tmp_path}/absent.pt)")


@pytest.mark.parametrize("size", SIZES)
def test_timm_models_have_timms_transform(packages: Path, size: tuple[int, int]) -> None:
    timm = imported("timm")
    victim = load("timm:tiny_vit(weights=None, resize=always)")
    torch.manual_seed(0)
    original = timm.create_model("tiny_vit")
    own = timm.data.create_transform(odd=False)
    x = images(*size)
    assert torch.allclose(victim(x), answers(original, own(x)), atol=1e-5)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    told = {"architectures": ["TinyForImageClassification"], "classes": 7}
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("size", SIZES)
def test_hugging_face_models_have_the_transform_of_their_processor(
    packages: Path, repository: Path, size: tuple[int, int]
) -> None:
    transformers = imported("transformers")
    victim = load(f"hf:{repository}(resize=always)")
    torch.manual_seed(0)
    original = transformers.Classifying(7)
    # Whole bytes: the processor rounds to them.
    x = (255 * images(*size)).round() / 255
    pixels = transformers.Processor()((255 * x).byte(), return_tensors="pt")["pixel_values"]
    close = answers(original, pixels)["logits"]
    assert torch.allclose(victim(x), close, atol=0.02)
    assert victim.mean == pytest.approx((0.5, 0.4, 0.3)) and victim(x).shape == (4, 7)


def test_where_a_model_was_loaded_from_is_no_part_of_it(
    packages: Path, repository: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.json").write_text((repository / "config.json").read_text())
    assert load(f"hf:{repository}").digest() == load(f"hf:{moved}").digest()


def test_a_repository_that_is_no_image_classifier_is_refused(
    packages: Path, repository: Path
) -> None:
    def told(**changes: Any) -> str:
        held = {"architectures": ["TinyForImageClassification"], "classes": 7, **changes}
        (repository / "config.json").write_text(json.dumps(held))
        return f"hf:{repository}"

    with pytest.raises(InputError, match="is a BertForMaskedLM, not an image classifier"):
        load(told(architectures=["BertForMaskedLM"]))
    with pytest.raises(InputError, match=r"has no weights for fc\.weight.*would be random"):
        load(told(missing=["fc.weight"]))
    with pytest.raises(InputError, match="takes no 'revison': did you mean 'revision'"):
        load(f"{told()}(revison=3)")
    with pytest.raises(DataError, match="not in the cache of transformers"):
        load("hf:somebody/nothing")


def test_robustbench_models_are_found_by_data_threat_and_name(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = imported("robustbench.net").Net()
    for data in ("cifar10", "imagenet"):
        (tmp_path / "models" / data / "Linf").mkdir(parents=True)
        torch.save(net.state_dict(), tmp_path / f"models/{data}/Linf/Wise2020Robust.pt")
    monkeypatch.chdir(tmp_path)
    small = load("robustbench:cifar10/Linf/Wise2020Robust")
    assert small.sizing is None and small.mean is None
    assert torch.equal(small(images(16, 16)), answers(net, images(16, 16)))
    large = load(f"robustbench:imagenet/linf/Wise2020Robust(model_dir={tmp_path}/models)")
    own = imported("robustbench.transforms")
    x = images()
    assert torch.allclose(large(x), answers(net, own.CenterCrop(16)(own.Resize(20)(x))), atol=1e-5)
    monkeypatch.chdir("/")
    with pytest.raises(DataError, match=r"models/cifar10/Linf/Wise2020Robust\.pt, and BESIEGE_OFF"):
        load("robustbench:cifar10/Linf/Wise2020Robust")


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("torchvision:smal_net", UnknownNameError, "did you mean 'small_net'"),
        ("torchvision:zzz", UnknownNameError, "torchvision's documentation lists"),
        ("torchvision:small_net(weights=IMAGENET1K_V3)", UnknownNameError, "'IMAGENET1K_V2'"),
        ("torchvision:small_net(weight=None)", InputError, "did you mean 'weights'"),
        ("torchvision:small_net(weights=None, resize=sometimes)", InputError, "resize is"),
        ("torchvision:small_net(weights=None", InputError, "does not close"),
        ("torchvision:parts_net(weights=None)", InputError, "is SemanticSegmentation"),
        ("torchvision:liar_net(weights=None)", InputError, "a step that besiege reads wrongly"),
        ("torchvision:", InputError, "such|example 'torchvision:resnet50'"),
        ("torchvsion:small_net", UnknownNameError, "did you mean 'torchvision'"),
        ("timm:tiny_vet", UnknownNameError, "did you mean 'tiny_vit'"),
        ("timm:tiny_vit.a1_in2k", UnknownNameError, "did you mean 'tiny_vit.a1_in1k'"),
        ("timm:tiny_vit(weights=a1_in1k)", InputError, "a part of the name"),
        ("timm:tiny_vit(num_classes=3)", InputError, "the last layer by a random one"),
        ("timm:odd_net(weights=None)", InputError, "has Flip, which besiege cannot put inside"),
        ("timm:tiny_vit(weights=None, depth=3)", InputError, "could not make .*'depth'"),
        ("robustbench:cifar1/Linf/X", UnknownNameError, "did you mean 'cifar10'"),
        ("robustbench:cifar10/Lnf/X", UnknownNameError, "did you mean 'Linf'"),
        ("robustbench:cifar10/Linf/Wise2020", UnknownNameError, "did you mean 'Wise2020Robust'"),
        ("robustbench:Wise2020Robust", InputError, "data, threat and name"),
    ],
)
def test_wrong_names_and_arguments_are_refused(
    packages: Path, text: str, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        load(text)


@pytest.mark.parametrize("scheme", catalogue.SCHEMES)
def test_a_package_that_is_absent_or_too_old_says_what_to_install(
    tmp_path: Path, scheme: str
) -> None:
    name = PACKAGES[scheme].name
    least = ".".join(map(str, PACKAGES[scheme].least))
    with installed(tmp_path), pytest.raises(InputError, match=f"not installed: pip install {name}"):
        load(f"{scheme}:anything")
    old = '__version__ = "0.0.9"\n'
    with (
        installed(tmp_path, name, **{name: old}),
        pytest.raises(InputError, match=f'0.0.9 is installed: pip install "{name}>={least}"'),
    ):
        load(f"{scheme}:anything")
    broken = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
    with (
        installed(tmp_path, name, **{name: broken}),
        pytest.raises(InputError, match=r"nms does not exist\): install the build of it that fits"),
    ):
        load(f"{scheme}:anything")
    needy = "import pkg_resources_of_old\n"
    with (
        installed(tmp_path, name, **{name: needy}),
        pytest.raises(InputError, match="needs pkg_resources_of_old, which is not installed: pip"),
    ):
        load(f"{scheme}:anything")


def test_warnings_of_packages_are_not_shown(packages: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("timm:tiny_vit(weights=None)")


def test_they_are_evaluated_with_layers_and_a_twin(packages: Path, tmp_path: Path) -> None:
    x, y = images(20, 26), torch.tensor([0, 1, 2, 3])
    text = "timm:tiny_vit(weights=None)+bits(depth=5)"
    assert load_victim(text).name == text
    found = besiege.evaluate(
        "timm:tiny_vit(weights=None)", (x, y), threat="linf:0.1", attacks="fgsm", curve=False
    )
    assert found.clean.count == 4
    made = besiege.attack("fgsm", "timm:tiny_vit(weights=None)", x, y, threat="linf:0.1", twin=True)
    assert made.images.shape == x.shape


def test_a_request_of_a_package_is_never_answered_without_work() -> None:
    for scheme in catalogue.SCHEMES:
        asked = Request(model=f"{scheme}:name", data="digits", threat="linf:0.1", textual=True)
        assert stamp_of(asked) is None
    known = Request(model="zoo:digits-natural", data="digits", threat="linf:0.1", textual=True)
    assert stamp_of(known) is not None
