"""Command lines: valid ones over all commands and options, with something changed in most."""

from __future__ import annotations

from collections.abc import Callable

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

OUTS = ("out", "a/b/out", "out=1", "o[u]t*", "öut", "out.safetensors", "o u t", "./out")
BAD_OUTS = (
    "good.py", "good.py/out", "/dev/null", "/dev/null/out", "/proc/out", "x" * 300, "pictures",
    ".", "pipe.npz", "loop.npz", "nothing", "out\n", "-", "--", "/", "with_pipe/b/out",
    "run_noise",
)  # fmt: skip
SPLITS = ("test", "train", "tset", "", "all", "x" * 3000, "../..")
LABELS = (
    "3,4,5", "labels.txt", "predicted", "1,2", "a", "", "wrong.txt", "bytes.txt", "large.txt",
    "9" * 30 + ",1,2", "9" * 5000, "٣,١,٢", "pipe.npz", "/dev/zero", "1" + ",1" * 20_000, "3",
)  # fmt: skip
SIZES = (
    "8",
    "8x8",
    "16",
    "0",
    "8x",
    "x8",
    "-8",
    "8.5",
    "٨",
    "9" * 30,
    "100000",
    "99999x99999",
    "a",
    "",
)
RUNS = (
    "run_void", "run_noise", "run_bytes", "run_list", "run_deep", "run_empty", "run_null",
    "good.py", "run_folder", "run_pipe", "nothing", "nowhere", "", "/dev/null", "x" * 300,
    "pictures", "*", "out",
)  # fmt: skip
NAMES = (
    "pgd",
    "quick",
    "digits",
    "zoo:digits-natural",
    "bits",
    "natural",
    "pgd-at",
    "margin",
    "lenet",
)

Option = Callable[[Draw], list[str]]


def line(seed: int, number: int) -> list[str]:
    """The words of one command line."""
    draw = Draw(f"{seed}:line:{number}")
    kinds = [_evaluate, _attack, _substitute, _train, _read, _look, _other]
    words = draw.choices(kinds, [8, 8, 2, 2, 2, 2, 1])[0](draw)
    if words and draw.chance(0.15):
        words = _shuffled(draw, words)
    return [word.replace("\x00", "") for word in words]  # no shell passes those on


def _shuffled(draw: Draw, words: list[str]) -> list[str]:
    """Words lost, doubled, exchanged or spoiled."""
    place = draw.randrange(len(words))
    match draw.randrange(5):
        case 0:
            return words[:place] + words[place + 1 :]
        case 1:
            return words[:place] + words[place : place + 1] * 2 + words[place + 1 :]
        case 2:
            return [*words[:place], draw.number(), *words[place:]]
        case 3:
            other = draw.randrange(len(words))
            words[place], words[other] = words[other], words[place]
            return words
    return [*words[:place], draw.spoiled(words[place]), *words[place + 1 :]]


def _some(draw: Draw, options: dict[str, Option], most: int) -> list[str]:
    names = draw.sample(list(options), min(most, draw.choice((0, 0, 0, 1, 1, 2, 3))))
    return [word for name in names for word in (name, *options[name](draw))]


def _numbers(draw: Draw) -> list[str]:
    return [draw.number()]


def _flag(draw: Draw) -> list[str]:
    return []


def _of(*values: str) -> Option:
    return lambda draw: [draw.choice(values)]


def _data(draw: Draw) -> str:
    return draw.mixed(DATA, BAD_DATA, 0.25)


def _threat(draw: Draw) -> str:
    return draw.mixed(THREATS, BAD_THREATS, 0.15)


def _model(draw: Draw) -> str:
    return draw.mixed(MODELS, BAD_MODELS, 0.15)


def _out(draw: Draw) -> str:
    return draw.mixed(OUTS, BAD_OUTS, 0.08)


