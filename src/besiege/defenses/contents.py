"""Digests of networks, layers and victims by what they hold, not by their code."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from torch import Tensor, nn

from besiege.core.victim import Victim
from besiege.defenses.layers import Layer
from besiege.models.classifier import Classifier


def digest_of(value: Victim | nn.Module | Layer | Mapping[str, Tensor]) -> str:
    """SHA-256 of weights, structure and preprocessing, not of code.

    A detector's file names its model by this digest: `Victim.digest` also covers the source of the
    network, so that an edit of a comment there would make every file one of another model.
    """
    from besiege.defenses.defended import Defended  # it reads files of detectors
    from besiege.models.ensemble import Ensemble

    if isinstance(value, Layer):
        written = [f"{value}, revision {value.revision}", *map(digest_of, value.parts)]
    elif isinstance(value, Classifier):
        about = (value.mean, value.std, value.box, value.outputs, value.grid, value.sizing)
        written = [repr(about), digest_of(value.module)]
    elif isinstance(value, Defended):
        written = ["Defended", *map(digest_of, value.layers), digest_of(value.victim)]
    elif isinstance(value, Ensemble):
        how = f"Ensemble {value.fuse} {value.equalise} {value.weights}"
        written = [how, *map(digest_of, value.members)]
    elif isinstance(value, Victim):
        return value.digest()
    elif isinstance(value, nn.Module):
        named = value.named_modules(remove_duplicate=False)
        written = [f"{path}: {_structure(part)}" for path, part in named]
        written.append(_tensors(value.state_dict()))
    else:
        return _tensors(value)
    return sha256("\n".join(written).encode()).hexdigest()


def _structure(part: nn.Module) -> str:
    """A module without those inside it: its class, and its settings."""
    kind = type(part)
    if kind.__module__.startswith("torch."):
        return f"{kind.__name__}({part.extra_repr()})"
    kept = (bool, int, float, str, tuple, type(None))
    shown = {k: v for k, v in vars(part).items() if k[0] != "_" and isinstance(v, kept)}
    shown.pop("training", None)  # the mode, which calls set
    return f"{kind.__name__} {sorted(shown.items())}"


def _tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}\n".encode())
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()
