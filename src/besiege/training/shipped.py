"""The recipes that come with besiege: papers' defenses by name, with settings for each data set.

A bare name is for any data: 40 epochs of Adam and the threat linf:8/255. ``NAME@digits``,
``NAME@mnist`` and ``NAME@cifar10`` are used when a recipe is given by name for these data.
``NAME@deepsec`` has the settings of Ling et al. (2019); docs/training.md lists where they differ
from those of the original papers. `besiege.training.catalogue` says what each family is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from besiege.attacks.ascent import Ascent, fgsm, llc, pgd, rfgsm
from besiege.attacks.attack import parse
from besiege.attacks.losses import Divergence
from besiege.attacks.pieces import Beside, Constant, Origin, Signs, Uniform
from besiege.core.threat import Threat
from besiege.defenses.noise import GaussianNoise
from besiege.defenses.thermometer import Thermometer
from besiege.training.bounded import Bounded
from besiege.training.losses import (
    CrossEntropy,
    Distil,
    GradientPenalty,
    Mart,
    Pairing,
    Reach,
    SmoothAdv,
    Trades,
)
from besiege.training.radii import HalfNormal
from besiege.training.recipes import RECIPES, Recipe
from besiege.training.restoring import Likelihood, Reconstruction
from besiege.training.separating import Centres, Diversity
from besiege.training.updates import Perturbed, Replay


@dataclass(frozen=True)
class Setting:
    """What the recipes of one data set have in common.

    Attributes
    ----------
    data : str
        The data set; empty for any.
    threat : str
        Threat of adversarial recipes.
    usual : mapping
        Fields of natural training.
    steps, step : int, float
        Steps of the inner attack, and the length of each as a share of the budget.
    robust : mapping
        Further fields of adversarial recipes.
    sources : tuple of str
        Static models for ensemble adversarial training.
    """

    data: str = ""
    threat: str = "linf:8/255"
    usual: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 7
    step: float = 0.25
    robust: Mapping[str, Any] = field(default_factory=lambda: {"ramp": 10})
    sources: tuple[str, ...] = ()

    @property
    def attack(self) -> Ascent:
        """The inner attack: Madry et al. (2018), equal steps from a random start."""
        return replace(pgd, steps=self.steps, schedule=Constant(self.step))

    @property
    def radius(self) -> float:
        """The budget."""
        return Threat.parse(self.threat).radius

    @property
    def epochs(self) -> int:
        """Epochs of natural training."""
        return int(self.usual.get("epochs", 40))


_CIFAR = {
    # For 32x32 colour images and networks with batch norm.
    "epochs": 60,
    "batch": 256,
    "optimiser": "sgd",
    "rate": 0.2,
    "decay": 5e-4,
    "warmup": 0.1,
    "decayed": "weights",
    "crop": 4,
    "flip": True,
    "precision": "bfloat16",
    "held_out": 1000,
    "whole": True,
}
_MNIST = {"epochs": 12, "batch": 128, "rate": 2e-3, "schedule": "linear", "warmup": 0.2}
SETTINGS = (
    Setting(),
    Setting("digits", "linf:0.15", sources=("zoo:digits-natural", "zoo:digits-pgd-at")),
    Setting(
        "mnist",
        "linf:0.3",
        _MNIST,
        steps=10,
        step=0.2,
        robust={"ramp": 3},
        sources=("public:mnist_lenet_clean", "public:mnist_conv_small_nat"),
    ),
    Setting(
        "cifar10",
        usual=_CIFAR,
        steps=10,
        robust={
            "epochs": 90,
            # The moving average removes most of the overfitting of late epochs (Rice et al. 2020).
            "average": 0.999,
            "early": replace(pgd, steps=3, schedule=Constant(0.5)),
            "early_share": 0.3,
        },
        sources=(
            "public:cifar10_resnet32",
            "public:cifar10_resnet44",
            "zoo:cifar10-conv5",
            "zoo:cifar10-vgg16",
        ),
    ),
)


def _adversarial(setting: Setting, **slots: Any) -> dict[str, Any]:
    """Fields of a recipe with the inner attack of its data set, unless `slots` has another."""
    threat = Threat.parse(setting.threat)
    return {**setting.robust, "attack": setting.attack, "threat": threat, **slots}


def _pgd_at(setting: Setting) -> dict[str, Any]:
    smoothed = {"objective": CrossEntropy(smoothing=0.1)} if setting.data == "cifar10" else {}
    return _adversarial(setting, **smoothed)


def _nat(setting: Setting) -> dict[str, Any]:
    """Kurakin et al. (2017): one step towards the least likely class, weights 1 and 0.3."""
    radii = HalfNormal(setting.radius / 2, setting.radius)
    clean = CrossEntropy(clean=1 / 1.3)
    return _one_step(setting, llc) | {"radius": radii, "objective": clean}


def _eat(setting: Setting) -> dict[str, Any] | None:
    """Tramèr et al. (2018): R+FGSM crafted on static models or the model itself."""
    if not setting.sources:
        return None
    share = 1 / 6 if setting.data == "mnist" else 1 / 2
    attack = replace(rfgsm, start=Signs(share), schedule=Constant(1 - share))
    return _one_step(setting, attack) | {
        "objective": CrossEntropy(clean=0.5),
        "sources": setting.sources,
        "away_from": "prediction",
    }


def _one_step(setting: Setting, attack: Ascent) -> dict[str, Any]:
    """Fields of a recipe whose attack is one step, which needs no cheaper one before."""
    robust = {k: v for k, v in setting.robust.items() if not k.startswith("early")}
    return {**robust, "attack": attack, "threat": Threat.parse(setting.threat)}


def _fast_at(setting: Setting) -> dict[str, Any]:
    """Wong et al. (2020): one step of 1.25 budgets from a random start, a rising, falling rate."""
    attack = replace(fgsm, start=Uniform(), schedule=Constant(1.25))
    slots = _one_step(setting, attack) | {"guard": 0.2, "warmup": 0.4, "schedule": "linear"}
    if setting.data == "cifar10":
        slots |= {"epochs": 30, "average": 0.0, "crafting": "train"}
    return slots


def _free_at(setting: Setting) -> dict[str, Any]:
    """Shafahi et al. (2019): every batch is replayed, so there are fewer epochs."""
    m = 8 if setting.data == "cifar10" else 4
    epochs = max(1, round(int(setting.robust.get("epochs", setting.epochs)) / m))
    slots = _one_step(setting, fgsm) | {"attack": None, "update": Replay(m), "epochs": epochs}
    return slots | {"ramp": 0}


def _trades(setting: Setting) -> dict[str, Any]:
    """Zhang et al. (2019): the attack raises the divergence, from a point beside the image."""
    beta = 1.0 if setting.data == "mnist" else 6.0
    attack = replace(setting.attack, loss=Divergence(), start=Beside())
    early = setting.robust.get("early")
    slots = {} if early is None else {"early": replace(early, loss=Divergence(), start=Beside())}
    return _adversarial(setting, attack=attack, objective=Trades(beta), **slots)


def _smoothadv(setting: Setting) -> dict[str, Any]:
    """Salman et al. (2019): steps of twice the budget over their number, from the image itself."""
    steps = 4
    attack = replace(pgd, steps=steps, start=Origin(), schedule=Constant(2 / steps))
    far = replace(setting, threat="l2:1.0" if setting.data == "mnist" else "l2:0.5")
    slots = {"objective": SmoothAdv(2), "layers": (GaussianNoise(0.25),)}
    return _one_step(far, attack) | slots


# Bounds need a low rate and no averages of weights; an epoch that attacks choose has no proofs.
_BOUNDED = {"optimiser": "adam", "decay": 0.0, "held_out": 0, "precision": "float32"}


def _bounded(setting: Setting, threat: str, **settings: Any) -> dict[str, Any]:
    """Fields of certified training: fewer epochs than the 200 and 3,200 of the papers."""
    fields = {**_BOUNDED, "threat": Threat.parse(threat), "schedule": "linear"}
    fields |= {"digits": {"epochs": 100}, "mnist": {"epochs": 40}, "cifar10": {"epochs": 200}}.get(
        setting.data, {"epochs": 100}
    )
    return fields | settings


def _interval(setting: Setting, objective: Bounded) -> dict[str, Any]:
    """Budgets of training beyond those of the test: 0.4 for 0.3 on MNIST, elsewhere by a tenth."""
    threat = {"digits": "linf:0.1", "cifar10": "linf:2/255"}.get(setting.data, setting.threat)
    beyond = 4 / 3 if setting.data == "mnist" else 1.1
    rate = 2e-3 if setting.data == "digits" else 5e-4
    return _bounded(setting, threat, objective=replace(objective, beyond=beyond), rate=rate)


def _convex(setting: Setting) -> dict[str, Any]:
    """Wong and Kolter (2018): the budget grows from a tenth of it over a third of the training."""
    usual = {"digits": "linf:0.1", "mnist": "linf:0.1", "cifar10": "linf:2/255"}
    form = Bounded("fast-lin", 0.0, 0.0, 1.0, calm=0.0, ramp=1 / 3, rise="linear", first=0.1)
    threat = usual.get(setting.data, setting.threat)
    batch = {"mnist": 50, "cifar10": 20}.get(setting.data, 50)
    return _bounded(setting, threat, objective=form, rate=1e-3, batch=batch)


def _igr(setting: Setting) -> dict[str, Any]:
    # DEEPSEC's weights of 316 and 10 are of batches of 100 and 32: 3.16 and 0.31 per example.
    weight = {"mnist": 3.16, "cifar10": 0.31}.get(setting.data, 1.0)
    return {"objective": GradientPenalty(weight)}


def _thermometer(setting: Setting) -> dict[str, Any]:
    """Buckman et al. (2018): codes of 16 levels, clean images beside those of LS-PGA."""
    attack = parse(f"lspga(steps={setting.steps})")
    slots = {"attack": attack, "objective": CrossEntropy(clean=0.5), "layers": (Thermometer(16),)}
    return _one_step(setting, fgsm) | slots


def _deepdefense(setting: Setting) -> dict[str, Any]:
    """Yan et al. (2018): a trained network is fine-tuned for five epochs."""
    tuned = {"epochs": 5, "batch": 100, "optimiser": "sgd", "rate": 5e-4, "decay": 5e-4}
    if setting.data == "digits":  # an epoch has 14 steps, and MNIST's 600
        tuned |= {"epochs": 10, "rate": 5e-3}
    # Every epoch trades accuracy for distance: held-out accuracy would choose the least changed.
    last = {"schedule": "constant", "warmup": 0.0, "held_out": 0}
    return {**tuned, **last, "objective": Reach()}


# Networks of layers have no accuracy that could choose an epoch, and see whole images.
_NETWORK = {"optimiser": "adam", "decay": 0.0, "held_out": 0, "crop": 0, "schedule": "linear"}


def _pixelcnn(setting: Setting) -> dict[str, Any]:
    """A PixelCNN for PixelDefend (Song et al. 2018); the average of weights is more likely."""
    fields = {**_NETWORK, "objective": Likelihood(), "rate": 1e-3, "warmup": 0.05}
    if setting.data == "digits":
        fields |= {"epochs": 40, "rate": 4e-3, "average": 0.99}
    elif setting.data == "mnist":
        fields |= {"epochs": 12, "batch": 64, "average": 0.999}
    elif setting.data == "cifar10":
        fields |= {"epochs": 60, "batch": 64, "average": 0.9995}
    return fields


def _reformer(setting: Setting) -> dict[str, Any]:
    """Meng and Chen (2017): 100 epochs and noise of 0.1 for MNIST, 400 and 0.025 for CIFAR-10."""
    noise = 0.025 if setting.data == "cifar10" else 0.1
    epochs = {"digits": 300, "mnist": 100, "cifar10": 400}.get(setting.data, 100)
    fields = {**_NETWORK, "objective": Reconstruction(noise), "rate": 1e-3, "warmup": 0.0}
    fields |= {"epochs": epochs, "batch": 256, "flip": False, "schedule": "constant"}
    return fields | ({"batch": 64, "rate": 5e-3} if setting.data == "digits" else {})


# Fields of each recipe beside those of natural training; None where a data set has no such recipe.
_FAMILIES: Mapping[str, Callable[[Setting], dict[str, Any] | None]] = MappingProxyType(
    {
        "natural": lambda setting: {},
        "nat": _nat,
        "eat": _eat,
        "pgd-at": _pgd_at,
        # The paper's 0.5, averaged over classes as in its authors' code: 0.05 for each of ten.
        "alp": lambda setting: _adversarial(setting, objective=Pairing(0.05)),
        "trades": _trades,
        "mart": lambda setting: _adversarial(setting, objective=Mart(5.0)),
        "fast-at": _fast_at,
        "free-at": _free_at,
        "awp": lambda setting: _adversarial(setting, update=Perturbed(0.01)),
        "deepdefense": _deepdefense,
        "denoise": _pgd_at,
        "distilled": lambda setting: {"objective": Distil()},
        "igr": _igr,
        "rse": lambda setting: {},
        "adp": lambda setting: {"objective": Diversity()},
        "mmc": lambda setting: {"objective": Centres()},
        "thermometer": _thermometer,
        "gaussian": lambda setting: {"layers": (GaussianNoise(0.25),)},
        "smoothadv": _smoothadv,
        "ibp": lambda setting: _interval(setting, Bounded("ibp", clean=0.5)),
        "crown-ibp": lambda setting: _interval(setting, Bounded("crown-ibp", clean=0.0)),
        "convex": _convex,
        "pixelcnn": _pixelcnn,
        "reformer": _reformer,
    }
)


def _register() -> None:
    for setting in SETTINGS:
        for family, slots in _FAMILIES.items():
            fields = slots(setting)
            if fields is not None:
                name = f"{family}@{setting.data}" if setting.data else family
                RECIPES.add(name, Recipe(name, **{**setting.usual, **fields}))


# DEEPSEC's settings (Ling et al. 2019, section IV and their code): one network for each data set.
_DEEPSEC_MNIST = {"epochs": 20, "batch": 100, "optimiser": "sgd", "rate": 0.05, "decay": 1e-6}
_DEEPSEC_CIFAR = {"epochs": 200, "batch": 32, "schedule": "drops", "drops": (0.4, 0.6, 0.8)}
_DEEPSEC = (
    Setting(
        "deepsec-mnist",
        "linf:0.3",
        {**_DEEPSEC_MNIST, "schedule": "constant"},
        steps=40,
        step=1 / 30,
        robust={},
        sources=SETTINGS[2].sources,
    ),
    Setting(
        "deepsec-cifar10",
        usual={**_DEEPSEC_CIFAR, "crop": 3, "flip": True, "held_out": 5000},
        robust={},
        sources=SETTINGS[3].sources,
    ),
)


def _deepsec(setting: Setting) -> dict[str, dict[str, Any]]:
    """DEEPSEC's defenses with its own settings."""
    mnist = setting.data == "deepsec-mnist"
    cap, sigma = (0.3, 50 / 255) if mnist else (0.1, 15 / 255)
    far = replace(setting, threat=f"linf:{cap}")
    # R+FGSM's random step: 0.05 of 0.3, and 0.03125 of 0.0625.
    first = 1 / 6 if mnist else 1 / 2
    ensemble = replace(setting, threat="linf:0.3" if mnist else "linf:0.0625")
    coded = parse(f"lspga(steps={setting.steps})")
    codes = {"attack": coded, "layers": (Thermometer(16),), "objective": CrossEntropy(clean=0.5)}
    return {
        "natural": {},
        "nat": _one_step(far, llc)
        | {"radius": HalfNormal(sigma, cap, "clipped"), "objective": CrossEntropy(clean=1 / 1.3)},
        "eat": _one_step(ensemble, replace(rfgsm, start=Signs(first), schedule=Constant(1 - first)))
        | {
            "objective": CrossEntropy(clean=0.5),
            "sources": setting.sources,
            "away_from": "prediction",
        },
        # The paper says that only adversarial images are trained on; its code takes both.
        "pgd-at": _adversarial(setting, objective=CrossEntropy(clean=0.5)),
        "distilled": {"objective": Distil(temperature=50.0)},
        "igr": {"objective": GradientPenalty(316.0 if mnist else 10.0, per_example=False)},
        "thermometer": _one_step(
            replace(setting, threat="linf:0.3" if mnist else "linf:0.031"), fgsm
        )
        | codes,
    }


def _register_deepsec() -> None:
    for setting in _DEEPSEC:
        for family, fields in _deepsec(setting).items():
            name = f"{family}@{setting.data}"
            RECIPES.add(name, Recipe(name, **{**setting.usual, **fields}))


_register()
_register_deepsec()

natural, pgd_at = RECIPES.get("natural"), RECIPES.get("pgd-at")
natural_cifar, pgd_at_cifar = RECIPES.get("natural@cifar10"), RECIPES.get("pgd-at@cifar10")
