"""`load`: from a text to a victim; shipped, public and own weights, factories, endpoints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as write_safetensors
from torch import Tensor, nn

from besiege.core.errors import DataError, InputError, UnknownNameError, near
from besiege.core.files import replace_file
from besiege.core.identity import remember
from besiege.core.text import from_file, read, read_arguments
from besiege.core.victim import DERIVE, Victim
from besiege.models import catalogue
from besiege.models.architectures import ARCHITECTURES
from besiege.models.catalogue import CATALOGUE, FORMS, SCHEMES, ZOO, zoo_names
from besiege.models.checkpoints import (
    SUFFIXES,
    built,
    called,
    check_arguments,
    from_safetensors,
    read_weights,
)
from besiege.models.classifier import Classifier
from besiege.models.public import PUBLIC
from besiege.models.secrecy import must_hold_no_secret
from besiege.models.sizing import Sizing

_WRITTEN = "a model is " + ", ".join(f"'{form}'" for form in FORMS)
# Arguments of a weights source that go to the Classifier; the rest go to the architecture.
_ABOUT_THE_VICTIM = ("mean", "std", "box", "outputs", "grid")


def load(text: str, device: str | torch.device | None = None) -> Classifier:
    """The classifier that a text names.

    Parameters
    ----------
    text : str
        ``zoo:NAME`` (shipped with besiege), ``public:NAME`` (weights in the data root),
        ``ARCH(mean=..., std=...):path/weights.safetensors`` (or a checkpoint of `torch.save` that
        holds only tensors) or ``path/to/file.py:factory``, optionally with arguments:
        ``file.py:factory(width=2)``, or a model of an installed package:
        ``torchvision:NAME``, ``timm:NAME``, ``hf:REPO``, ``robustbench:DATA/THREAT/NAME``.
        `besiege.defenses.load` also reads layers of defenses, and models without gradients:
        ``path/file.onnx``, ``http://HOST/PATH``.
    device : str or torch.device, optional
        Where it computes; by default where its factory put it, otherwise on the CPU.

    Returns
    -------
    Classifier
        Its name is the text.

    Examples
    --------
    >>> from besiege.models import load
    >>> load("zoo:digits-natural").classes
    10
    """
    if behind := layers_of(text):
        raise InputError(
            f"'{text}' is deployed behind {behind}: load both with besiege.defenses.load"
        )
    must_classify(text)
    victim = load_network(text)
    return victim if device is None else victim.to(device)


def load_network(text: str) -> Classifier:
    """The network that a text names, classifier or not: its `answer` may have any shape.

    Layers and trainings load networks such as ``zoo:digits-autoencoder`` with it.
    """
    victim = find(text)
    if not isinstance(victim, Classifier):
        raise InputError(
            f"'{text}' gave a {type(victim).__name__}, which is a victim but not a Classifier: "
            "load it with besiege.defenses.load"
        )
    return victim


def must_classify(text: str) -> None:
    """Refuse the text of a network that is no classifier, before it is loaded."""
    layer = catalogue.layer_of(text)
    if layer is None:
        return
    raise InputError(
        f"'{text}' is no classifier, but the network of a layer: write it after a model, as in "
        f"\"zoo:digits-natural+{layer}('{text}')\""
    )


def layers_of(text: str) -> str | None:
    """The layers that a shipped model was trained behind, as text; None without any."""
    scheme, _, name = text.partition(":")
    if scheme != "zoo" or name not in zoo_names():
        return None
    return catalogue.zoo_card(name).get("layers")


def find(text: str) -> Victim:
    """The victim that a text names: a factory in a file may return any kind."""
    must_hold_no_secret(text)
    scheme, _, name = text.partition(":")
    if scheme == "zoo":
        return _from_zoo(name)
    if scheme == "public":
        return _from_public(name)
    if scheme in SCHEMES:
        from besiege.models.packages import find as find_packaged

        return find_packaged(text)
    if scheme in ("http", "https"):
        from besiege.models.endpoint import Endpoint

        return _with_arguments(Endpoint, text)
    if scheme not in ARCHITECTURES and re.fullmatch(r"[^(]+\.onnx\s*(\(.*\))?", text, re.DOTALL):
        from besiege.models.onnx_file import OnnxModel

        return _with_arguments(OnnxModel, text)
    if re.fullmatch(r".+\.py:\s*\w+\s*(\(.*\))?", text, re.DOTALL):
        return _from_factory(text)
    if match := re.fullmatch(r"(\w+)(?:\((.*)\))?:(.+)", text, re.DOTALL):
        return _from_weights(match[1], match[2] or "", Path(match[3]), text)
    raise UnknownNameError(f"'{text}' names no model: {_advice(text)} ({_WRITTEN})")


def _with_arguments(kind: Callable[..., Victim], text: str) -> Victim:
    source, given = split_arguments(text)
    check_arguments(kind, given, text)
    return kind(source, **{"name": text, **given})


def _advice(text: str) -> str:
    """What the user may have meant by a text that is not a source."""
    architecture = re.match(r"\w*", text)[0]  # type: ignore[index]  # an empty match at least
    if architecture in CATALOGUE:
        return f"it is an architecture, write '{text}:path/weights.safetensors'"
    if text.endswith(".py"):
        return f"name the function in it that makes the model, such as '{text}:make'"
    if text.endswith(SUFFIXES):
        return f"write its architecture before it, such as 'resnet20:{text}'"
    if (own := _own_file(text)) is not None:
        return f"a function in a file is written '{own}'"
    known = [f"zoo:{n}" for n in zoo_names()] + [f"public:{n}" for n in PUBLIC]
    close = near(text, known)
    return close if close.startswith("did you mean") else "`besiege models` lists the names"


def _own_file(text: str) -> str | None:
    """The factory in a file that exists and whose suffix was left out, such as 'nets.py:make'."""
    match = re.fullmatch(r"([\w./\\-]+?)(?:\.py)?(?::(\w+)(\(.*\))?)?", text, re.DOTALL)
    if match is None or not Path(f"{match[1]}.py").is_file():
        return None
    return f"{match[1]}.py:{match[2] or 'make'}{match[3] or ''}"


def save_zoo(
    module: nn.Module, card: Mapping[str, Any], folder: Path | str = ZOO, *, half: bool = False
) -> Path:
    """Write a model as ``NAME.safetensors`` with its card ``NAME.json``; returns the card's path.

    Parameters
    ----------
    module : nn.Module
        An instance of the architecture the card names.
    card : mapping
        ``name``, ``arch`` and, where they apply, ``arguments`` (of the architecture), ``mean`` and
        ``std``; then any other facts: recipe, command, seed, data digest, device, accuracies with
        intervals. The weights' digest is added as ``sha256``.
    folder : path
        Folder to write to; the package's own zoo by default.
    half : bool
        Store half precision, half the size. The rounding is part of the model: measure the model
        that `load` returns, which computes in float32.
    """
    missing = [key for key in ("name", "arch") if not card.get(key)]
    if missing:
        raise InputError(f"the card lacks {' and '.join(missing)}: every zoo model needs them")
    name = str(card["name"])
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"the card's name is {name!r}: use letters, digits, '_', '-' and '.'")
    weights = write_safetensors(
        {key: _stored(key, tensor, half) for key, tensor in module.state_dict().items()}
    )
    # Build it once, so that a card which does not describe the weights is refused now.
    where = f"the card of '{name}'"
    _of(card["arch"], card.get("arguments") or {}, from_safetensors(weights, where), where)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    if path.exists() and path.read_bytes() != weights:
        raise DataError(
            f"{path.name} exists with other weights, and a zoo model's weights never change: "
            "choose another name, or remove the file if it was never published"
        )
    replace_file(path, weights)
    full = {**card, "sha256": hashlib.sha256(weights).hexdigest()}
    target = folder / f"{name}.json"
    replace_file(target, (json.dumps(full, indent=2) + "\n").encode())
    return target


def _stored(name: str, tensor: Tensor, half: bool) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    if not half or not tensor.is_floating_point():
        return tensor
    short = tensor.half()
    if not torch.isfinite(short).all():
        raise InputError(f"{name} has values that half precision cannot hold: store it in full")
    return short


def _from_zoo(name: str) -> Classifier:
    if name not in zoo_names():
        raise _unlisted("the zoo has no model", name, zoo_names())
    card = catalogue.zoo_card(name)
    tensors = read_weights(catalogue.ZOO / f"{name}.safetensors", card["sha256"])
    module = _of(card["arch"], card.get("arguments") or {}, tensors, f"zoo:{name}")
    return Classifier(
        module,
        name=f"zoo:{name}",
        mean=card.get("mean"),
        std=card.get("std"),
        classes=card.get("classes"),
    )


def _unlisted(problem: str, name: str, known: Iterable[str]) -> UnknownNameError:
    layers = " (besiege.defenses.load reads layers after a '+')" if "+" in name else ""
    return UnknownNameError(f"{problem} '{name}': {near(name, known)}{layers}")


def _from_public(name: str) -> Classifier:
    if name not in PUBLIC:
        raise _unlisted("no public model is called", name, PUBLIC)
    entry, path = PUBLIC[name], catalogue.public_path(name)
    if path is None or not path.exists():
        file = f"weights/{catalogue.public_file(name)}"
        if path is not None:
            file = f"{path}, which does not exist"
        raise DataError(
            f"public:{name} needs {file}: set BESIEGE_DATA to a data root that holds the file"
        )
    tensors = read_weights(path, entry.sha256)
    module = _of(entry.architecture, entry.arguments, tensors, path.name)
    return Classifier(
        module,
        name=f"public:{name}",
        mean=entry.mean,
        std=entry.std,
        classes=entry.classes,
        sizing=None if entry.crop is None else Sizing(crop=(entry.crop, entry.crop)),
    )


def _from_weights(architecture: str, arguments: str, path: Path, text: str) -> Classifier:
    if architecture not in ARCHITECTURES:
        if (own := _own_file(text)) is not None:
            raise UnknownNameError(
                f"'{text}' names no model: a function in a file is written '{own}' ({_WRITTEN})"
            )
        raise UnknownNameError(
            f"'{text}' names no model: no architecture is called '{architecture}', "
            f"{near(architecture, [*ARCHITECTURES, 'zoo', 'public', *SCHEMES])} ({_WRITTEN})"
        )
    try:
        given = read_arguments(arguments)
    except InputError as error:
        raise InputError(
            f"'({arguments})' in '{text}' cannot be read: {error}; write for example "
            "'resnet20(mean=(0.5,0.5,0.5), std=(63/255,62/255,67/255)):weights.safetensors'"
        ) from None
    about = {key: given.pop(key) for key in _ABOUT_THE_VICTIM if key in given}
    check_arguments(ARCHITECTURES[architecture], given, architecture, also=_ABOUT_THE_VICTIM)
    tensors = read_weights(path)
    try:
        module = _of(architecture, given, tensors, path.name)
    except DataError as problem:
        raise DataError(
            f"{problem}. If they are of a network of your own, name the function that builds it "
            "and loads them: path/to/model.py:make"
        ) from problem
    return Classifier(module, name=text, **about)


def unnormalised(text: str) -> bool:
    """Whether a text names weights of another origin without the mean and std of images.

    What besiege trained has a card beside it: it takes images as they are, unless its card says
    otherwise, as that of a fine-tuned model may.

    Examples
    --------
    >>> unnormalised("resnet20:best.pt"), unnormalised("resnet20(mean=0.5, std=0.25):best.pt")
    (True, False)
    """
    source, _, path = text.partition("+")[0].partition(":")
    architecture, _, arguments = source.strip().partition("(")
    if architecture not in ARCHITECTURES or "mean" in arguments:
        return False
    try:
        card = json.loads(Path(path).with_suffix(".json").read_text("utf-8"))
    except (OSError, ValueError):
        return True
    return not isinstance(card, dict) or "arch" not in card or card.get("mean") is not None


def _from_factory(text: str) -> Victim:
    factory, rest = from_file(text)
    written = rest.partition("(")[2].strip().removesuffix(")")
    if isinstance(factory, nn.Module) and not written:
        made: Any = factory
    elif callable(factory):
        made = called(factory, read_arguments(written), text)
    else:
        raise InputError(f"'{text}' is a {type(factory).__name__}, not a model factory")
    if isinstance(made, nn.Module):
        remember(made)
        return Classifier(made, name=text)
    if not isinstance(made, Victim):
        raise InputError(
            f"'{text}' gave a {type(made).__name__}, but a factory returns a torch.nn.Module or a "
            f"besiege.models.Classifier (a victim type of your own must {DERIVE})"
        )
    if isinstance(made, Classifier):
        remember(made.module)
    if not made.metered:  # the name of a server's model may tell whose queries are counted
        with suppress(AttributeError):  # a victim type may compute its name
            # Messages repeat what the user typed, so that a command in them can be run.
            made.name = text
    return made


def split_arguments(text: str) -> tuple[str, dict[str, Any]]:
    """A source without its arguments, and the arguments; words need no quotes.

    Examples
    --------
    >>> split_arguments("http://127.0.0.1:8000/predict(format=png, classes=10)")
    ('http://127.0.0.1:8000/predict', {'format': 'png', 'classes': 10})
    """
    source, opened, written = text.strip().partition("(")
    if opened and not written.endswith(")"):
        raise InputError(f"'{text}' opens a parenthesis and does not close it at its end")

    def value(name: str, args: list[Any], given: dict[str, Any]) -> Any:
        if name == "arguments" and not args:
            return given
        if args or given:
            raise InputError(f"'{name}(...)' is neither a number nor a word")
        return name

    try:
        given = read(f"arguments({written.removesuffix(')')})", value)
    except InputError as problem:
        raise InputError(
            f"'({written}' in '{text}' cannot be read: {problem}; write name=value pairs of "
            "numbers, words and tuples"
        ) from None
    return source.strip(), given


def with_argument(text: str, name: str, value: str) -> str:
    """The text of a source with one more argument, unless it has it already.

    Examples
    --------
    >>> with_argument("http://127.0.0.1:8000/predict", "access", "decision")
    'http://127.0.0.1:8000/predict(access=decision)'
    """
    if name in split_arguments(text)[1]:
        return text
    source, opened, written = text.strip().partition("(")
    inside = f", {written}" if opened and written != ")" else ")"
    return f"{source}({name}={value}{inside}"


def _of(
    architecture: str, arguments: Mapping[str, Any], tensors: dict[str, Tensor], where: str
) -> nn.Module:
    """A network of the architecture with this name and these weights, in eval mode."""
    if architecture not in ARCHITECTURES:
        raise UnknownNameError(
            f"{where}: no architecture is called '{architecture}': "
            f"{near(architecture, ARCHITECTURES)}"
        )
    return built(ARCHITECTURES[architecture], arguments, tensors, where).eval()
