"""What both command lines and calls are made of: numbers, threats, attacks, models and data."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

LARGE = "9" * 25
NUMBERS = (
    "0", "1", "2", "3", "-1", "2.5", "1.5", "2.0", "1e1", "1e999999999", "1e-300", "1e400", LARGE,
    f"-{LARGE}", "9" * 5000, "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "٣", "１", "½", "²", "nan", "inf", "-inf", "0x10", "1_0", "", " ", "1/0", "8/255", "1/3/4", "-",
    "--", "1e", "+5", "-0", "0.0", "1,000", "2**70", "True", "None", "1" * 400, "1e-5", ".5", "5.",
    "0.1", "1 ", "\t2", "1\n", "७", "1e+2", "1E2",
)  # fmt: skip
"""Texts where a number is expected."""

THREATS = (
    "linf:0.1", "linf:8/255", "l2:0.5", "l1:3", "l0:5", "linf", "l2", "l1", "l0",
    "linf:0.1 targeted:random", "l2:0.5 targeted:least-likely", "linf:0.1 score",
    "linf:0.1 decision", "l2 targeted:second", "linf:0.1 targeted:given",
)  # fmt: skip
BAD_THREATS = (
    "", " ", ":", "linf:", "linf::", "linf:8//255", "Linf:0.1", "l3:1", "linf:0", "linf:-0.1",
    "linf:1e-300", "linf:1e-9", "linf:1e999999999", "linf:٠.١", "linf:nan", "linf:inf", "linf:8",
    "linf:1/0", "l0:2.5", "l0:0", "linf:0.1 linf:0.2", "linf:0.1 score decision", "x" * 5000,
    "linf:" + "1" * 5000, f"linf:{'1' * 90}/{'7' * 89}", "linf:0.1 " + "score " * 1000,
    "linf:1e40", "l2:" + "9" * 30, "linf:0.1\nscore", "linf:0.1\x00", "linf:0.1\u202e",
    "linf:1_0/255",
)  # fmt: skip

MODELS = ("zoo:digits-natural", "zoo:digits-pgd-at", "good.py:make", "zoo:digits-natural+bits")
BAD_MODELS = (
    "", " ", "zoo:", "zoo:nothing", "public:nothing", "public:cifar10_resnet20", "digits_mlp",
    "good.py", "good.py:", "good.py:mak", "good.py:make(", "good.py:make()",
    "good.py:make(width=3)", "good.py:make(width=0)", "good.py:make(width=-1)",
    "good.py:make(width='a')", "good.py:make(3)", "good.py:make(height=3)",
    f"good.py:make(width={LARGE})", "nothing.py:make", "raises.py:make", "syntax.py:make",
    "bytes.py:make", "fails.py:make", "nan.py:make", "exits.py:make", "exits_at_once.py:make",
    "prints.py:make", "nowhere.py:make", "digits_mlp:noise.safetensors",
    "digits_mlp:void.safetensors", "digits_mlp:huge.safetensors", "digits_mlp:header.safetensors",
    "digits_mlp:pipe.safetensors", "digits_mlp:noise.pt", "digits_mlp:nowhere.safetensors",
    "digits_mlp(width=1e9):noise.safetensors", "digits_mlp(mean=0):noise.safetensors",
    "nonet:noise.safetensors", "noise.onnx", "nowhere.onnx", "noise.onnx(classes=0)",
    "zoo:digits-natural+", "zoo:digits-natural+bitz", "zoo:digits-natural+bits(depth=0)",
    "zoo:digits-natural+bits(depth=1e9)", f"zoo:digits-natural+bits(depth={LARGE})",
    "zoo:digits-natural+bits(depth='a')", "zoo:digits-natural" + "+bits" * 300, "(" * 200,
    "x" * 5000, "a/" * 3000 + "b.py:make", "http://", "http://nowhere.invalid:99999/x",
    "http://127.0.0.1:1/x(retries=0,patience=1)", "http://127.0.0.1:1/x(timeout=-1)",
    "http://127.0.0.1:1/x(format=jpg)", "ftp://127.0.0.1/x", "zoo:digits-natural\n",
    "zoo:\u202edigits", ".", "/", "..", "~", "pictures", "good.npz",
)  # fmt: skip

DATA = ("digits", "good.npz", "splits.npz", "pictures", "listed")
NPZ = (
    "images", "last", "open", "labels", "scalar", "scalar_alone", "flat", "five", "empty", "thin",
    "nan", "nan_alone", "far", "negative", "unsigned", "bool", "complex", "text", "structure",
    "objects", "objects_alone", "half", "double", "below", "floats", "beyond", "high", "short",
    "hot", "twice", "minus", "names", "few", "cut", "void", "noise", "single", "checksum", "huge",
    "minus_shape", "wide", "no_header", "bad_header", "version", "long", "bomb", "pipe", "folder",
    "loop", "zero",
)  # fmt: skip
FOLDERS = (
    "with_cut", "with_noise", "with_void", "with_large", "with_wide", "with_zero", "with_pipe",
    "with_zero_device", "with_loop", "with_folder", "with_socket", "with_colour", "with_size",
    "with_float", "with_cmyk", "with_bytes", "listed_wrong", "listed_long", "listed_bytes",
    "loose", "nothing", "one",
)  # fmt: skip
BAD_DATA = (
    *(f"{name}.npz" for name in NPZ), *FOLDERS, "", " ", "digist", "nowhere", "nowhere/x",
    "x" * 5000, "good.py", "cut.png", "large.png", "wide.png", "/dev/zero", "/dev/null",
    "/proc/self/mem", ".", "~", "a\nb", "\u202e", "mnist", "good.npz/x", "*.npz", "$HOME",
    "loose/1.png", "zero.png",
)  # fmt: skip

TEXTS = (
    "", " ", "(", ")", "pgd(", "pgd)", "pgd()()", "pgd(steps=)",
    "pgd(steps=" + "-" * 20_000 + "1)", "pgd(steps=" + "-" * 500 + "1)",
    "minimal(" * 90 + "pgd" + ")" * 90, "minimal(" * 9 + "pgd(steps=1)" + ")" * 9,
    "repeat(repeat(repeat(pgd, 999), 999), 999)", "+".join(["1"] * 3000), "(" * 500,
    "pgd(steps=" + "9" * 5000 + ")", "pgd" * 400_000, "pgd(" + " " * 1_000_000 + ")",
    "pgd," * 3000, "pgd,pgd", "pgd(steps=1 if 1 else 2)", "pgd(steps=1if 1 else 2)", "pgd('\\d')",
    "pgd(steps=10**23)", "pgd(steps=" + LARGE + ")", "pgd(steps=1e400)", "pgd(steps=1e400-1e400)",
    "pgd(steps=９)", "ｐｇｄ", "pgd(steps=0x7f)", "pgd(steps=1j)", "pgd(steps=b'a')",
    "pgd(steps=[1])", "pgd(steps={})", "pgd(loss='margin')", "pgd(loss=steepest)",
    "pgd(direction=chain())", "pgd(*pgd)", "pgd(**pgd)", "margin", "chain(steepest)", "7", "'pgd'",
    "lambda: 1", "pgd.run", "__import__('os')", "pgd\x00", "good.py:make", "nowhere.py:Attack",
    "syntax.py:Attack", "exits_at_once.py:Attack", "\ud800", "cascade()", "cascade(pgd, 3)",
    "minimal(3)", "averaged(pgd, 1)", "each_target(rays)", "pgd;fgsm",
    "uap(file='nowhere.safetensors')", "uap(file='pipe.safetensors')", "uap(file='')",
)  # fmt: skip
"""Texts where an attack is expected."""


class Draw(Random):
    """Seeded choices."""

    def chance(self, share: float) -> bool:
        return self.random() < share

    def number(self) -> str:
        return self.choice(("1", "2", "3", "4")) if self.chance(0.4) else self.choice(NUMBERS)

    def mixed(self, good: Sequence[str], bad: Sequence[str], share: float = 0.5) -> str:
        """Something good, or with this share something bad."""
        if not self.chance(share):
            return self.choice(good)
        return self.choice(bad) if self.chance(0.8) else self.spoiled(self.choice(good))

    def spoiled(self, text: str) -> str:
        """A text with letters changed, lost, doubled or exchanged."""
        letters = list(text)
        for _ in range(self.randint(1, 3)):
            place = self.randrange(len(letters) + 1)
            other = self.choice(
                ["", "(", ")", ",", "=", ":", "-", "9", "é", "\u202e", " ", "'", "/"]
            )
            letters[place : place + self.randint(0, 2)] = list(other)
        return "".join(letters)

    def attack(self, threat: str = "") -> str:
        """The text of an attack of few steps for a threat, perhaps with a wrong parameter."""
        fit = [one for one in attacks() if one.fits(threat)] or attacks()
        name, small, known = self.choice(fit if self.chance(0.9) else attacks())[:3]
        given = dict(small)
        if self.chance(0.4) and known:
            given[self.choice(known)] = self.value()
        inside = ", ".join(f"{key}={value}" for key, value in given.items())
        text = f"{name}({inside})"
        if self.chance(0.1):
            around = self.choice(
                ["minimal({}, bisections=2)", "repeat({}, 2)", "each_target({}, 2)"]
            )
            text = around.format(text)
        return self.spoiled(text) if self.chance(0.05) else text

    def value(self) -> str:
        """What a parameter of an attack may be given."""
        pieces = (
            "margin", "cross_entropy", "dlr", "steepest", "uniform", "cosine(0.5)", "'l2'",
            "constant(0.1)", "momentum", "chain(momentum, steepest)", "pgd", "()", "(1, 2)", "'a'",
            "None", "True", "''", "-1", "1/3", "1e-30", "1e30", "0.5", "2", "7", "1e308",
        )  # fmt: skip
        if self.chance(0.2):
            # Large numbers that are still to be borne are work, and no mistake: none is here.
            return self.choice([n for n in NUMBERS if len(n) < 6000]) or "0"
        return self.choice(pieces)


class Known(NamedTuple):
    """A registered attack: arguments that make it short, its parameters, and where it works."""

    name: str
    small: dict[str, str]
    known: list[str]
    norms: frozenset[str]
    access: str
    minimal: bool

    def fits(self, threat: str) -> bool:
        """Whether it works within the norm, the budget and the access of a threat."""
        words = threat.split() or ["linf:1"]
        norm, budget, _ = words[0].partition(":")
        seen = {"score": ("score", "decision"), "decision": ("decision",)}.get(words[-1])
        allowed = seen is None or self.access in seen
        return norm in self.norms and allowed and (bool(budget) or self.minimal)


def attacks() -> list[Known]:
    """Every registered attack that is not made of others."""
    if not _ATTACKS:
        from besiege.attacks.combine import Combined
        from besiege.core.attack_registry import ATTACKS
        from besiege.core.vocabulary import parameters

        for name, thing in ATTACKS.items():
            if isinstance(thing, type) and issubclass(thing, Combined):
                continue
            one: Any = thing() if isinstance(thing, type) else thing
            known = [f.name for f in parameters(one)]
            few = {"steps": "2", "rounds": "1", "restarts": "1", "search": "1"}
            small = {k: v for k, v in few.items() if k in known}
            norms = frozenset(map(str, one.norms))
            _ATTACKS.append(Known(name, small, known, norms, str(one.access), one.minimal))
    return _ATTACKS


_ATTACKS: list[Known] = []
