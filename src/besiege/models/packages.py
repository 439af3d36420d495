"""Models of other packages: ``torchvision:NAME``, ``timm:NAME``, ``hf:REPO``, ``robustbench:...``.

Each is built by the user's installed package, which also finds the weights in its own cache or
downloads them. Its preprocessing is put inside the victim.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

from besiege.core.errors import (
    BesiegeError,
    DataError,
    InputError,
    UnknownNameError,
    described,
    near,
)
from besiege.core.files import offline
from besiege.core.text import short
from besiege.models.checkpoints import SUFFIXES, built, check_arguments, read_weights
from besiege.models.classifier import Classifier
from besiege.models.preprocessing import Preprocessing, of_preset, of_processor, of_steps

_RESIZE = ("auto", "always", "never")
_FETCHING = ("huggingface_hub", "httpx", "httpx2", "requests")
"""Packages whose errors are failed downloads, as every OSError of a loader is."""
_INSTALLED_AS = {"pkg_resources": '"setuptools<81"', "PIL": "pillow", "yaml": "pyyaml"}
_UNQUOTED = re.compile(r"(\b(?:weights|model_dir)\s*=\s*)([^\s'\",()][^'\",()]*)")
"""A path or a name after one of these words, which needs no quotes."""


@dataclass(frozen=True)
class Package:
    """A package that models are loaded with.

    Attributes
    ----------
    name : str
        The name to import, and to install.
    least : tuple of int
        The first version with the functions used here.
    load : callable
        The victim of a `Wanted` model.
    """

    name: str
    least: tuple[int, ...]
    load: Callable[[Wanted], Classifier]


@dataclass(frozen=True)
class Wanted:
    """A model that a text names: the package that has it, its name there, and all arguments."""

    text: str
    package: Any
    name: str
    given: dict[str, Any]

    def victim(
        self, module: nn.Module, preprocessing: Preprocessing, *, classes: int | None = None
    ) -> Classifier:
        """The classifier: the network with its preprocessing inside, in evaluation mode."""
        when = self.given.get("resize", "auto")
        if when not in _RESIZE:
            raise InputError(f"resize is {when!r} in '{self.text}': {near(str(when), _RESIZE)}")
        used = preprocessing.sized(when)
        return Classifier(
            module.float().eval(),
            name=self.text,
            mean=used.mean,
            std=used.std,
            sizing=used.sizing,
            classes=classes,
        )

    def rest(self, *known: str) -> dict[str, Any]:
        """The arguments besides these and ``resize``."""
        return {key: v for key, v in self.given.items() if key not in (*known, "resize")}

    def none_but(self, *known: str) -> None:
        """Refuse arguments besides these and ``resize``."""
        for name in self.rest(*known):
            raise InputError(f"'{self.text}' takes no '{name}': {near(name, [*known, 'resize'])}")

    def made(self, make: Callable[..., Any], **arguments: Any) -> Any:
        """What a function of the package returns; random weights are those of `seed`.

        The caller's random state does not change.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.given.get("seed", 0)))
            return make(**arguments)


def find(text: str) -> Classifier:
    """The classifier that a text with the name of a package names."""
    scheme, _, rest = text.partition(":")
    source, given = _arguments(rest.strip(), text)
    if not source:
        raise InputError(f"'{text}' names no model: write for example '{_EXAMPLES[scheme]}'")
    package = PACKAGES[scheme]
    with _quietly(), _only_from_caches():
        wanted = Wanted(text, _imported(package, text), source, given)
        try:
            return package.load(wanted)
        except (BesiegeError, KeyboardInterrupt, MemoryError):
            raise
        except _Refused as problem:
            raise _not_here(package, text, str(problem)) from problem
        except Exception as problem:
            home = type(problem).__module__.partition(".")[0]
            if not isinstance(problem, OSError) and home not in _FETCHING:
                raise InputError(
                    f"{package.name} could not make '{text}': {described(problem)}"
                ) from problem
            if offline():
                raise _not_here(package, text) from problem
            raise DataError(
                f"{package.name} could not fetch '{text}': {described(problem)}. Check the name "
                "and the network"
            ) from problem


def _arguments(rest: str, text: str) -> tuple[str, dict[str, Any]]:
    from besiege.models.sources import split_arguments

    source, opened, written = rest.partition("(")

    def quoted(found: re.Match[str]) -> str:
        value = found[2].strip()
        return found[0] if value.isidentifier() else f"{found[1]}{value!r}"

    try:
        return split_arguments(source + opened + _UNQUOTED.sub(quoted, written))
    except InputError as problem:
        raise InputError(f"'{text}': {problem}") from None


