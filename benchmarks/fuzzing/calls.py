"""Calls of the public functions, as Python expressions over the names of `names`."""

from __future__ import annotations

from typing import Any

from benchmarks.fuzzing.words import (
    BAD_DATA,
    BAD_MODELS,
    BAD_THREATS,
    DATA,
    MODELS,
    TEXTS,
    THREATS,
    Draw,
)

VALUES = (
    "0", "1", "2", "3", "-1", "2.5", "2**70", "-2**70", "10**5000", "True", "None", "''", "'3'",
    "[]", "()", "{}", "float('nan')", "float('inf')", "1e-300", "np.int64(2)", "np.float32(2.5)",
    "torch.tensor(2)", "torch.tensor([1, 2])", "object()", "b'a'", "1j", "Fraction(1, 3)", "print",
)  # fmt: skip
"""Where a number is expected."""

IMAGES = (
    "X", "X.double()", "X.half()", "X.bfloat16()", "X.numpy()", "X.tolist()", "X[:1]", "X[:0]",
    "X[0]", "X[:, 0]", "X[..., :0]", "X * 255", "X - 1", "(X * 255).byte()", "X.long()", "X > 0.5",
    "X + 0j", "X * float('nan')", "X / 0", "X.to_sparse()", "X.to('meta')", "X.expand(4, 3, 8, 8)",
    "X.requires_grad_()", "X.transpose(2, 3)", "X.flip(3)",
    "X.to(memory_format=torch.channels_last)", "X.flatten(1)", "X[None]",
    "torch.zeros(4, 1, 1, 1)", "torch.zeros(4, 1, 9, 7)", "None", "3", "'a'", "[]", "{}",
    "object()", "np.array([None] * 4)", "np.zeros((4, 1, 8, 8), 'U3')", "print",
    "torch.nn.Parameter(X)", "X.to(torch.float8_e5m2)", "QUANTISED", "NESTED",
    "np.ma.masked_array(X.numpy(), X.numpy() > 0.5)", "range(4)", "iter([])",
    "X.new_full((4, 1, 8, 8), 1e38)", "torch.zeros(4, 0, 8, 8)",
)  # fmt: skip
LABELS = (
    "Y", "Y.int()", "Y.byte()", "Y.float()", "Y.numpy()", "Y.tolist()", "Y[:2]", "Y[:, None]",
    "Y > 1", "Y - 5", "Y + 50", "Y + 2**62", "Y.double() * float('nan')", "Y + 0j",
    "Y.to_sparse()", "[2**70] * 4", "Y.to('meta')", "torch.eye(4).long()", "None", "3", "'abcd'",
    "[]", "[None] * 4", "object()", "Y[0]", "np.array([1, 2, 3, 4], dtype=np.uint64) + 2**63",
    "np.array(['a'] * 4)", "{0, 1, 2, 3}", "[[0], [1]]",
)  # fmt: skip
VICTIMS = (
    "NET", "Classifier(NET)", "Classifier(NET, mean=0.5, std=0.5)", "Classifier(NET, box=(0, 1))",
    "MLP", "function_model(lambda x: x.reshape(len(x), -1)[:, :10], classes=10)", "NET.double()",
    "NET.half()",
)  # fmt: skip
BAD_VICTIMS = (
    "None", "3", "object()", "print", "torch.nn.Identity()", "torch.nn.Linear(3, 3)",
    "NET.to('meta')", "Odd(lambda x: None)", "Odd(lambda x: x.flatten(1)[:, :1])",
    "Odd(lambda x: x.flatten(1)[:, :0])", "Odd(lambda x: x.flatten(1)[:1])",
    "Odd(lambda x: x.sum())", "Odd(lambda x: x.flatten(1).long())",
    "Odd(lambda x: x.flatten(1) / 0)", "Odd(lambda x: x.flatten(1) * float('nan'))",
    "Odd(lambda x: 1 / 0)", "Odd(lambda x: (x.flatten(1),))",
    "Odd(lambda x: x.flatten(1).to_sparse())", "Odd(lambda x: {}['a'])",
    "Odd(lambda x: x.flatten(1) + 0j)", "Odd(lambda x: x.flatten(1).to('meta'))",
    "Odd(lambda x: [][1])", "Odd(lambda x: x.flatten(1).detach())",
    "Odd(lambda x: x.mul_(0.5).flatten(1))", "Odd(lambda: 3)",
    "Odd(lambda x: x.flatten(1).numpy())", "Odd(lambda x: x.flatten(1).softmax(1))",
    "Odd(lambda x: x.flatten(1).tolist())", "Odd(lambda x: -x.flatten(1) / 0)",
    "function_model(lambda x: None, classes=10)", "function_model(lambda x: [1], classes=10)",
    "function_model(3)", "function_model(lambda x: 1 / 0, classes=10)",
)  # fmt: skip


