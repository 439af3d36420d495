"""Encodes images for HTTP requests (JSON, float32, bytes, PNG) and decodes the replies."""

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
"""The formats of requests, with a description."""
SIZES = {"json": 20, "raw": 4, "uint8": 1, "png": 1}
"""About how many bytes a pixel value takes."""
BYTES = ("uint8", "png")
"""Formats of 256 levels: the model receives no values between them."""

_SCORES = ("logits", "probabilities", "scores", "outputs", "predictions")
_LABELS = ("labels", "label", "predictions")
_INDICES = ("indices", "labels", "classes")
"""Names under which a reply may list the classes of its scores."""
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""The colour type of a PNG by its channels: grey or colour, with transparency or without."""


def encoded(form: str, pixels: Array) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request with images ``[rows, channels, height, width]``."""
    if form == "json":
        return json.dumps({"images": pixels.tolist()}).encode(), _is("application/json")
    if form in ("raw", "uint8"):
        kind, dtype = ("float32", "<f4") if form == "raw" else ("uint8", "u1")
        about = {"X-Dtype": kind, "X-Shape": ",".join(map(str, pixels.shape))}
        body = np.ascontiguousarray(pixels, dtype=dtype).tobytes()
        return body, {**_is("application/octet-stream"), **about}
    if len(pixels) == 1:
        return png(pixels[0]), _is("image/png")
    files = [base64.b64encode(png(one)).decode() for one in pixels]
    return json.dumps({"png": files}).encode(), _is("application/json")


def _is(kind: str) -> dict[str, str]:
    return {"Content-Type": kind, "Accept": "application/json"}


def png(pixels: Array) -> bytes:
    r"""A lossless PNG file of bytes ``[channels, height, width]``.

    Examples
    --------
    >>> png(np.zeros((1, 2, 2), np.uint8))[:4]
    b'\x89PNG'
    """
    channels, height, width = pixels.shape
    if channels not in _COLOURS:
        raise InputError(f"PNG has no images of {channels} channels: use format='uint8'")
    lines = pixels.transpose(1, 2, 0).reshape(height, width * channels)
    body = b"".join(b"\0" + line.tobytes() for line in lines)  # filter 0: lines are independent
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(body, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def decoded(reply: Reply, rows: int, reader: Reader) -> Array:
    """Logits of a reply; raises `Unreadable` if it is malformed."""
    try:
        if reply.kind == "application/octet-stream":
            if not reply.body or len(reply.body) % (4 * rows):
                raise VictimError(
                    f"{len(reply.body)} bytes are not float32 scores of {rows} images"
                )
            return reader(np.frombuffer(reply.body, "<f4").reshape(rows, -1), rows)
        try:
            content = json.loads(reply.body)
        except ValueError:
            raise VictimError(f"'{reply.said}' is not JSON") from None
        return reader(_unpacked(content, rows, reader), rows)
    except Undeclared as problem:
        raise Foreign(f"{problem}{_written(reader.name, problem.declare)}") from None
    except VictimError as problem:
        raise Unreadable(str(problem)) from None
    except RecursionError:
        raise Unreadable("the answer is nested too deeply") from None


def _written(name: str, more: str) -> str:
    """Advice to write an address with more arguments, which replace wrong ones."""
    if not more or not name.startswith(("http://", "https://")):
        return ""
    key, _, rest = more.partition(",")
    wrong = re.compile(rf"(?<=[(\s,]){key.partition('=')[0]}\s*=\s*[\w.]+(?=\s*[,)])")
    if name.endswith(")") and wrong.search(name):
        name, more = wrong.sub(key, name), rest.strip()
        if not more:
            return f"; write '{name}'"
    return f"; write '{name[:-1]}, {more})'" if name.endswith(")") else f"; write '{name}({more})'"


def _unpacked(content: object, rows: int, reader: Reader) -> Any:
    """The answer inside the JSON content of a reply."""
    if not isinstance(content, Mapping):
        return content
    named = next((name for name in _SCORES if name in content), None)
    if "top" in content and (named is None or reader.top_k is not None):
        top = content["top"]
        flat = rows == 1 and isinstance(top, list) and all(isinstance(one, Mapping) for one in top)
        return [top] if flat else top
    few = None if named is None else _few(content, named, rows, reader.top_k is not None)
    if few is not None and reader.top_k is None:
        return few
    labels = _LABELS if reader.access is Access.DECISION and reader.top_k is None else ()
    for name in labels:
        if name in content:
            return content[name]
    if reader.access is Access.SCORE:  # for labels, the kind of scores does not matter
        for other in {"logits", "probabilities"} - {reader.outputs}:
            if other in content and reader.outputs not in content:
                raise Undeclared(
                    f"the server answers {other}, but {reader.outputs} are expected: declare "
                    f"outputs={other}",
                    f"outputs={other}" if reader.assumed else "",
                )
    if few is not None:
        return few
    if named is not None:
        return content[named]
    if any(name in content for name in _LABELS):
        raise Undeclared("the server answers only labels: declare access=decision")
    wanted = dict.fromkeys((*labels, *_SCORES))
    raise VictimError(f"{json.dumps(content)[:120]} holds none of {', '.join(wanted)}")


def _few(
    content: Mapping[str, Any], named: str, rows: int, declared: bool
) -> dict[str, Any] | None:
    """Scores with their classes, if the reply lists these too.

    A flat list of labels or classes holds the names of all classes, unless top-k scores were
    `declared`.
    """
    scores = _nested(content[named], rows)
    for name in _INDICES:
        some = content.get(name)
        some = _nested(some, rows) if declared or name == "indices" else some
        if isinstance(some, list) and isinstance(scores, list):
            lengths = _lengths(some)
            if name == "indices" or (lengths is not None and lengths == _lengths(scores)):
                return {"indices": some, "scores": scores}
    return None


def _nested(value: Any, rows: int) -> Any:
    """The value; as the only row if it is a flat list for one image."""
    flat = isinstance(value, list) and not any(isinstance(line, list) for line in value)
    return [value] if flat and rows == 1 and len(value) > 1 else value


def _lengths(lines: Any) -> list[int] | None:
    """The length of every row, if some row has more than one value."""
    if not isinstance(lines, list) or not all(isinstance(one, list) for one in lines):
        return None
    return [len(one) for one in lines] if max(map(len, lines), default=0) > 1 else None
