from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest

from besiege.core.errors import UnknownNameError
from besiege.core.threat import Norm, Threat
from besiege.data import NAMES, entry


def test_the_list_of_data_sets_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'PIL', 'sklearn'): sys.modules[name] = None\n"
        "from besiege.data import NAMES, entry, fetch, listing\n"
        "print(*(line.entry.name + ':' + line.where['test'] for line in listing()), sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [part.split(":")[0] for part in done.stdout.strip().split("|")] == list(NAMES)


def test_usual_budgets_are_threats() -> None:
    assert entry("cifar10").eps("linf") == Fraction(8, 255)
    assert entry("mnist").eps(Norm.Linf) == Fraction(3, 10)
    assert entry("mnist").eps("l0") is None
    for name in NAMES:
        known = entry(name)
        assert known.name == name
        assert {Threat.parse(text).norm for text in known.threats} >= {Norm.Linf, Norm.L2}
        assert len(known.class_names) == known.classes == (1000 if "imagenet" in name else 10)


def test_unknown_names_are_near_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="'mnist'"):
        entry("MNIST")
