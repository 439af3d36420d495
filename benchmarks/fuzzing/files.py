"""Files of every malformed kind, and some good ones, in a folder of their own."""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from PIL import Image

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (4, 8, 8), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3])

MODELS = {
    "good": "import warnings\nfrom torch import nn\n\ndef make(width=10):\n"
    "    with warnings.catch_warnings(action='ignore'):  # of a width of 0\n"
    "        return nn.Sequential(nn.Flatten(), nn.Linear(64, width))\n",
    "nothing": "def make():\n    return None\n",
    "raises": "def make():\n    raise KeyError('x')\n",
    "exits": "import sys\n\ndef make():\n    sys.exit(0)\n",
    "exits_at_once": "import sys\nsys.exit(0)\n\ndef make():\n    return None\n",
    "syntax": "def make(:\n",
    "prints": "from torch import nn\n\nclass Loud(nn.Sequential):\n    def forward(self, x):\n"
    "        print('hello')\n        return super().forward(x)\n\n"
    "def make():\n    return Loud(nn.Flatten(), nn.Linear(64, 10))\n",
    "fails": "from torch import nn\n\nclass Fails(nn.Module):\n    def forward(self, x):\n"
    "        raise IndexError('inside')\n\ndef make():\n    return Fails()\n",
    "nan": "from torch import nn\n\nclass Nan(nn.Module):\n    def forward(self, x):\n"
    "        return x.flatten(1)[:, :10] * float('nan')\n\ndef make():\n    return Nan()\n",
}


def fill(folder: Path) -> None:
    """Write all of them."""
    for name, text in MODELS.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "bytes.py").write_bytes(b"def make():\n    return '\xff'\n")
    _arrays(folder)
    _archives(folder)
    _pictures(folder)
    _weights(folder)
    _runs(folder)
    (folder / "labels.txt").write_text("1.png 3\n2.png 4\n3.png 5\n")
    (folder / "wrong.txt").write_text("1.png three\n" + "x" + " " * 20_000 + "y\n")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "large.txt").write_text("9" * 5000 + "\n" + "1\n" * 3)


def _arrays(folder: Path) -> None:
    """Archives whose arrays are well stored and badly chosen."""
    x, y = GREY, LABELS
    real = x.astype(np.float32) / 255
    bad = real.copy()
    bad[1, 0, 0] = np.nan
    kinds: dict[str, dict[str, Any]] = {
        "good": {"x": x, "y": y},
        "images": {"x": x},
        "splits": {"x_test": x, "y_test": y, "x_train": x, "y_train": y},
        "last": {"x": np.stack([x] * 3, 3), "y": y},
        "open": {"x": np.zeros((4, 3, 8, 3), np.float32), "y": y},
        "labels": {"y": y},
        "scalar": {"x": np.float32(3), "y": y},
        "scalar_alone": {"x": np.float32(3)},
        "flat": {"x": real.reshape(4, 64), "y": y},
        "five": {"x": real.reshape(4, 1, 1, 8, 8), "y": y},
        "empty": {"x": x[:0], "y": y[:0]},
        "thin": {"x": real[:, :0], "y": y},
        "nan": {"x": bad, "y": y},
        "nan_alone": {"x": bad},
        "far": {"x": real * 1e30, "y": y},
        "negative": {"x": -real, "y": y},
        "unsigned": {"x": x.astype(np.uint16), "y": y},
        "bool": {"x": x > 100, "y": y},
        "complex": {"x": real.astype(np.complex64), "y": y},
        "text": {"x": np.array(["a", "b", "c", "d"]), "y": y},
        "structure": {"x": np.zeros(4, dtype=[("a", "f4"), ("b", "i4")]), "y": y},
        "objects": {"x": np.array([{}, 1, None, "a"], dtype=object), "y": y},
        "objects_alone": {"x": np.array([{}, 1], dtype=object)},
        "half": {"x": real.astype(np.float16), "y": y},
        "double": {"x": real.astype(np.float64), "y": y.astype(np.uint64) + 2**63},
        "below": {"x": x, "y": y - 1},
        "floats": {"x": x, "y": y.astype(float)},
        "beyond": {"x": x, "y": y + 2**40},
        "high": {"x": x, "y": y + 97},
        "short": {"x": x, "y": y[:3]},
        "hot": {"x": x, "y": np.eye(4, dtype=int)},
        "twice": {"x": x, "y": y, "ids": np.array([1, 1, 2, 3])},
        "minus": {"x": x, "y": y, "ids": np.array([-5, 1, 2, 3])},
        "names": {"x": x, "y": y, "class_names": np.array(["a", "\x1b[31m", "<b>", "\u202e"])},
        "few": {"x": x, "y": y, "class_names": np.array(["a"])},
    }
    for name, held in kinds.items():
        np.savez(folder / f"{name}.npz", **held)


def _header(shape: tuple[int, ...], kind: str) -> bytes:
    held = io.BytesIO()
    npy.write_array_header_1_0(
        held,
        {"descr": kind, "fortran_order": False, "shape": shape},
    )
    return held.getvalue()


