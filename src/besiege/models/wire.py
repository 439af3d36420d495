"""How images and answers look on the wire: JSON, plain numbers, bytes, PNG files."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from besiege.core.errors import InputError, VictimError
from besiege.core.threat import Access
from besiege.models.answers import Array, Reader, Undeclared
from besiege.models.transport import Foreign, Reply, Unreadable

FORMATS = {
    "json": 'numbers as text, {"images": [[[[0.5, ...]]]]}',
    "raw": "little-endian float32, one image after the other",
    "uint8": "bytes, one image after the other: pixels of 256 levels",
    "png": "a PNG file; several in one request as base64 in JSON",
}
"""What may be sent, and what it is."""
SIZES = {"json": 20, "raw": 4, "uint8": 1, "png": 1}
"""About how many bytes an entry takes."""
BYTES = ("uint8", "png")
"""Formats of 256 levels: the model receives nothing between them."""

_SCORES = ("logits", "probabilities", "scores", "outputs", "predictions")
_LABELS = ("labels", "label", "predictions")
_INDICES = ("indices", "labels", "classes")
"""Where classes may stand that the scores beside them are of."""
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""The colour type of a PNG by its channels: grey or colour, with transparency or without."""


def encoded(form: str, pixels: Array) -> tuple[bytes, dict[str, str]]:
    """The body of a request about images ``[rows, channels, height, width]``, and its headers."""
    if form == "json":
        return json.dumps({"images": pixels.tolist()}).encode(), _is("application/json")
    if form in ("raw", "uint8"):
        kind = "<f4" if form == "raw" else "u1"
        about = {"X-Dtype": "float32" if form == "raw" else "uint8"}
        about["X-Shape"] = ",".join(map(str, pixels.shape))
        body = np.ascontiguousarray(pixels, dtype=kind).tobytes()
        return body, {**_is("application/octet-stream"), **about}
    if len(pixels) == 1:
        return png(pixels[0]), _is("image/png")
    files = [base64.b64encode(png(one)).decode() for one in pixels]
    return json.dumps({"png": files}).encode(), _is("application/json")


def _is(kind: str) -> dict[str, str]:
    return {"Content-Type": kind, "Accept": "application/json"}


def png(pixels: Array) -> bytes:
    r"""A PNG file of bytes ``[channels, height, width]``; nothing is lost.

    Examples
    --------
    >>> png(np.zeros((1, 2, 2), np.uint8))[:4]
    b'\x89PNG'
    """
    channels, height, width = pixels.shape
    if channels not in _COLOURS:
        raise InputError(f"an image of {channels} channels is no PNG: use format='uint8'")
    lines = pixels.transpose(1, 2, 0).reshape(height, width * channels)
    body = b"".join(b"\0" + line.tobytes() for line in lines)  # no line refers to another
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(body, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def decoded(reply: Reply, rows: int, reader: Reader) -> Array:
    """Logits of a reply; `Unreadable` where it is no answer."""
    try:
        if reply.kind == "application/octet-stream":
            if not reply.body or len(reply.body) % (4 * rows):
                raise VictimError(f"{len(reply.body)} bytes are no float32 scores of {rows} images")
            return reader(np.frombuffer(reply.body, "<f4").reshape(rows, -1), rows)
        try:
            found = json.loads(reply.body)
        except ValueError:
            raise VictimError(f"'{reply.said}' is no JSON") from None
        return reader(_unpacked(found, rows, reader), rows)
    except Undeclared as problem:
        raise Foreign(f"{problem}{_written(reader.name, problem.declare)}") from None
    except VictimError as problem:
        raise Unreadable(str(problem)) from None
    except RecursionError:
        raise Unreadable("the answer is nested too deeply to be one") from None


def _written(name: str, more: str) -> str:
    """The text of an address with more behind it, to be typed; what was wrong is replaced."""
    if not more or not name.startswith(("http://", "https://")):
        return ""
    key, _, rest = more.partition(",")
    wrong = re.compile(rf"(?<=[(\s,]){key.partition('=')[0]}\s*=\s*[\w.]+(?=\s*[,)])")
    if name.endswith(")") and wrong.search(name):
        name, more = wrong.sub(key, name), rest.strip()
        if not more:
            return f"; write '{name}'"
    return f"; write '{name[:-1]}, {more})'" if name.endswith(")") else f"; write '{name}({more})'"


def _unpacked(found: object, rows: int, reader: Reader) -> Any:
    """The answer inside a JSON object, which may be the whole of it."""
    if not isinstance(found, Mapping):
        return found
    named = next((name for name in _SCORES if name in found), None)
    if "top" in found and (named is None or reader.top_k is not None):
        top = found["top"]
        alone = rows == 1 and isinstance(top, list) and all(isinstance(one, Mapping) for one in top)
        return [top] if alone else top
    few = None if named is None else _few(found, named, rows, reader.top_k is not None)
    if few is not None and reader.top_k is None:
        return few
    labels = _LABELS if reader.access is Access.DECISION and reader.top_k is None else ()
    for name in labels:  # what the scores are does not matter then
        if name in found:
            return found[name]
    if reader.access is Access.SCORE:  # of labels alone, neither
        for other in {"logits", "probabilities"} - {reader.outputs}:
            if other in found and reader.outputs not in found:
                raise Undeclared(
                    f"the server answers {other}, but {reader.outputs} are expected: declare "
                    f"outputs={other}",
                    f"outputs={other}" if reader.assumed else "",
                )
    if few is not None:
        return few
    if named is not None:
        return found[named]
    if any(name in found for name in _LABELS):
        raise Undeclared("the server answers labels alone: declare access=decision")
    wanted = dict.fromkeys((*labels, *_SCORES))
    said = json.dumps(found)[:120]
    raise VictimError(f"{said} holds none of {', '.join(wanted)}")


def _few(found: Mapping[str, Any], scores: str, rows: int, declared: bool) -> dict[str, Any] | None:
    """Scores with the classes they are of, where these stand beside them.

    A plain list of labels or classes is one of names, the same for every image, unless it was
    `declared` that answers are of a few.
    """
    told = _nested(found[scores], rows)
    for name in _INDICES:
        some = found.get(name)
        some = _nested(some, rows) if declared or name == "indices" else some
        if isinstance(some, list) and isinstance(told, list):
            alike = _lengths(some)
            if name == "indices" or (alike is not None and alike == _lengths(told)):
                return {"indices": some, "scores": told}
    return None


def _nested(value: Any, rows: int) -> Any:
    """A row of its own for one image that was answered without."""
    flat = isinstance(value, list) and not any(isinstance(line, list) for line in value)
    return [value] if flat and rows == 1 and len(value) > 1 else value


def _lengths(lines: Any) -> list[int] | None:
    """How many entries every row has, where it has several."""
    if not isinstance(lines, list) or not all(isinstance(one, list) for one in lines):
        return None
    return [len(one) for one in lines] if max(map(len, lines), default=0) > 1 else None
