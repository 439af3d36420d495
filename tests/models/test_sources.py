from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.models import Classifier, catalogue, load, save_zoo, zoo_names
from besiege.models.residual import resnet20
from besiege.models.small import digits_cnn, digits_mlp

X = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
CARD = {"name": "small", "arch": "digits_mlp", "mean": [0.5], "std": [0.25], "seed": 3}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    save_file(digits_mlp().state_dict(), path)
    return path


def test_a_zoo_model_comes_back_as_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = digits_mlp()
    path = save_zoo(module, CARD, tmp_path)
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    assert zoo_names() == ["small"]
    victim = load("zoo:small")
    assert torch.equal(victim(X), module((X - 0.5) / 0.25))
    assert victim.name == "zoo:small" and not victim.module.training
    assert json.loads(path.read_text())["seed"] == 3
    with pytest.raises(UnknownNameError, match="did you mean 'small'"):
        load("zoo:smal")


def test_a_zoo_models_weights_never_change_but_its_card_may(tmp_path: Path) -> None:
    module = digits_mlp()
    save_zoo(module, CARD, tmp_path)
    path = save_zoo(module, {**CARD, "clean": 0.9}, tmp_path)
    assert json.loads(path.read_text())["clean"] == 0.9
    with pytest.raises(DataError, match="never change"):
        save_zoo(digits_mlp(), CARD, tmp_path)


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ({"name": "a"}, InputError),
        ({"name": "../a", "arch": "digits_mlp"}, InputError),
        ({"name": "a", "arch": "digits_cnn"}, DataError),
        ({"name": "a", "arch": "digits_mpl"}, UnknownNameError),
    ],
)
def test_a_card_that_does_not_describe_the_weights_is_refused(
    tmp_path: Path, card: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        save_zoo(digits_mlp(), card, tmp_path)
    assert not list(tmp_path.iterdir())


def test_damaged_zoo_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_zoo(digits_mlp(), CARD, tmp_path)
    path = tmp_path / "small.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    with pytest.raises(DataError, match="SHA-256"):
        load("zoo:small")


def test_own_weights_take_arithmetic_in_their_arguments(weights: Path) -> None:
    victim = load(f"digits_mlp(mean=128/255, std=(-1 + 1.5,), box=(0, 2), grid=1/255):{weights}")
    assert victim.mean == (128 / 255,)
    assert victim.std == (0.5,)
    assert victim.box == (0.0, 2.0) and victim.grid == 1 / 255
    assert torch.equal(load(f"digits_mlp:{weights}")(X), load(f"digits_mlp():{weights}")(X))


def test_loading_leaves_the_random_state_alone(weights: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load(f"digits_mlp:{weights}")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("digits_cnn:{w}", DataError, r"does not fit digits_cnn.*network of your own.*model\.py:"),
        ("digits_mpl:{w}", UnknownNameError, "did you mean 'digits_mlp'"),
        ("digits_mlp(hidden=3):{w}", InputError, "hidden"),
        ("digits_mlp(mean=__import__('os')):{w}", InputError, "name=value pairs"),
        ("digits_mlp(mean=1/0, std=1):{w}", InputError, "cannot be read"),
        ("digits_mlp(3):{w}", InputError, "name=value"),
        ("digits_mlp(mean=):{w}", InputError, "cannot be read"),
        ("digits_mlp(mean='a'*2):{w}", InputError, "not a number"),
        ("digits_mlp(mean=0.5):{w}", InputError, "both or neither"),
        ("digits_mlp(hiden=3):{w}", InputError, "takes no 'hiden'"),
        ("digits_mlp(sise=8):{w}", InputError, "did you mean 'size'"),
        ("digits_mlp(meen=0.5, std=1):{w}", InputError, "did you mean 'mean'"),
        ("digits_mlp:{w}.pt", DataError, "does not exist"),
        ("digits_mlp:{w}.onnx", InputError, "ends in .safetensors, .pt"),
        ("digits_mlp:missing.safetensors", DataError, "does not exist"),
        ("digits_mlp:.", InputError, "not a weights file"),
        ("resnet20", UnknownNameError, "write 'resnet20:path"),
        ("resnet20(classes=10)", UnknownNameError, "it is an architecture"),
        ("zo:digits-natural", UnknownNameError, "did you mean 'zoo'"),
        ("digits-natural", UnknownNameError, "did you mean 'zoo:digits-natural'"),
        ("zoo:digits-natral", UnknownNameError, "did you mean 'digits-natural'"),
        ("zoo:digits-natural+bits", UnknownNameError, "besiege.defenses.load reads layers"),
        ("nets/mine.py", UnknownNameError, "'nets/mine.py:make'"),
        ("w.safetensors", UnknownNameError, "'resnet20:w.safetensors'"),
        ("", UnknownNameError, "names no model"),
        ("public:cifar10_resnet21", UnknownNameError, "cifar10_resnet20"),
        ("missing.py:make", InputError, "does not exist"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(
    weights: Path, text: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(text.format(w=weights))


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a safetensors file"):
        load(f"digits_mlp:{path}")


FACTORY = """
from neighbour import WIDTH
from torch import nn
from besiege.models import Classifier, Victim

class Net(nn.Sequential):
    pass

def plain():
    return Net(nn.Flatten(), nn.Linear(64, WIDTH))

def described():
    return Classifier(plain(), mean=0.5, std=0.5, name="mine")

def wide(width=2, *, depth=1):
    return Net(nn.Flatten(), nn.Linear(64, width), *(nn.ReLU() for _ in range(depth)))

class Other(Victim):
    # somebody else's victim
    def __call__(self, x, dice=None):
        return x.flatten(1)

class Alike:
    # looks like a victim, and is none
    access = held = None

made = plain()
number = 3

def wrong():
    return 3

def broken():
    raise ValueError("no such layer")
"""


def test_a_factory_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(FACTORY)
    (tmp_path / "neighbour.py").write_text("WIDTH = 7\n")
    victim = load(f"{path}:plain")
    assert victim(X).shape == (3, 7)
    assert victim.name == f"{path}:plain"
    # Its source can be read, so another process gives the same digest.
    twice = load(f"{path}:plain")
    twice.module.load_state_dict(victim.module.state_dict())
    assert twice.digest() == victim.digest()
    # Messages repeat the name in commands to type, so it is the text and not one of the factory's.
    assert load(f"{path}:described").name == f"{path}:described"
    with pytest.raises(UnknownNameError, match="did you mean 'plain'"):
        load(f"{path}:plane")
    with pytest.raises(InputError, match="gave a int"):
        load(f"{path}:wrong")
    with pytest.raises(InputError, match="ValueError: no such layer"):
        load(f"{path}:broken")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nets", "'nets.py:make'"),
        ("nets:plain", "'nets.py:plain'"),
        ("nets:wide(width=3)", "'nets.py:wide(width=3)'"),
    ],
)
def test_a_file_without_its_suffix_is_told_how_it_is_written(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError) as found:
        load(typed)
    assert f"a function in a file is written {meant}" in str(found.value)


def test_a_classifier_inside_a_module_is_told_the_order(tmp_path: Path) -> None:
    path = tmp_path / "nets.py"
    path.write_text(
        "from torch import nn\nimport besiege\n\ndef make():\n"
        "    return nn.Sequential(besiege.Classifier(nn.Flatten()), nn.Softmax(1))\n"
    )
    with pytest.raises(InputError, match=r"Classifier\(nn.Sequential\(net, layer\), mean="):
        load(f"{path}:make")


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(FACTORY)
    (tmp_path / "neighbour.py").write_text("WIDTH = 7\n")
    return path


def test_a_file_with_a_similar_name_is_suggested(nets: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist: did you mean 'nets\.py'"):
        load(f"{nets.with_name('ntes.py')}:plain")


def test_a_factory_takes_literal_arguments(nets: Path) -> None:
    victim = load(f"{nets}:wide(width=2+3, depth=2)")
    assert victim(X).shape == (3, 5) and len(list(victim.module.children())) == 4
    assert victim.name == f"{nets}:wide(width=2+3, depth=2)"
    assert load(f"{nets}:wide()")(X).shape == (3, 2)
    assert load(f"{nets}:made")(X).shape == (3, 7)
    for text, says in (
        ("wide(with=3)", "cannot be read"),
        ("wide(widht=3)", "did you mean 'width'"),
        ("wide(3)", "name=value"),
        ("wide(width=open)", "name=value"),
        ("wide(width='a')", "TypeError"),
        ("number", "not a model factory"),
        ("Other", "besiege.defenses.load"),
        ("Alike", r"derive from besiege\.core\.victim\.Victim"),
    ):
        with pytest.raises(InputError, match=says):
            load(f"{nets}:{text}")


def test_a_model_is_loaded_onto_a_device(nets: Path) -> None:
    for text in ("zoo:digits-natural", f"{nets}:plain"):
        victim = load(text, device="meta")
        assert victim.device == torch.device("meta")
        assert all(p.is_meta for p in victim.module.parameters())
        assert load(text).device == torch.device("cpu")
    with pytest.raises(InputError, match="did you mean 'cuda'"):
        load("zoo:digits-natural", device="cudda")


def test_half_precision_is_stored_and_computes_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = digits_mlp()
    path = save_zoo(module, CARD, tmp_path, half=True)
    stored = load_file(path.with_suffix(".safetensors"))
    assert {t.dtype for t in stored.values()} == {torch.float16}
    monkeypatch.setattr(catalogue, "ZOO", tmp_path)
    victim, again = load("zoo:small"), load("zoo:small")
    assert {p.dtype for p in victim.module.parameters()} == {torch.float32}
    rounded = module.half().float()
    assert torch.equal(victim(X), rounded((X - 0.5) / 0.25))
    assert victim.digest() == again.digest()
    assert victim.digest() == Classifier(rounded, mean=0.5, std=0.25).digest()
    assert stored["1.weight"].nbytes == 2 * 64 * 64


def test_half_precision_is_refused_where_it_cannot_hold_the_weights(tmp_path: Path) -> None:
    module = digits_mlp()
    with torch.no_grad():
        next(module.parameters())[0, 0] = 1e6
    with pytest.raises(InputError, match=r"1\.weight has values"):
        save_zoo(module, CARD, tmp_path, half=True)
    assert not list(tmp_path.iterdir())


def test_counters_stay_whole_numbers_in_half_precision(tmp_path: Path) -> None:
    path = save_zoo(resnet20(), {"name": "r", "arch": "resnet20"}, tmp_path, half=True)
    stored = load_file(path.with_suffix(".safetensors"))
    assert stored["bn1.num_batches_tracked"].dtype == torch.int64
    assert stored["bn1.running_var"].dtype == torch.float16


def test_public_weights_say_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    with pytest.raises(DataError, match="set BESIEGE_DATA"):
        load("public:cifar10_resnet20")
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        load("public:cifar10_resnet20")
    (tmp_path / "weights").mkdir()
    save_file(digits_cnn().state_dict(), tmp_path / "weights" / "cifar10_resnet20.safetensors")
    with pytest.raises(DataError, match="not the published file"):
        load("public:cifar10_resnet20")
