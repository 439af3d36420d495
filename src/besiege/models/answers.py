"""Reads the answers of black-box models (scores, labels or top-k scores) as logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from besiege.core.door import OUTPUTS, SMALLEST_PROBABILITY
from besiege.core.errors import InputError, VictimError, near
from besiege.core.text import check_whole
from besiege.core.threat import Access

Array = NDArray[Any]
Lines = list[tuple[Any, Any]]
_ABOVE_ONE = 1e-3
"""How far a probability may exceed 1 because it was rounded to a few decimals."""
_TELLING = 4
"""Different rows that must look like probabilities before an error: one may do so by accident."""


class Undeclared(VictimError):
    """An answer of another kind than was declared, which another attempt would not change.

    `declare` is the argument to add to the model's text, if that suffices.
    """

    def __init__(self, why: str, declare: str = "") -> None:
        super().__init__(why)
        self.declare = declare


@dataclass
class Reader:
    """Reads answers of one model, and refuses malformed ones.

    The logit of a class that an answer leaves out is minus infinity: of all others after a label,
    and of the rest after top-k scores.

    Attributes
    ----------
    name : str
        Name of the model in errors.
    access : Access
        Scores, or labels only; at decision access only the label of scores is used.
    outputs : {"logits", "logit", "probabilities"}
        What scores are; the logarithm of probabilities is used as logits. ``"logit"`` is one
        number per image for two classes; one probability per image is that of class 1.
    classes : int, optional
        Number of classes; read from the first full answer when not given.
    top_k : int, optional
        An answer has only this many classes, as indices and scores.
    assumed : bool
        Whether `outputs` is a default: top-k scores that look like probabilities are then refused.
    supposed : bool
        Whether `classes` is only the data's number, which full scores may exceed.
    """

    name: str
    access: Access
    outputs: str = "logits"
    classes: int | None = None
    top_k: int | None = None
    assumed: bool = False
    supposed: bool = False
    _likely: set[bytes] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise InputError(f"outputs is {self.outputs!r}: {near(str(self.outputs), OUTPUTS)}")
        for what, value, least in (("classes", self.classes, 2), ("top_k", self.top_k, 1)):
            if value is not None:
                check_whole(value, what, least)
        if self.access not in (Access.SCORE, Access.DECISION):
            raise InputError(
                f"access is '{self.access}', but a black-box model gives scores or labels: write "
                "access='score' or access='decision'"
            )

    def __call__(self, answer: object, rows: int) -> NDArray[np.float32]:
        """Logits float32 ``[rows, classes]`` of the answer to so many images."""
        if self.top_k is not None:
            scores = self._few(answer, rows)
        elif (lines := _by_index(answer)) is not None:
            if self.access is Access.SCORE:
                raise self._must_say(lines)
            scores = self._few(answer, rows)
        else:
            values = self._array(answer)
            if self.outputs != "logits" and values.shape in ((rows,), (rows, 1)):
                values = self._of_two_classes(values.reshape(rows))
            if values.ndim == 2 and values.shape[1] > 1:
                scores = self._scores(values, rows)
            elif rows == 1 and values.ndim == 1 and len(values) > 1:  # one image, one list
                scores = self._scores(values[None], rows)
            elif self.access is Access.DECISION:
                return self._ruled(self._labels(values, rows))
            else:
                kind = Undeclared if values.size == rows else VictimError
                raise kind(
                    f"{self.name} answered an array {list(values.shape)} to {rows} images, but "
                    "scores are [rows, classes]: declare access='decision' if these are labels, or "
                    "outputs='logit' if each is the logit of class 1 of two"
                )
        return self._ruled(scores.argmax(1)) if self.access is Access.DECISION else scores

    def count(self) -> int:
        """The number of classes, or an error that says how to declare it."""
        if self.classes is None:
            kind = "labels" if self.top_k is None else f"the first {self.top_k} classes"
            raise InputError(
                f"{self.name} answers only {kind}, which do not show the number of classes: "
                "declare it, such as classes=10"
            )
        return self.classes

    def _array(self, answer: object) -> Array:
        try:
            values = np.asarray(answer)
        except (ValueError, TypeError):
            values = np.empty(0, dtype=object)
        if values.dtype.kind not in "fiu":
            shown = str(answer).replace("\n", " ")[:80]
            raise VictimError(
                f"{self.name} answered {shown}, but an array of numbers is expected: scores "
                "[rows, classes], or labels [rows] with access='decision'"
            )
        return values

    def _of_two_classes(self, values: Array) -> Array:
        """Both columns of one score per image: see `besiege.core.door.of_two_classes`."""
        if self.outputs == "probabilities":
            return np.stack([1 - values, values], 1)
        return np.stack([-0.5 * values, 0.5 * values], 1)

    def _scores(self, values: Array, rows: int) -> NDArray[np.float32]:
        if len(values) != rows:
            raise VictimError(f"{self.name} answered {len(values)} rows of scores to {rows} images")
        more = self.supposed and self.classes is not None and values.shape[1] > self.classes
        if self.classes is not None and values.shape[1] != self.classes and not more:
            raise Undeclared(
                f"{self.name} answered {values.shape[1]} classes, but {self.classes} are "
                "expected: declare the right number with classes=, or fix the model"
            )
        self._numbers(values)
        self.classes = int(values.shape[1])
        return self._logits(values)

    def _numbers(self, values: Array) -> None:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)  # as used later: 1e300 becomes infinite
        if not bool((values < np.inf).all()):  # false for NaN; minus infinity is allowed
            raise VictimError(
                f"{self.name} answered NaN or infinite scores, so its robustness cannot be measured"
            )
        if not bool(np.isfinite(values).any(-1).all()):
            raise VictimError(
                f"{self.name} answered a row with no finite score, so no class can be predicted"
            )
        if self.outputs == "probabilities" and (values.min() < 0 or values.max() > 1 + _ABOVE_ONE):
            raise Undeclared(
                f"{self.name} was declared to answer probabilities, but some lie outside [0, 1]: "
                "leave outputs='probabilities' out if they are logits"
            )

    def _logits(self, values: Array) -> NDArray[np.float32]:
        if self.outputs == "probabilities":
            values = np.log(np.maximum(values.astype(np.float64), SMALLEST_PROBABILITY))
        with np.errstate(over="ignore"):  # very negative scores become minus infinity
            return _rounded(values)

    def _labels(self, values: Array, rows: int) -> NDArray[np.int64]:
        flat = values.reshape(-1)
        if flat.size != rows:
            raise VictimError(
                f"{self.name} answered an array {list(values.shape)} to {rows} images, but labels "
                "are one whole number per image"
            )
        whole = (np.abs(flat) < 2.0**63) & (flat == np.floor(flat))
        if not bool(whole.all()):
            raise Undeclared(
                f"{self.name} answered the label {flat[~whole][0]}, but labels are whole numbers"
            )
        labels, classes = flat.astype(np.int64), self.count()
        wrong = (labels < 0) | (labels >= classes)
        if bool(wrong.any()):
            raise Undeclared(
                f"{self.name} answered the label {labels[wrong][0]}, but the labels of {classes} "
                f"classes are 0 to {classes - 1}: declare classes=, or fix the model"
            )
        return labels

    def _ruled(self, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of labels: 0 for the label, minus infinity for the rest."""
        logits = np.full((len(labels), self.count()), -np.inf, dtype=np.float32)
        logits[np.arange(len(labels)), labels] = 0.0
        return logits

    def _few(self, answer: object, rows: int) -> NDArray[np.float32]:
        """Logits of the classes listed for every image; minus infinity for the rest."""
        lines = self._lines(answer)
        if len(lines) != rows:
            raise VictimError(f"{self.name} answered {len(lines)} rows to {rows} images")
        logits = np.full((rows, self.count()), -np.inf, dtype=np.float32)
        if self.access is Access.SCORE:  # for labels, the first class is enough
            self._must_be_as_many(lines)
        for row, (indices, scores) in enumerate(lines):
            where, what = self._array(indices).reshape(-1), self._array(scores).reshape(-1)
            if len(where) != len(what) or not len(where) or len(set(where.tolist())) < len(where):
                raise VictimError(
                    f"{self.name} answered the classes {where.tolist()} with the scores "
                    f"{what.tolist()}, but every class listed must have one score and appear once"
                )
            self._numbers(what)
            self._must_not_be_probabilities(what)
            logits[row, self._labels(where, len(where))] = self._logits(what)
        return logits

    def _must_be_as_many(self, lines: Lines) -> None:
        """Raise unless every image has k classes, or all of them if there are fewer."""
        assert self.top_k is not None
        sizes = {np.size(scores) for _, scores in lines} - {0}
        if not sizes or sizes == {min(self.top_k, self.count())}:
            return
        if len(sizes) == 1:
            declare = self._to_declare(lines)
            raise Undeclared(
                f"{self.name} answers {max(sizes)} classes with a score for each, but top_k="
                f"{self.top_k} was declared: declare {declare}",
                declare,
            )
        raise Undeclared(
            f"{self.name} answers {min(sizes)} classes for one image and {max(sizes)} for another, "
            f"but top_k={self.top_k} was declared, which means the same number for each: declare "
            "access='decision', which uses only the first"
        )

    def _must_not_be_probabilities(self, scores: Array) -> None:
        """Raise if row after row could be top-k probabilities and `outputs` was not declared.

        A single row that could not be shows that scores are logits.
        """
        if not self.assumed or self.access is not Access.SCORE:
            return
        if not _could_be_probabilities(scores):
            self.assumed = False
            return
        self._likely.add(np.asarray(scores, np.float64).tobytes())
        if len(self._likely) >= _TELLING:
            raise Undeclared(
                f"{self.name} answers scores in [0, 1] that never sum to more than 1, as "
                "probabilities do: declare outputs='probabilities', or outputs='logits' if they "
                "are logits",
                "outputs=probabilities",
            )

    def _must_say(self, lines: Lines) -> Undeclared:
        """The error for an answer that lists classes when full scores are expected."""
        most, declare = max(np.size(scores) for _, scores in lines), self._to_declare(lines)
        return Undeclared(
            f"{self.name} answers {most} classes by their indices, with a score for each, but the "
            f"scores of all classes in order are expected: declare {declare}",
            declare,
        )

    def _to_declare(self, lines: Lines) -> str:
        scores = [np.asarray(scores) for _, scores in lines]
        likely = all(one.dtype.kind in "fiu" and _could_be_probabilities(one) for one in scores)
        more = ", outputs=probabilities" if likely and self.assumed else ""
        return f"top_k={max(one.size for one in scores)}{more}"

    def _lines(self, answer: object) -> Lines:
        """Indices and scores of every row, in any accepted form."""
        if (lines := _pairs(answer)) is not None:
            return lines
        malformed = answer is None or isinstance(answer, (Mapping, str))
        kind = VictimError if malformed else Undeclared
        raise kind(
            f"{self.name} answered a {type(answer).__name__}, but with top_k={self.top_k} an "
            "answer is (indices, scores), both [rows, k], or per image a list of "
            "{'label': ..., 'score': ...}"
        )