def _archives(folder: Path) -> None:
    """Archives that are damaged, or claim what they do not hold."""
    whole = (folder / "good.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "void.npz").write_bytes(b"")
    (folder / "noise.npz").write_bytes(b"PK\x03\x04" + RNG.bytes(300))
    (folder / "single.npz").write_bytes(_header((4,), "<f4") + b"\0" * 16)
    flipped = bytearray(whole)
    flipped[flipped.find(b"NUMPY") + 140] ^= 255
    (folder / "checksum.npz").write_bytes(flipped)
    labels = _header((4,), "<i8") + LABELS.astype("<i8").tobytes()
    rest = {"y.npy": labels}
    for name, content in {
        "huge": _header((100_000_000, 1, 10, 100), "<f4"),
        "minus_shape": _header((-4, 8, 8), "|u1") + b"\0" * 256,
        "wide": _header((2**62, 0), "<f4"),
        "no_header": b"plain bytes",
        "bad_header": b"\x93NUMPY\x01\x00\x10\x00{'descr': '__no'",
        "version": b"\x93NUMPY\x09\x00" + _header((4,), "<f4")[8:],
        "long": _header((4, 8, 8), "|u1") + b"\0" * 1000,
    }.items():
        with zipfile.ZipFile(folder / f"{name}.npz", "w") as file:
            for member, held in {"x.npy": content, **rest}.items():
                file.writestr(member, held)
    rows = (1 << 28) // 1024
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("x.npy", "w", force_zip64=True) as stream:
            stream.write(_header((rows, 1, 32, 32), "|u1"))
            for _ in range(1 << 8):
                stream.write(b"\0" * (1 << 20))
        file.writestr("y.npy", _header((rows,), "|u1") + b"\0" * rows)
    os.mkfifo(folder / "pipe.npz")
    (folder / "folder.npz").mkdir()
    os.symlink("loop.npz", folder / "loop.npz")
    os.symlink("/dev/zero", folder / "zero.npz")


def _png(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds almost nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


def _pictures(folder: Path) -> None:
    """Folders of classes, each with something of its own in it."""
    grey = Image.fromarray(GREY[0])

    def place(name: str) -> Path:
        for part in ("a", "b"):
            (folder / name / part).mkdir(parents=True)
            for row in range(2):
                Image.fromarray(GREY[row]).save(folder / name / part / f"{row}.png")
        return folder / name / "b"

    place("pictures")
    (folder / "loose").mkdir()
    for row in (1, 2, 3):
        Image.fromarray(GREY[row]).save(folder / "loose" / f"{row}.png")
    (folder / "nothing").mkdir()
    (folder / "one" / "a").mkdir(parents=True)
    grey.save(folder / "one" / "a" / "1.png")
    whole = (folder / "loose" / "1.png").read_bytes()
    for name, content in {
        "cut": whole[: len(whole) // 2],
        "noise": b"no image",
        "void": b"",
        "large": _png(100_000, 100_000),
        "wide": _png(9_000, 9_000),
        "zero": _png(0, 8),
    }.items():
        (place(f"with_{name}") / "q.png").write_bytes(content)
        (folder / f"{name}.png").write_bytes(content)
    os.mkfifo(place("with_pipe") / "q.png")
    os.symlink("/dev/zero", place("with_zero_device") / "q.png")
    os.symlink("q.png", place("with_loop") / "q.png")
    (place("with_folder") / "q.png").mkdir()
    held = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(place("with_socket"))  # the address of a socket is short
    held.bind("q.png")
    os.chdir(here)
    held.close()
    Image.new("RGB", (8, 8)).save(place("with_colour") / "q.png")
    Image.new("L", (9, 8)).save(place("with_size") / "q.png")
    Image.new("F", (8, 8)).save(place("with_float") / "q.tiff")
    Image.new("CMYK", (8, 8)).save(place("with_cmyk") / "q.jpg")
    grey.save(place("with_bytes") / os.fsdecode(b"\xff.png"))
    for name, listed in {
        "listed": "a 1\nb 0\n",
        "listed_wrong": "a 1\nb 1\n",
        "listed_long": "a " + "9" * 5000 + "\nb" + " " * 20_000 + "x\n",
    }.items():
        place(name)
        (folder / name / "classes.txt").write_text(listed)
    place("listed_bytes")
    (folder / "listed_bytes" / "classes.txt").write_bytes(b"\xff\xfe\x00")


def _weights(folder: Path) -> None:
    (folder / "noise.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    (folder / "void.safetensors").write_bytes(b"")
    claim = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}})
    (folder / "huge.safetensors").write_bytes(struct.pack("<Q", len(claim)) + claim.encode())
    (folder / "header.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    (folder / "noise.pt").write_bytes(RNG.bytes(200))
    (folder / "noise.onnx").write_bytes(RNG.bytes(200))
    os.mkfifo(folder / "pipe.safetensors")


def _runs(folder: Path) -> None:
    """Folders that look like runs."""
    for name, content in {
        "run_void": b"",
        "run_noise": b"{broken",
        "run_bytes": b"\xff\xfe",
        "run_list": b"[]",
        "run_deep": b"[" * 100_000,
        "run_empty": b"{}",
        "run_null": b'{"created": null, "versions": null, "plans": null}',
    }.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_bytes(content)
    (folder / "run_folder" / "run.json").mkdir(parents=True)
    (folder / "run_pipe").mkdir()
    os.mkfifo(folder / "run_pipe" / "run.json")
