"""Files of detectors: ``MODEL+detector('FILE')`` reads what ``besiege detector`` writes.

``NAME.safetensors`` holds the fitted tensors and the threshold, ``NAME.json`` the card: kind and
parameters, the model, the images of the calibration and of the reference by their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from besiege.core.errors import BesiegeError, DataError, InputError, UnknownNameError, near
from besiege.core.files import read_file
from besiege.core.registry import Registry
from besiege.core.samples import Withheld, WithheldImages, in_box
from besiege.core.shell import shell
from besiege.core.text import short
from besiege.core.victim import Victim
from besiege.core.vocabulary import Vocabulary
from besiege.defenses.contents import digest_of
from besiege.defenses.detected import Calibration, Detected
from besiege.defenses.detecting import LANGUAGE as KINDS
from besiege.defenses.detecting import Detector
from besiege.models.checkpoints import from_safetensors

if TYPE_CHECKING:
    from besiege.data.dataset import Data

ZOO = Path(__file__).parent / "zoo"
"""The shipped detectors."""
GUARDS: Registry[type[DetectorFile]] = Registry("defense", ("besiege.defenses.detector_files",))
LANGUAGE = Vocabulary(GUARDS)
_NEEDED = ("kind", "model", "digest", "classes", "shape", "fpr", "calibration", "sha256")
_SCALARS = ("threshold", "spread", "gain")
_MOST = 10**7
"""Ids of one range: a card is a file, and may say anything."""


@GUARDS.register("detector")
@dataclass(frozen=True)
class DetectorFile:
    """A fitted detector in a file; the text after all layers.

    Parameters
    ----------
    file : str
        Path of the ``.safetensors`` file, whose card lies beside it; ``zoo:NAME`` is shipped.
    """

    file: str

    def __post_init__(self) -> None:
        given: object = self.file
        if not isinstance(given, str) or not given:
            raise InputError(
                f"the file of a detector is {self.file!r}: write detector('FILE.safetensors') or "
                "detector('zoo:NAME')"
            )

    @property
    def path(self) -> Path:
        """Where the tensors are."""
        if self.file.startswith("zoo:"):
            return ZOO / f"{self.file.removeprefix('zoo:')}.safetensors"
        return Path(self.file)

    def must_exist(self) -> None:
        """Refuse a file that is not there, before any work."""
        if self.file.startswith("zoo:"):
            name = self.file.removeprefix("zoo:")
            if name not in zoo_names():
                known = near(name, zoo_names()) if zoo_names() else "none is shipped"
                raise UnknownNameError(f"the zoo has no detector '{short(name)}': {known}")
        elif self.path.suffix != ".safetensors":
            raise InputError(
                f"'{short(self.file)}' is no detector: write the .safetensors file that `besiege "
                "detector` wrote, or 'zoo:NAME'"
            )
        elif not self.path.is_file() or not self.path.with_suffix(".json").is_file():
            missing = self.path if not self.path.is_file() else self.path.with_suffix(".json")
            raise DataError(
                f"{missing} does not exist: `besiege detector KIND --model M --data D --out "
                f"{self.path}` writes a detector and its card"
            )

    def __call__(self, victim: Victim) -> Detected:
        """The victim behind this detector."""
        self.must_exist()
        return read_detected(victim, self.path, str(self))

    def __str__(self) -> str:
        return LANGUAGE.text(self)


def zoo_names() -> list[str]:
    """Names of the shipped detectors."""
    return sorted(path.stem for path in ZOO.glob("*.json"))


def read_detected(victim: Victim, path: Path, text: str | None = None) -> Detected:
    """The victim behind the detector of a file, which must be one of this victim."""
    card = read_card(path)
    must_be_of(card, victim, path)
    content = read_file(path)
    if sha256(content).hexdigest() != card["sha256"]:
        raise DataError(
            f"{path} and its card {path.with_suffix('.json').name} do not belong together: copy "
            "both again, or fit the detector again"
        )
    tensors = from_safetensors(content, str(path))
    detector = _kind(card, path)
    if [digest_of(part) for part in detector.parts] != card.get("networks", []):
        raise DataError(
            f"a network inside the detector {path} has changed since it was calibrated "
            f"({detector}): put the old file back, or fit the detector again"
        )
    missing = [name for name in _SCALARS if name not in tensors]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}: fit the detector again")
    scalars = {name: float(tensors.pop(name)) for name in _SCALARS}
    where = card["calibration"]
    about = where["data"], where["split"], tuple(from_ranges(where["ids"])), where["digest"]
    # Detectors of earlier versions keep their kind of value: it may be part of a digest.
    withheld = Withheld(*about)
    if where.get("contents"):
        withheld = WithheldImages(*about, tuple(where["contents"]))
    if card.get("reference") is not None and "reference" not in tensors:
        tensors["reference"] = _referenced(card["reference"], victim, path)
    try:
        calibration = Calibration(**scalars, fpr=float(card["fpr"]), withheld=withheld)
    except InputError as problem:
        raise DataError(f"{path} cannot be used: {problem}") from None
    return Detected(victim, detector, calibration, tensors, text)


def read_card(path: Path) -> dict[str, Any]:
    """The card beside a detector's tensors."""
    card = path.with_suffix(".json")
    try:
        facts = json.loads(read_file(card))
    except OSError as problem:
        raise DataError(f"{card} cannot be read: {problem.strerror}") from None
    except ValueError:
        raise DataError(f"{card} is not JSON: fit the detector again") from None
    missing = [key for key in _NEEDED if not isinstance(facts, dict) or key not in facts]
    if missing:
        raise DataError(
            f"{card} is no card of a detector, since it lacks {', '.join(missing)}: name the file "
            "that `besiege detector` wrote"
        )
    return dict(facts)


