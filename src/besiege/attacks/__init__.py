"""Attacks: values made of pieces, and combinators that make attacks of attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.attacks.ascent import Ascent
    from besiege.attacks.attack import Attack, names, parse, split

__all__ = ["Ascent", "Attack", "names", "parse", "split"]

__getattr__, __dir__ = lazily(__name__, {"ascent": "Ascent", "attack": "Attack names parse split"})