def _listed(draw: Draw, threat: str = "") -> str:
    if draw.chance(0.15):
        return draw.choice(TEXTS)
    return ", ".join(draw.attack(threat) for _ in range(draw.randint(1, 2)))


_WHERE: dict[str, Option] = {
    "--seed": _numbers,
    "--split": _of(*SPLITS),
    "--layout": _of("nchw", "nhwc", "chwn", ""),
    "--device": _of("cpu", "cuda", "cuda:99", "cpu:0", "tpu", "cuda:٣", "meta", ""),
    "--threads": _of("1", "2", "0", "100000000", "65", "9" * 30, "-1", "1.5", "٣"),
    "--json": _flag,
    "--debug": _flag,
}
_FIT: dict[str, Option] = {
    "--resize": _of(*SIZES),
    "--crop": _of(*SIZES),
    "--channels": _of("1", "3", "2", "3.2", "٣", "-1"),
}
_GATES: dict[str, Option] = {
    "--fail-under": _numbers,
    "--fail-under-value": _of("45", "45%", "0.45", "-1", "101", "1e999999999", "٤٥", "", "nan"),
    "--not-worse-than": _of(*RUNS),
    "--allow": _of("W14", "W41", "w14", "FAILED", "", "x" * 3000),
    "--junit": lambda draw: [_out(draw)],
    "--summary": lambda draw: [_out(draw)],
}
_EVALUATE: dict[str, Option] = {
    **_WHERE,
    **_FIT,
    "--goal": _of("untargeted", "targeted:random", "targeted", "x"),
    "--access": _of("gradient", "score", "decision", "none"),
    "--queries": _numbers,
    "--substitute": lambda draw: [_model(draw)],
    "--fuse": _of("logits", "losses", "x"),
    "--curve": _of("short", "none", "x"),
    "--count": _numbers,
    "--shard": _numbers,
    "--batch": _numbers,
    "--dry-run": _flag,
    "--no-page": _flag,
    **_GATES,
}
_ATTACK: dict[str, Option] = {
    **_WHERE,
    **_FIT,
    "--labels": _of(*LABELS),
    "--target": _numbers,
    "--queries": _numbers,
    "--count": _numbers,
    "--batch": _numbers,
    "--exact": _of("npz", "safetensors", "npy"),
    "--no-png": _flag,
    "--all": _flag,
}


def _evaluate(draw: Draw) -> list[str]:
    threat = _threat(draw)
    words = ["evaluate", _model(draw), "--data", _data(draw), "--threat", threat]
    kind = draw.choices(["--attacks", "--suite"], [9, 1])[0]
    suites = ("quick", "quik", "minimum", "standard,", "fgsm, bim(steps=1)")
    words += [kind, _listed(draw, threat) if kind == "--attacks" else draw.choice(suites)]
    some = _some(draw, _EVALUATE, 3)
    if "--count" not in some:
        words += ["--count", "3"]
    return [*words, *some, "--no-curve", "--out", _out(draw)]


def _attack(draw: Draw) -> list[str]:
    threat = _threat(draw)
    words = ["attack", _model(draw), "--images", _images(draw), "--threat", threat]
    words += ["--attack", draw.choice(TEXTS) if draw.chance(0.15) else draw.attack(threat)]
    some = _some(draw, _ATTACK, 3)
    if "--count" not in some:
        words += ["--count", "3"]
    return [*words, *some, "--out", _out(draw)]


def _images(draw: Draw) -> str:
    return draw.choice(["loose", "images.npz", "loose/1.png"]) if draw.chance(0.3) else _data(draw)


_FEW = ("1", "2", "0", "-1", "1.5", "9" * 30, "9" * 5000, "٣", "nan", "", "1e999999999")
"""Numbers of which none makes a training long."""