def must_be_of(card: Mapping[str, Any], victim: Victim, path: Path) -> None:
    """Refuse a detector of another model."""
    from besiege.data.catalogue import CATALOGUE  # only here: a detector that fits needs no data

    where = card["calibration"]["data"]  # a folder is called by its name only: its path is unknown
    kind, data = card["kind"].partition("(")[0], where if where in CATALOGUE else "DATA"
    words = [kind, "--model", victim.name, "--data", data, "--out", f"{path.stem}-2.safetensors"]
    again = "fit one: " + shell(["besiege", "detector", *words])
    if victim.classes is not None and victim.classes != card["classes"]:
        raise InputError(
            f"the detector {path} is of a model with {card['classes']} classes, and "
            f"'{victim.name}' has {victim.classes}: {again}"
        )
    if digest_of(victim) != card["digest"]:
        raise InputError(
            f"the detector {path} was calibrated for '{card['model']}', and '{victim.name}' has "
            f"other weights, layers or preprocessing: use it with that model, or {again}"
        )


def _kind(card: Mapping[str, Any], path: Path) -> Detector:
    try:
        detector = KINDS.read(card["kind"])
    except BesiegeError as problem:
        raise DataError(f"the detector of {path} cannot be read: {problem}") from None
    if not isinstance(detector, Detector):
        raise DataError(f"the card of {path} names '{card['kind']}', which is no detector")
    if detector.revision != card.get("revision", 1):
        raise DataError(
            f"{path} was written for another version of {card['kind'].partition('(')[0]}: fit the "
            "detector again"
        )
    return detector


def _referenced(about: Mapping[str, Any], victim: Victim, path: Path) -> Tensor:
    """The reference images of a card, from the data set that it names, in the victim's box."""
    from besiege.data import load as load_data  # only here: other detectors need no data

    try:
        data: Data = load_data(about["data"], about["split"])
    except BesiegeError as problem:
        raise DataError(
            f"the detector {path} compares images with some of {about['data']} ({about['split']}), "
            f"which cannot be read: {problem}"
        ) from problem
    wanted = torch.tensor(from_ranges(about["ids"]))
    rows = torch.searchsorted(data.ids, wanted).clamp_max(len(data) - 1)
    chosen = data.take(rows)
    if not torch.equal(chosen.ids, wanted) or chosen.digest != about["digest"]:
        raise DataError(
            f"{about['data']} ({about['split']}) holds other images than those that the detector "
            f"{path} was fitted with: use that data set, or fit the detector again"
        )
    return in_box(chosen.images, victim.box)


def as_ranges(ids: Sequence[int]) -> str:
    """Ascending ids as short text.

    Examples
    --------
    >>> as_ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    starts = [place for place, (a, b) in enumerate(pairwise(ids), 1) if b != a + 1]
    groups = [ids[a:b] for a, b in pairwise([0, *starts, len(ids)])]
    return ", ".join(f"{g[0]}-{g[-1]}" if len(g) > 1 else f"{g[0]}" for g in groups if len(g))


def from_ranges(text: str) -> list[int]:
    """The ids of a text.

    Examples
    --------
    >>> from_ranges("1-3, 7")
    [1, 2, 3, 7]
    """
    ids: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,19})(?:-(\d{1,19}))?\s*", part)
        last = None if found is None else int(found[2] or found[1])
        if found is None or last is None or not 0 <= last - int(found[1]) < _MOST:
            raise DataError(f"'{short(part)}' is no range of ids, such as 8000-9999")
        ids.extend(range(int(found[1]), last + 1))
    return ids
