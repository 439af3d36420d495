"""Other libraries' attacks behind one signature; what is not installed is left out.

Each takes (module, images, labels, eps, steps, step) with `step` in the unit of eps, and gives back
images. Weights are frozen by the harness, which spares foolbox and ART the weight gradients they
would otherwise compute as well (peers.txt lists what to install).
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import logging
import math
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Peer = Callable[[nn.Module, Tensor, Tensor, float, int, float], Tensor]
ORDER = {"linf": math.inf, "l2": 2, "l1": 1}


def has(library: str) -> bool:
    """Whether a library is installed."""
    return importlib.util.find_spec(library) is not None


def peers(attack: str, norm: str) -> dict[str, Peer]:
    """The installed libraries' versions of an attack, by library."""
    found: dict[str, Peer] = {}
    for library, table in (
        ("foolbox", _foolbox),
        ("torchattacks", _torchattacks),
        ("art", _art),
        ("adv_lib", _adv_lib),
    ):
        if has(library):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peer = table(attack, norm)
            if peer is not None:
                found[library] = peer
    return found


def _foolbox(attack: str, norm: str) -> Peer | None:
    import foolbox  # type: ignore[import-not-found]  # in an environment of its own

    name = {
        "fgsm": "FastGradientAttack",
        "bim": "BasicIterativeAttack",
        "pgd": "ProjectedGradientDescentAttack",
        "mim": "MomentumIterativeFastGradientMethod",
    }.get(attack)
    if name is None:
        return None
    kind = getattr(foolbox.attacks, norm.capitalize() + name)

    def run(module: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, step: float) -> Tensor:
        model = foolbox.PyTorchModel(module, bounds=(0, 1), device=x.device)
        made = kind() if attack == "fgsm" else kind(steps=steps, abs_stepsize=step)
        images: Tensor = made.run(model, x, foolbox.criteria.Misclassification(y), epsilon=eps)
        return images

    return run


def _torchattacks(attack: str, norm: str) -> Peer | None:
    import torchattacks  # type: ignore[import-not-found]  # in an environment of its own

    def run(module: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, step: float) -> Tensor:
        given: dict[str, Any] = {"eps": eps, "alpha": step, "steps": steps}
        if norm == "l2" and attack == "pgd":
            made = torchattacks.PGDL2(module, **given)
        elif attack == "fgsm":
            made = torchattacks.FGSM(module, eps=eps)
        elif attack == "rfgsm":
            made = torchattacks.RFGSM(module, **given)
        elif attack == "dim":
            made = torchattacks.DIFGSM(module, **given, decay=1.0)
        elif attack == "tim":  # as published: without the input diversity it adds by default
            made = torchattacks.TIFGSM(module, **given, decay=1.0, diversity_prob=0.0)
        else:
            names = {"bim": "BIM", "pgd": "PGD", "mim": "MIFGSM", "sinifgsm": "SINIFGSM"}
            made = getattr(torchattacks, names[attack])(module, **given)
        images: Tensor = made(x, y)
        return images

    known = {"fgsm", "rfgsm", "bim", "pgd", "mim", "dim", "tim", "sinifgsm"}
    return run if (norm == "linf" and attack in known) or (norm, attack) == ("l2", "pgd") else None


def _art(attack: str, norm: str) -> Peer | None:
    logging.getLogger("art").setLevel(logging.ERROR)
    from art.attacks import evasion  # type: ignore[import-not-found]  # in an environment of its own
    from art.estimators.classification import PyTorchClassifier  # type: ignore[import-not-found]  # in an environment of its own

    if attack not in ("fgsm", "bim", "pgd", "mim"):
        return None

    def run(module: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, step: float) -> Tensor:
        estimator = PyTorchClassifier(
            module,
            nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=10,
            clip_values=(0, 1),
            device_type="cpu",
        )
        given: dict[str, Any] = {"norm": ORDER[norm], "eps": eps, "batch_size": len(x)}
        if attack == "fgsm":
            made = evasion.FastGradientMethod(estimator, **given)
        else:
            made = evasion.ProjectedGradientDescentPyTorch(
                estimator,
                **given,
                eps_step=step,
                max_iter=steps,
                num_random_init=int(attack == "pgd"),
                decay=1.0 if attack == "mim" else None,
                verbose=False,
            )
        images: Tensor = x.new_tensor(made.generate(x.numpy(), y.numpy()))
        return images

    return run


def stand_in_for_adv_lib() -> None:
    """Let adv-lib be imported without what it wants for plots and transforms."""
    for name in ("visdom", "torchvision"):
        if name not in sys.modules and not _works(name):
            for part in [one for one in sys.modules if one.startswith(f"{name}.")]:
                del sys.modules[part]
            stand_in = types.ModuleType(name)
            stand_in.__dict__["__getattr__"] = _nothing
            stand_in.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = stand_in


def _works(library: str) -> bool:
    """Whether a library can be imported: a torchvision built for another torch cannot."""
    try:
        importlib.import_module(library)
    except Exception:
        return False
    return True


def _nothing(name: str) -> type:
    """Whatever is imported from a stand-in is an empty class; PEP 562 lets a module do that."""
    if name.startswith("__"):  # what Python itself looks for is not there
        raise AttributeError(name)
    return type(name, (), {})


def _adv_lib(attack: str, norm: str) -> Peer | None:
    if (attack, norm) != ("pgd", "linf"):
        return None
    stand_in_for_adv_lib()
    with contextlib.suppress(ImportError):
        from adv_lib.attacks import pgd_linf  # type: ignore[import-not-found]  # in an environment of its own

        def run(
            module: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int, step: float
        ) -> Tensor:
            images: Tensor = pgd_linf(module, x, y, eps, steps=steps, absolute_step_size=step)
            return images

        return run
    return None