def names(folder: str) -> dict[str, Any]:
    """What the expressions may name."""
    from fractions import Fraction
    from pathlib import Path
    from warnings import catch_warnings

    import numpy as np
    import torch
    from torch import nn

    import besiege
    from besiege import Classifier, Threat, function_model
    from besiege.core.samples import Samples
    from besiege.core.text import number, read_arguments
    from besiege.core.vocabulary import Vocabulary

    class Odd(nn.Module):
        """A module that answers as it likes."""

        def __init__(self, answer: Any) -> None:
            super().__init__()
            self.answer = answer

        def forward(self, x: Any) -> Any:
            return self.answer(x)

    torch.manual_seed(0)  # made for every case, because some change them
    held = besiege.data.load("digits", count=4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with catch_warnings(action="ignore"):
        quantised = torch.quantize_per_tensor(held.images, 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([held.images[0], held.images[1]])
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    return {
        **{"np": np, "torch": torch, "nn": nn, "besiege": besiege, "Classifier": Classifier},
        **{"Threat": Threat, "function_model": function_model, "Fraction": Fraction, "Path": Path},
        **{"Samples": Samples, "Vocabulary": Vocabulary, "number": number, "folder": folder},
        **{"read_arguments": read_arguments, "Odd": Odd, "MLP": mlp, "NET": net},
        **{"X": held.images, "Y": held.labels, "QUANTISED": quantised, "NESTED": nested},
    }


def call(seed: int, number: int) -> str:
    """One expression."""
    draw = Draw(f"{seed}:call:{number}")
    kinds = [_attack, _evaluate, _classifier, _threat, _parse, _load, _samples, _others]
    return draw.choices(kinds, [8, 4, 2, 2, 4, 4, 2, 2])[0](draw)


def _threats(draw: Draw) -> str:
    if draw.chance(0.1):
        return draw.choice(VALUES)
    return repr(draw.mixed(THREATS, BAD_THREATS, 0.2))


def _victim(draw: Draw) -> str:
    if draw.chance(0.2):
        return repr(draw.mixed(MODELS, BAD_MODELS, 0.4))
    return draw.mixed(VICTIMS, BAD_VICTIMS, 0.2) if draw.chance(0.95) else draw.choice(VALUES)


def _one(draw: Draw, values: tuple[str, ...], share: float = 0.2) -> str:
    """The first of them, which is right, or another."""
    return draw.choice(values) if draw.chance(share) else values[0]


def _with(draw: Draw, options: dict[str, tuple[str, ...]], most: int) -> str:
    chosen = draw.sample(list(options), min(most, draw.choice((0, 0, 1, 1, 2, 3))))
    return "".join(f", {name}={draw.choice(options[name])}" for name in chosen)


def _text(draw: Draw, threat: str = "") -> str:
    if draw.chance(0.05):
        return draw.choice(VALUES)
    return repr(draw.choice(TEXTS) if draw.chance(0.1) else draw.attack(threat.strip("'")))


def _attack(draw: Draw) -> str:
    options = {
        "seed": VALUES,
        "targets": LABELS,
        "ids": LABELS,
        "queries": VALUES,
        "batch": VALUES,
        "keep": ("'first'", "'last'", "'x'", "3"),
        "leave": ("'end'", "'success'", "'x'"),
        "pad": VALUES[:10],
        "twin": ("True", "False", "3"),
        "starts": ("(X, Y)", "(X,)", "X", "3", "(X[:, :, :4], Y)", "(X, Y + 50)"),
        "substitute": (*VICTIMS, *BAD_VICTIMS),
        "steps": VALUES,
        "loss": ("'margin'", "'x'", "3", "None", "print", "'margin('"),
        "alpha": ("0.1",),
    }
    images, labels = _one(draw, IMAGES), _one(draw, LABELS)
    threat = _threats(draw)
    args = f"{_text(draw, threat)}, {_victim(draw)}, {images}, {labels}, threat={threat}"
    return f"besiege.attack({args}{_with(draw, options, 2)})"


def _source(draw: Draw) -> str:
    if draw.chance(0.5):
        return f"({_one(draw, IMAGES, 0.5)}, {_one(draw, LABELS, 0.5)})"
    if draw.chance(0.1):
        return draw.choice((*VALUES, "Path(folder)", "Path('good.npz')", "(X, Y, Y)", "X"))
    return repr(draw.mixed(DATA, BAD_DATA, 0.6))


def _evaluate(draw: Draw) -> str:
    options = {
        "seed": VALUES,
        "queries": VALUES,
        "shard": VALUES,
        "batch": VALUES,
        "goal": ("'untargeted'", "'x'", "3", "'targeted:given'"),
        "access": ("'score'", "'decision'", "'x'", "3"),
        "split": ("'test'", "'x'", "3", "None"),
        "fuse": ("'logits'", "'x'", "3"),
        "suite": ("'quick'", "'x'", "3", "[]", "['pgd', 3]"),
        "substitute": (*VICTIMS, *BAD_VICTIMS),
        "device": ("'cpu'", "'x'", "3", "''", "'cuda:99'"),
        "out": ("'out'", "'good.py'", "''", "3", "'x' * 5000", "Path('out')"),
    }
    threat = _threats(draw)
    first, second = _text(draw, threat), _text(draw, threat)
    listed = f"[{first}, {second}]" if draw.chance(0.2) else first
    given = _with(draw, options, 2)
    attacks = "" if "suite=" in given else f", attacks={listed}"
    count = draw.choice(("2", "3", *VALUES)) if draw.chance(0.3) else "2"
    curve = draw.choice(("False", "False", "'none'", "'x'", "3"))
    args = f"{_victim(draw)}, {_source(draw)}, threat={threat}{attacks}, count={count}"
    return f"besiege.evaluate({args}, curve={curve}{given})"


def _classifier(draw: Draw) -> str:
    pairs = (
        "(0, 1)",
        "(1, 0)",
        "(0, 0)",
        "(0,)",
        "'ab'",
        "(float('nan'), 1)",
        "(0, 1, 2)",
        "(-1, 1e300)",
    )
    options = {
        "mean": (*VALUES, "(0.5, 0.5, 0.5)", "(0.5,)"),
        "std": (*VALUES, "(0.5, 0.5, 0.5)", "(0.5,)", "(0,)"),
        "box": (*VALUES, *pairs),
        "classes": VALUES,
        "outputs": ("'logits'", "'probabilities'", "'x'", "3"),
        "name": ("'a'", "3", "''", "None"),
        "grid": VALUES,
    }
    module = draw.mixed(("NET", "MLP"), (*BAD_VICTIMS, *VALUES), 0.2)
    return f"Classifier({module}{_with(draw, options, 3)})({_one(draw, IMAGES[:4])})"


def _threat(draw: Draw) -> str:
    if draw.chance(0.5):
        return f"Threat.parse({_threats(draw)})"
    norm = draw.choice(("besiege.Norm.Linf", "'linf'", "besiege.Norm.L0", "'x'", "3"))
    return f"repr(Threat({norm}, {draw.choice(VALUES)}))"


def _parse(draw: Draw) -> str:
    made = f"besiege.attacks.parse({_text(draw)})"
    return f"str({made})" if draw.chance(0.5) else f"besiege.attacks.parse(str({made}))"


def _load(draw: Draw) -> str:
    options = {
        "split": ("'test'", "'train'", "'x'", "3", "None"),
        "count": VALUES,
        "seed": VALUES,
        "resize": (*VALUES, "(8, 8)", "(0, 8)", "10**6", "'8'"),
        "crop": (*VALUES, "(8, 8)", "(99, 99)"),
        "channels": VALUES,
        "layout": ("'nchw'", "'nhwc'", "'x'", "3"),
        "box": (*VALUES, "(0, 255)", "(1, 0)", "'ab'"),
    }
    return f"besiege.data.load({_source(draw)}{_with(draw, options, 2)}).digest"


def _samples(draw: Draw) -> str:
    options: dict[str, tuple[str, ...]] = {"ids": LABELS, "targets": LABELS}
    args = f"{_one(draw, IMAGES, 0.7)}, {_one(draw, LABELS, 0.5)}"
    return f"Samples.of({args}{_with(draw, options, 2)})"


def _others(draw: Draw) -> str:
    number, text = draw.choice(VALUES), repr(draw.number())
    given = draw.choice(["a=1", "a=", "1", "a=" + "-" * 3000 + "1", "a=b", ""])
    return draw.choice(
        [
            f"number({text})",
            f"read_arguments({given!r})",
            f"besiege.defenses.load({draw.mixed(MODELS, BAD_MODELS, 0.8)!r})",
            f"besiege.models.load({draw.mixed(MODELS, BAD_MODELS, 0.8)!r})",
            f"besiege.data.load('digits').subset({number}, {draw.choice(VALUES)})",
            f"besiege.data.load('digits').take({draw.choice((*VALUES, *LABELS))})",
            f"list(besiege.data.load('digits').shards({number}))",
        ]
    )
