"""Published forms of layers, by name: ``jpeg@realsafe`` is JPEG as RealSafe deployed it.

A form stands for the layers it is made of, and for the pooling after them where there is one:
``eit@deepsec`` is a chain of four layers. Names of victims, and records, spell the layers out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from besiege.core.errors import InputError, UnknownNameError, near


@dataclass(frozen=True)
class Form:
    """A published form of a layer, or of a chain of layers.

    Attributes
    ----------
    name : str
        The layer and the name of the form: ``jpeg@realsafe``.
    layers : tuple of str
        The layers from the image inwards, and ``pooled`` last where draws are pooled.
    source : str
        The publication, and what it deployed.
    differs : str
        What differs from the source; empty if nothing is known to.
    """

    name: str
    layers: tuple[str, ...]
    source: str
    differs: str = ""

    @property
    def text(self) -> str:
        """The layers as they are written after a model."""
        return "+".join(self.layers)


_REALSAFE = "Dong et al. 2020 (RealSafe)"
_DEEPSEC = "Ling et al. 2019 (DEEPSEC)"

_FORMS = (
    Form(
        "jpeg@realsafe",
        ("jpeg(quality=75)",),
        f"{_REALSAFE}: their clean accuracy of 80.9 % on CIFAR-10 fits quality 75",
        "their code has quality 95 by default: jpeg@realsafe-code",
    ),
    Form(
        "jpeg@realsafe-code",
        ("jpeg(quality=95)",),
        f"{_REALSAFE}: the quality of their code for CIFAR-10",
        "their code cuts pixel values to whole numbers, which costs half a level; ours rounds",
    ),
    Form(
        "bits@realsafe",
        ("bits(levels=4)",),
        f"{_REALSAFE}: four levels",
        "their thresholds are a quarter of the box apart; ours lie midway between the levels",
    ),
    Form(
        "resize_pad@realsafe",
        ("resize_pad(least=0.875)",),
        f"{_REALSAFE}: shrunk to 0.875 of the size or more, zeros around",
    ),
    Form(
        "randmix@realsafe",
        ("randmix(centres=5, sigma=16/255, apart=False)", "pooled(draws=10)"),
        f"{_REALSAFE}: 5 centres, noise of 16/255, the mean logits of 10 draws",
        "their code never updates the distances to chosen centres, so that these are uniform; "
        "Zhang and Liang choose them far apart: apart=True",
    ),
    Form(
        "eit@deepsec",
        ("crop_rescale(size=30, how='nearest')", "tvm", "jpeg(quality=85)", "bits(depth=4)"),
        f"{_DEEPSEC}: crops of 30 of 32 pixels, total variation, JPEG 85 and 4 bits for CIFAR-10",
        "for MNIST write the chain with crop_rescale(size=26); the model behind is trained on "
        "transformed images",
    ),
    Form(
        "resize_pad@deepsec",
        ("resize_pad(least=1, to=36, fill=0.5)",),
        f"{_DEEPSEC}: 32 pixels enlarged to 32 to 36, grey around",
        "their code never draws 36, their text does; for MNIST write to=31",
    ),
    Form(
        "jitter@deepsec",
        ("jitter(radius=0.02)", "pooled(draws=1000, of='votes')"),
        f"{_DEEPSEC}: region-based classification with 1,000 votes and a radius of 0.02, CIFAR-10",
        "for MNIST their radius is 0.3: jitter(0.3)+pooled(1000, of='votes')",
    ),
)
FORMS: Mapping[str, Form] = MappingProxyType({form.name: form for form in _FORMS})


def is_form(name: str) -> bool:
    """Whether a name is written as a form: its layer has forms, or its paper has.

    Examples
    --------
    >>> is_form("jpeg@reelsafe"), is_form("jpg@realsafe"), is_form("b@c")
    (True, True, False)
    """
    known = {part for form in FORMS for part in form.split("@")}
    return "@" in name and not known.isdisjoint(name.split("@"))


def layers_of_form(name: str, arguments: str = "") -> list[str]:
    """The layers that a form stands for.

    Examples
    --------
    >>> layers_of_form("jitter@deepsec")
    ['jitter(radius=0.02)', "pooled(draws=1000, of='votes')"]
    """
    form = FORMS.get(name)
    if form is None:
        raise UnknownNameError(f"no form of a layer is called '{name}': {near(name, FORMS)}")
    if arguments.strip("() \n"):
        raise InputError(
            f"'{name}' has the parameters of its publication: write {form.text} with your own"
        )
    return list(form.layers)
