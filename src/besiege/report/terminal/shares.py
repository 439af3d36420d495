"""The tables of a model that may reject images: right, wrong and rejected, and detection."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from besiege.metrics.defense_values import Detection, Rejections, Shares
from besiege.metrics.intervals import Rate
from besiege.report.formats import interval, share
from besiege.report.terminal.layout import NONE, named_rows

_WIDE, _SHORT = 112, 66
"""From this width on intervals stand beside the shares; below the other they are left out, because
the three shares always stand together."""


def share_tables(found: Rejections, width: int) -> Iterator[RenderableType]:
    """The three shares of clean images and of each attack, then how well errors are found."""
    rows = [_named("clean images", found.clean, width)]
    rows += [_named(one.text, one, width) for one in found.attacks]
    if found.together is not None and len(found.attacks) > 1:
        rows.append(_named("worst for each", found.together, width))
    yield named_rows("images of", ["right", "wrong", "rejected", "classifier alone"], rows, width)
    if found.detection:
        yield ""
        headings = ["errors", "rejected", "ROC area"]
        detected = [_detected(one, width) for one in found.detection]
        yield named_rows("errors under", headings, detected, width)
        yield Text(
            "errors: images that the classifier alone misclassifies under attack, and not when "
            "clean. ROC area: their suspicion against that of their clean images.",
            "dim",
            overflow="fold",
        )


def _named(text: str, found: Shares, width: int) -> tuple[str, list[str]]:
    rates = (found.right, found.wrong, found.rejected, found.alone)
    return _labelled(text, found.transfer), [_shown(rate, width) for rate in rates]


def _detected(one: Detection, width: int) -> tuple[str, list[str]]:
    name = _labelled(one.text, one.transfer)
    if one.rejected is None:
        return name, ["0", NONE, NONE]
    area = NONE
    if one.auc is not None:
        ends = f"[{one.auc.low:.3f}, {one.auc.high:.3f}]"
        area = f"{one.auc.value:.3f}" + ("" if width < _SHORT else f"{_between(width)}{ends}")
    return name, [f"{one.rejected.count:,}", _shown(one.rejected, width), area]


def _labelled(text: str, transfer: bool) -> str:
    return f"{text}, transfer" if transfer else text


def _shown(rate: Rate, width: int) -> str:
    """A share, and its interval where there is room."""
    return share(rate) + ("" if width < _SHORT else f"{_between(width)}{interval(rate)}")


def _between(width: int) -> str:
    return " " if width >= _WIDE else "\n"