def _imported(package: Package, text: str) -> Any:
    """The package itself; an error with the command to install it."""
    name, needed = package.name, ".".join(map(str, package.least))
    try:
        module = import_module(name)
    except ModuleNotFoundError as problem:
        missing = (problem.name or name).partition(".")[0]
        by = f"{name}, which is" if missing == name else f"{name}, which needs {missing}, which is"
        raise InputError(
            f"'{text}' is loaded with the package {by} not installed: pip install "
            f"{_INSTALLED_AS.get(missing, missing)}"
        ) from None
    except Exception as problem:  # such as compiled parts for another version of torch
        raise InputError(
            f"'{text}' is loaded with the package {name}, which is installed but cannot be "
            f"imported ({described(problem)}): install the build of it that fits torch "
            f"{torch.__version__}"
        ) from problem
    try:
        there = version(name)
    except PackageNotFoundError:
        there = str(getattr(module, "__version__", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", there.partition("+")[0])[:3])
    if numbers and numbers < package.least:
        raise InputError(
            f"'{text}' needs {name} {needed} or later, and {there} is installed: "
            f'pip install "{name}>={needed}"'
        )
    return module


class _Refused(Exception):
    """A download that was not allowed; its text is the file that it would have made."""


@contextmanager
def _only_from_caches() -> Iterator[None]:
    """Let packages use only what they fetched before, if ``BESIEGE_OFFLINE`` is set."""
    if not offline():
        yield
        return

    def refused(url: str, dst: str, *others: Any, **more: Any) -> None:
        raise _Refused(dst)

    download, before = torch.hub.download_url_to_file, os.environ.get("HF_HUB_OFFLINE")
    held = {}
    torch.hub.download_url_to_file = refused
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        held = {"HF_HUB_OFFLINE": getattr(constants, "HF_HUB_OFFLINE", False)}
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]  # its documented constant
    try:
        yield
    finally:
        torch.hub.download_url_to_file = download
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
        for name, value in held.items():
            setattr(constants, name, value)


@contextmanager
def _quietly() -> Iterator[None]:
    """Packages print and warn while they load: their lines go to standard error, none is raised."""
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _not_here(package: Package, text: str, file: str = "") -> DataError:
    place = f", {file}" if file else ""
    return DataError(
        f"'{text}' is not in the cache of {package.name}{place}, and BESIEGE_OFFLINE is set: unset "
        f"it once, so that {package.name} can download the model"
    )


def _unlisted(wanted: Wanted, package: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that a package does not list, with the nearest names."""
    close = near(wanted.name, known)
    if not close.startswith("did you mean"):  # thousands of names help nobody
        close = f"{package}'s documentation lists the names"
    return UnknownNameError(f"{package} has no classifier called '{short(wanted.name)}': {close}")


def _of_file(wanted: Wanted, path: str, make: Callable[..., nn.Module], **given: Any) -> Classifier:
    """A network of a package with own weights, which the package's preprocessing is not about."""
    about = {key: given.pop(key, None) for key in ("mean", "std")}
    module = built(make, given, read_weights(Path(path)), Path(path).name)
    return wanted.victim(module, Preprocessing(None, *_normalisation(about)))


def _normalisation(about: Mapping[str, Any]) -> tuple[Any, Any]:
    from besiege.models.classifier import normalisation

    return normalisation(about["mean"], about["std"])


def _is_file(weights: Any) -> bool:
    return isinstance(weights, str) and weights.endswith(SUFFIXES)


def _torchvision(wanted: Wanted) -> Classifier:
    """``torchvision:NAME``: the default weights, others by name, own ones, or None for random."""
    models = import_module("torchvision.models")
    name, weights = wanted.name, wanted.given.get("weights", "DEFAULT")
    known = models.list_models(module=models)
    if name not in known:
        raise _unlisted(wanted, "torchvision", known)
    builder = models.get_model_builder(name)
    given = wanted.rest("weights", "seed")
    if _is_file(weights):
        check_arguments(builder, [key for key in given if key not in ("mean", "std")], name)
        return _of_file(wanted, weights, builder, **given)
    check_arguments(builder, given, name, also=("weights", "resize", "seed"))
    choices = models.get_model_weights(name)
    names = [*(one.name for one in choices), "DEFAULT"]
    if weights is not None and weights not in names:
        raise UnknownNameError(
            f"torchvision has no weights '{weights}' of {name}: {near(str(weights), names)} (or "
            "None for random weights, or the path of a file)"
        )
    shown = choices[weights or "DEFAULT"]
    file = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(shown.url).path).name)
    if weights is not None and offline() and not file.exists():
        raise _Refused(file)
    module = wanted.made(models.get_model, name=name, weights=weights, **given)
    return wanted.victim(module, of_preset(shown.transforms(), f"torchvision's {name}"))


def _timm(wanted: Wanted) -> Classifier:
    """``timm:NAME`` or ``timm:NAME.TAG``: pretrained, own weights, or None for random ones."""
    timm, name = wanted.package, wanted.name
    given, weights = wanted.rest("weights", "seed"), wanted.given.get("weights", "")
    if not name.startswith(("hf-hub:", "hf_hub:")):
        tags = timm.list_models(f"{name.partition('.')[0]}.*", pretrained=True)
        if not timm.is_model(name) or ("." in name and name not in tags):
            raise _unlisted(wanted, "timm", tags if "." in name and tags else timm.list_models())
    if _is_file(weights):

        def make(**arguments: Any) -> nn.Module:
            made: nn.Module = timm.create_model(name, pretrained=False, **arguments)
            return made

        make.__name__ = name
        return _of_file(wanted, weights, make, **given)
    if weights not in ("", None):
        raise InputError(
            f"weights is '{weights}' in '{wanted.text}': timm's weights are a part of the name, as "
            "in 'timm:resnet50.a1_in1k'; write weights=None for random ones, or a file"
        )
    if weights is not None and "num_classes" in given:
        raise InputError(
            f"'{wanted.text}' would replace the last layer by a random one: leave num_classes out, "
            "or give your own weights with weights='PATH', or weights=None"
        )
    create = timm.create_model
    module = wanted.made(create, model_name=name, pretrained=weights is not None, **given)
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(module))
    return wanted.victim(module, of_steps(own, f"timm's {name}"))