def _substitute(draw: Draw) -> list[str]:
    words = ["substitute", _model(draw), "--data", _data(draw), "--arch", _arch(draw)]
    words += ["--rounds", draw.choice(_FEW), "--count", draw.choice(("2", *_FEW))]
    words += ["--check", "2", "--epochs", draw.choice(_FEW)]
    options: dict[str, Option] = {
        **_WHERE,
        "--queries": _numbers,
        "--lam": _numbers,
        "--tau": _numbers,
        "--reservoir": lambda draw: [draw.number(), draw.number()],
        "--no-resume": _flag,
    }
    return [*words, *_some(draw, options, 3), "--out", f"{_out(draw)}.safetensors"]


def _train(draw: Draw) -> list[str]:
    recipes = (
        "natural", "pgd-at", "natural(epochs=0)", "natural(rate=1e400)", "natural(", "x", "",
        "natural(threat='linf:0')", "pgd-at(attack=3)", "natural(batch=2.5)", "7", "x" * 5000,
    )  # fmt: skip
    words = ["train", draw.choice(recipes), "--data", _data(draw), "--arch", _arch(draw)]
    words += ["--epochs", draw.choice(_FEW)]
    options: dict[str, Option] = {
        **_WHERE,
        "--batch": _of("64", *_FEW),
        "--rate": _numbers,
        "--attack": lambda draw: [_listed(draw)],
        "--threat": lambda draw: [_threat(draw)],
        "--every": _numbers,
        "--half": _flag,
        "--no-resume": _flag,
    }
    return [*words, *_some(draw, options, 3), "--out", f"{_out(draw)}.safetensors"]


def _arch(draw: Draw) -> str:
    good = ("digits_mlp", "digits_cnn", "good.py:make")
    bad = (
        "", "x", "digits_mlp(", "digits_mlp(width=0)", "digits_mlp(width=-3)",
        "resnet20(width=1e9)", "digits_mlp(width='a')", "nothing.py:make",
        "digits_mlp(" + "-" * 20_000 + "1)", "x" * 5000, "digits_mlp(mean=0, std=0)",
        "raises.py:make", "zoo:digits-natural",
    )  # fmt: skip
    return draw.mixed(good, bad, 0.3)


def _read(draw: Draw) -> list[str]:
    words = [draw.choice(["status", "report", "history", "export"]), draw.choice(RUNS)]
    if words[0] == "export":
        return _export(draw, words)
    options: dict[str, Option] = {"--json": _flag, "--debug": _flag}
    if words[0] == "report":
        options |= {"--out": lambda draw: [_out(draw)], **_GATES}
    return [*words, *_some(draw, options, 2)]


def _export(draw: Draw, words: list[str]) -> list[str]:
    suffix = draw.choice(["csv", "parquet", "json", "tex", "md", "npz", "CSV", "x", "", "gz"])
    options: dict[str, Option] = {
        "--model": _of("zoo:digits-natural", "x", ""),
        "--threat": lambda draw: [_threat(draw)],
        "--attack": lambda draw: [draw.attack()],
        "--earlier": _numbers,
        "--force": _flag,
    }
    return [*words, f"{_out(draw)}.{suffix}", *_some(draw, options, 2)]


def _look(draw: Draw) -> list[str]:
    command = draw.choice(["show", "attacks", "models", "data"])
    if command != "show":
        return [command, *_some(draw, {"--json": _flag, "--debug": _flag}, 2)]
    name = draw.mixed(NAMES, TEXTS, 0.5) if draw.chance(0.7) else draw.attack()
    return ["show", name, *_some(draw, {"--json": _flag}, 1)]


def _other(draw: Draw) -> list[str]:
    lines: tuple[list[str], ...] = (
        ["version"], ["version", "--json"], ["--version"], ["--help"], ["help"], [], ["evaluate"],
        ["completion", "bash"], ["completion", "bahs"], ["completion", "fish", "--out", "out"],
        ["x"], [""], ["--"], ["-"], ["help", "evaluate"], ["help", "x"], ["--debug"], ["\u202e"],
    )  # fmt: skip
    return [*draw.choice(lines)]
