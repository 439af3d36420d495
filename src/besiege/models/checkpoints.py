"""Reads weights files into modules, without executing anything in them."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import pickletools
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from torch import Tensor, nn

from besiege.core.errors import BesiegeError, DataError, InputError, described, near
from besiege.core.files import must_be_file

PICKLED = (".pt", ".pth", ".th", ".ckpt", ".bin", ".tar")
SUFFIXES = (".safetensors", *PICKLED)

# Names under which training scripts store the weights in a checkpoint, the likeliest first.
_HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "params")
# Prefixes that wrappers put before every name: data parallel, torch.compile, training scripts.
_WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
_ZIP = b"PK\x03\x04"


def read_weights(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a weights file, by name.

    Parameters
    ----------
    path : Path
        A safetensors file, or a checkpoint of `torch.save` that holds only tensors, numbers and
        text. One that would run code is refused.
    sha256 : str, optional
        Expected digest of its content.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"'{path.name}' is not a weights file: write a name that ends in "
            f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if not os.path.lexists(path):
        raise DataError(f"{path} does not exist")
    must_be_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256:
        raise DataError(
            f"{path} is not the published file: its SHA-256 is {digest[:12]}..., expected "
            f"{sha256[:12]}...; fetch it again"
        )
    if path.suffix == ".safetensors":
        return from_safetensors(content, str(path))
    return _state_dict(_unpickled(content, path), path)


def from_safetensors(content: bytes, where: str) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file."""
    try:
        return dict(read_safetensors(content))
    except SafetensorError as error:
        raise DataError(f"{where} is not a safetensors file: {error}") from None


def _unpickled(content: bytes, path: Path) -> object:
    # Before torch 2.6 a tar archive could run code in spite of weights_only.
    if not content.startswith(_ZIP) and tarfile.is_tarfile(io.BytesIO(content)):
        raise DataError(f"{path} is a tar archive: unpack it and name the weights file inside")
    if _is_torchscript(content):
        raise _more_than_tensors(path, "a TorchScript program", "torch.jit.load('{}')")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old protocols; real problems are raised
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        asked = re.search(r"GLOBAL (\S+)", str(error))
        if asked is None and not _is_pickle(content):
            raise DataError(
                f"{path} is damaged or not a checkpoint of torch.save ({type(error).__name__})"
            ) from None
    wants = f"more than tensors (it asks for {asked[1]})" if asked else "more than tensors"
    opened = "torch.load('{}', map_location='cpu', weights_only=False)"
    raise _more_than_tensors(path, wants, opened)


def _more_than_tensors(path: Path, what: str, opened: str) -> DataError:
    safe = path.with_suffix(".safetensors").name
    return DataError(
        f"{path} holds {what}: opening it would run code, so it was not opened. "
        "If you trust it, convert it once, in a sandbox:\n"
        "  import torch, safetensors.torch\n"
        f"  safetensors.torch.save_file({opened.format(path.name)}.state_dict(), '{safe}')\n"
        "(['state_dict'] instead of .state_dict() if it holds a dictionary)"
    )


def _is_pickle(content: bytes) -> bool:
    """Whether it parses as a pickle; parsing does not run it."""
    try:
        return any(step.name == "STOP" for step, _, _ in pickletools.genops(content))
    except Exception:  # other content can raise anything
        return False


def _is_torchscript(content: bytes) -> bool:
    if not content.startswith(_ZIP):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False  # damaged, which torch.load reports


def _state_dict(content: object, path: Path) -> dict[str, Tensor]:
    """The weights in the content of a checkpoint, which may be nested in a dictionary."""
    if _is_state(content):
        return {str(name): tensor.detach() for name, tensor in content.items()}
    inside = content if isinstance(content, Mapping) else {}
    states = {str(name): part for name, part in inside.items() if _is_state(part)}
    for name in (*_HOLDERS, *states):
        if name in states:
            return _state_dict(states[name], path)
    names = [repr(str(name)) for name in inside]
    held = f"a dictionary of {', '.join(names[:5])}" if names else f"a {type(content).__name__}"
    raise DataError(
        f"{path} holds {held}, but weights are a dictionary of tensors by name, by itself or under "
        f"one of {', '.join(_HOLDERS)}"
    )


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    if not isinstance(content, Mapping) or not content:
        return False
    return all(isinstance(part, Tensor) for part in content.values())


def built(
    make: Callable[..., nn.Module],
    arguments: Mapping[str, Any],
    tensors: dict[str, Tensor],
    where: str,
) -> nn.Module:
    """A module of an architecture with these weights; the caller's random state does not change.

    Weights are converted to the module's precision: half-precision files compute in float32.
    """
    with torch.random.fork_rng(devices=[]):
        module: nn.Module = called(make, arguments, make.__name__)
    wanted = module.state_dict()
    tensors = _unwrapped(tensors, wanted)
    missing = [
        name
        for name in wanted
        # The number of training batches has no effect in evaluation, and old files lack it.
        if name not in tensors and not name.endswith("num_batches_tracked")
    ]
    extra = sorted(name for name in tensors if name not in wanted)
    other = [
        f"{name} {list(tensor.shape)} where {list(wanted[name].shape)} is expected"
        for name, tensor in sorted(tensors.items())
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    number = [n for n, t in tensors.items() if n in wanted and not _same_kind(t, wanted[n])]
    problems = [
        f"{problem} {_first(names)}"
        for problem, names in (
            ("it lacks", missing),
            ("it has", other),
            ("it also has", extra),
            ("it has no floating-point numbers in", number),
        )
        if names
    ]
    if problems:
        raise DataError(f"{where} does not fit {make.__name__}: {'; '.join(problems)}")
    module.load_state_dict(tensors, strict=False)
    return module


def _same_kind(given: Tensor, wanted: Tensor) -> bool:
    return given.is_floating_point() or not wanted.is_floating_point()


def _first(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _unwrapped(tensors: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name, without the prefixes of wrappers."""
    for _ in range(4):
        prefix = next((p for p in _WRAPPERS if all(name.startswith(p) for name in tensors)), None)
        if prefix is None or any(name.startswith(prefix) for name in wanted):
            break
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def called(make: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> Any:
    """The result of calling a factory with these arguments."""
    check_arguments(make, arguments, where)
    try:
        return make(**arguments)
    except BaseException as error:
        if isinstance(error, (BesiegeError, KeyboardInterrupt)):
            raise
        raise InputError(f"'{where}' failed: {described(error)}{_within(error)}") from error


def _within(error: BaseException) -> str:
    """What to do about a Classifier that was made part of a module, which it is not."""
    if not isinstance(error, TypeError) or "Classifier is not a Module subclass" not in str(error):
        return ""
    return (
        ". A Classifier is a model with its normalisation and no nn.Module: put the layers "
        "together first, as in Classifier(nn.Sequential(net, layer), mean=..., std=...)"
    )


def check_arguments(
    make: Callable[..., Any], names: Iterable[str], where: str, also: Sequence[str] = ()
) -> None:
    """Refuse arguments that a factory does not take; the error names the nearest ones it does."""
    try:
        known = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return  # a C function has no signature
    if any(p.kind is p.VAR_KEYWORD for p in known):
        return
    taken = [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in names:
        if name not in taken:
            raise InputError(f"'{where}' takes no '{name}': {near(name, [*taken, *also])}")