def _transformers(wanted: Wanted) -> Classifier:
    """``hf:REPO``: an image classifier of the Hugging Face hub, or of a folder in its layout."""
    wanted.none_but("revision")
    package, repo = wanted.package, wanted.name
    where = {"local_files_only": True} if offline() else {}
    if "revision" in wanted.given:
        where["revision"] = wanted.given["revision"]
    config = package.AutoConfig.from_pretrained(repo, **where)
    kinds = [str(kind) for kind in getattr(config, "architectures", None) or ()]
    if kinds and not any("ForImageClassification" in kind for kind in kinds):
        raise InputError(
            f"'{wanted.text}' is a {kinds[0]}, not an image classifier: name a repository whose "
            "task is image classification"
        )
    auto = package.AutoModelForImageClassification
    module, report = wanted.made(
        auto.from_pretrained,
        pretrained_model_name_or_path=repo,
        output_loading_info=True,
        **where,
    )
    if missing := sorted(report.get("missing_keys") or ()):
        raise InputError(
            f"'{wanted.text}' has no weights for {missing[0]}: it is no trained image classifier, "
            "and its last layer would be random"
        )
    own = package.AutoImageProcessor.from_pretrained(repo, **where)
    _forget_origin(module)
    return wanted.victim(module, of_processor(own, f"'{wanted.text}'"))


def _forget_origin(module: nn.Module) -> None:
    """Remove where a model was loaded from, and notes of the loader: no part of its digest."""
    for part in module.modules():
        held = vars(part)
        held.pop("_weight_conversions", None)
        if "name_or_path" in held:
            held["name_or_path"] = ""
        if hasattr(held.get("config"), "_name_or_path"):
            held["config"]._name_or_path = ""


def _robustbench(wanted: Wanted) -> Classifier:
    """``robustbench:DATA/THREAT/NAME``: a model of the RobustBench zoo, which normalises inside."""
    wanted.none_but("model_dir")
    listed = import_module("robustbench.model_zoo").model_dicts
    parts = wanted.name.split("/")
    if len(parts) != 3:
        raise InputError(
            f"'{wanted.text}' names no model: write data, threat and name, such as "
            f"'{_EXAMPLES['robustbench']}'"
        )
    data = _member(listed, parts[0], "data set")
    threat = _member(listed[data], parts[1], "threat")
    if parts[2] not in listed[data][threat]:
        raise UnknownNameError(
            f"robustbench has no model '{short(parts[2])}' for {data.value} and {threat.value}: "
            f"{near(parts[2], listed[data][threat])}"
        )
    folder = Path(str(wanted.given.get("model_dir", "models")))  # robustbench's own default
    files = folder / data.value / threat.value
    # Without a number it is made by timm or torchvision, which look into their own caches.
    fetched = listed[data][threat][parts[2]].get("gdrive_id")
    if offline() and fetched and not list(files.glob(f"{parts[2]}.pt*")):
        raise _Refused(files / f"{parts[2]}.pt")
    module = wanted.made(
        import_module("robustbench.utils").load_model,
        model_name=parts[2],
        model_dir=folder,
        dataset=data,
        threat_model=threat,
    )
    reader = import_module("robustbench.data").get_preprocessing
    return wanted.victim(
        module, of_steps(reader(data, threat, parts[2], None), f"robustbench's {parts[2]}")
    )


def _member(known: Mapping[Any, Any], name: str, what: str) -> Any:
    """The member of an enumeration by its value; case does not matter."""
    found = {str(member.value): member for member in known}
    folded = {value.casefold(): member for value, member in found.items()}
    if name.casefold() not in folded:
        raise UnknownNameError(f"robustbench has no {what} '{short(name)}': {near(name, found)}")
    return folded[name.casefold()]


_EXAMPLES = {
    "torchvision": "torchvision:resnet50",
    "timm": "timm:resnet50.a1_in1k",
    "hf": "hf:google/vit-base-patch16-224",
    "robustbench": "robustbench:cifar10/Linf/Carmon2019Unlabeled",
}

PACKAGES = MappingProxyType(
    {
        "torchvision": Package("torchvision", (0, 17), _torchvision),
        "timm": Package("timm", (0, 9), _timm),
        "hf": Package("transformers", (4, 40), _transformers),
        "robustbench": Package("robustbench", (1, 0), _robustbench),
    }
)
"""The package of every scheme."""
