"""The options of commands that read image files or arrays: how they become images of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from besiege.cli.grammar import Layout
from besiege.core.errors import InputError
from besiege.core.text import short

if TYPE_CHECKING:
    from cyclopts import Token


def _read_channels(_: Any, tokens: Sequence[Token]) -> int:
    (token,) = tokens
    if token.value not in ("1", "3"):
        raise InputError(f"--channels is '{short(token.value)}': write 1 for grey, 3 for colour")
    return int(token.value)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How files become images; the fields are keywords of `besiege.evaluate`."""

    resize: Annotated[
        str | None,
        Parameter(
            metavar="N|HxW",
            help="Image files: length of the shorter side, or height and width, in pixels.",
        ),
    ] = None
    crop: Annotated[
        str | None,
        Parameter(metavar="N|HxW", help="Image files: size of the centre crop, after resizing."),
    ] = None
    channels: Annotated[
        Literal[1, 3] | None,
        Parameter(
            converter=_read_channels,
            help="Image files: 1 makes all grey, 3 makes all colour; by default grey if all are.",
        ),
    ] = None
    layout: Layout = None


AS_THEY_ARE = ImageOptions()