def _rounded(values: Array) -> NDArray[np.float32]:
    """Scores in float32 with the same predicted class: see `besiege.core.door.rounded`."""
    short = np.ascontiguousarray(values, dtype=np.float32)
    if values.dtype in (np.float32, np.float16) or not values.size:
        return short
    top = np.expand_dims(values.argmax(-1), -1)
    highest, level = (np.take_along_axis(some, top, -1) for some in (values, short))
    tied = ((short == level) & (values < highest)).any(-1, keepdims=True)
    above = np.nextafter(level, np.float32(np.inf))
    np.put_along_axis(short, top, np.where(tied, above, level), -1)
    return short


def _pairs(answer: object) -> Lines | None:
    """Indices and scores of every row; None if an answer does not have them."""
    if isinstance(answer, Mapping) and {"indices", "scores"} <= set(answer):
        answer = answer["indices"], answer["scores"]
    if isinstance(answer, tuple) and len(answer) == 2:
        try:
            return list(zip(answer[0], answer[1], strict=False))
        except TypeError:  # single numbers
            return None
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        lines = [line if isinstance(line, Sequence) else [line] for line in answer]
        if all(isinstance(one, Mapping) for line in lines for one in line):
            return [
                ([one.get("label") for one in line], [one.get("score") for one in line])
                for line in lines
            ]
    return None


def _by_index(answer: object) -> Lines | None:
    """The same, unless the answer is ambiguous: two rows of scores are a pair as well."""
    lines = _pairs(answer)
    if not lines or not all(_is_list(one) and len(one) for line in lines for one in line):
        return None
    return lines


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1


def _could_be_probabilities(scores: Array) -> bool:
    """Whether scores of some classes of one image can be probabilities."""
    return bool(scores.min() >= 0 and scores.sum() <= 1 + _ABOVE_ONE)
