"""Robustness inside tests: evaluations that are kept between sessions and shared by processes."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import besiege
from besiege.core.errors import GateError, InputError
from besiege.metrics.gates import checked_rules, lacking, stops
from besiege.metrics.intervals import MeasuredRate, Rate


@dataclass(frozen=True)
class Robustness:
    """Measures models and keeps the records below a folder.

    The fixture ``robustness`` of the pytest plugin is one of these.

    Parameters
    ----------
    folder : Path
        Where run folders are made, one for each set of arguments. Records depend on the contents of
        model and data, so a folder may be used for many models of the same name.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     robustness = Robustness(Path(folder))
    ...     found = robustness(
    ...         "zoo:digits-natural", "digits", threat="linf:0.1", attacks="fgsm", count=50
    ...     )
    >>> bool(found.robust.at_least(0.2)), bool(found.robust.at_least(0.9))
    (True, False)
    """

    folder: Path

    def __call__(
        self,
        model: Any,
        data: Any,
        *,
        threat: Any,
        suite: Any = None,
        allow: Collection[str] = (),
        **settings: Any,
    ) -> besiege.Evaluation:
        """Measure a model, or resume; the page is written, too.

        Parameters
        ----------
        model, data, threat, suite
            As for `besiege.evaluate`.
        allow : collection of str
            Rules, such as ``"W14"``, whose findings do not stop the figures.
        **settings
            Other arguments of `besiege.evaluate`: ``attacks``, ``count``, ``out`` and so on.
            ``curve`` is False by default: a gate does not need it.

        Raises
        ------
        GateError
            Where the evaluation is not complete, or its figures must not be quoted.
        """
        __tracebackhide__ = True  # the line of the test matters
        for name, value in (("model", model), ("threat", threat)):
            if isinstance(value, (list, tuple)):
                raise InputError(f"the fixture measures one {name} at a time: call it for each")
        allowed = checked_rules([allow] if isinstance(allow, str) else list(allow))
        asked = {"curve": False, **settings, "threat": threat, "suite": suite}
        out = Path(asked.pop("out", None) or self.folder / _name(model, data, asked))
        with _alone(out):
            found: besiege.Evaluation = besiege.evaluate(model, data, out=out, **asked)
            page = found.page()
        _must_be_quotable(found, allowed)
        cost = found.figures.cost
        spent = f"{cost.forwards + cost.backwards:,} passes in {cost.seconds:.1f} s"
        about = f"{spent}; page {_from_here(page)}"
        robust = None if found.robust is None else _measured(found.robust, about)
        return replace(found, clean=_measured(found.clean, about), robust=robust)


def _measured(rate: Rate, about: str) -> MeasuredRate:
    return MeasuredRate(rate.value, rate.low, rate.high, rate.count, rate.hits, about)


def _must_be_quotable(found: besiege.Evaluation, allowed: Collection[str]) -> None:
    __tracebackhide__ = True
    figures = found.figures
    what = f"{figures.model.name} against {figures.threat.text}"
    if not found.complete:
        raise GateError(f"{what} is not complete, so no gate is decided: {lacking(figures)}")
    stopped = stops(figures, allowed)
    if stopped:
        ids = ", ".join(repr(one.id) for one in stopped)
        raise GateError(
            f"the figures of {what} must not be quoted. "
            + " ".join(map(str, stopped))
            + f" allow=[{ids}] accepts them"
        )


def _from_here(path: Path) -> str:
    """A path, relative to the current folder if that is shorter."""
    with suppress(ValueError):  # another drive
        return min(str(path), os.path.relpath(path), key=len)
    return str(path)


def _name(model: Any, data: Any, asked: dict[str, Any]) -> str:
    """The folder of a set of arguments: readable words, and a digest of all of them."""
    words = {name: _word(value) for name, value in {"model": model, "data": data, **asked}.items()}
    digest = hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]
    shown = [re.sub(r"[^A-Za-z0-9_.]+", "-", str(words[name])) for name in _SHOWN]
    return "-".join([*(word.strip("-.")[-30:].strip("-.") for word in shown), digest])


_SHOWN = ("model", "data", "threat")


def _word(value: Any) -> Any:
    """A text or number as it is; an object by its type, since records depend on its contents."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Path | besiege.Threat):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return type(value).__name__


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process measures into a run folder, and keep others waiting.

    A run folder has one writer; another one would be refused. The lock of a process that was killed
    is released by the system.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        with suppress(ImportError, OSError):  # a system, or a file system, without such locks
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
