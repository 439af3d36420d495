"""A model behind HTTP, to try attacks on endpoints: a small server without dependencies.

    python examples/serve.py --port 8000 --labels-only
    besiege evaluate http://127.0.0.1:8000/predict --data digits --count 20 \
        --threat linf:0.15 --access decision --queries 500 --dry-run

It takes JSON ({"images": [...]}), plain float32 or bytes with an X-Shape header, and PNG files, and
answers JSON. GET /count returns how many images it has answered. Options make it fail or slow.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from PIL import Image

from besiege.defenses import load


class Server(ThreadingHTTPServer):
    """Answers requests with one model, and counts the images.

    Parameters
    ----------
    model : str
        A text that `besiege.defenses.load` reads.
    port : int
        0 takes any free port.
    labels_only : bool
        Answer only labels.
    top_k : int, optional
        Answer only the first few classes and their probabilities.
    probabilities : bool
        Answer probabilities instead of logits.
    fail_rate : float
        The share of requests answered with status 500.
    latency : float
        Seconds that every answer takes.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        model: str = "zoo:digits-natural",
        port: int = 0,
        *,
        labels_only: bool = False,
        top_k: int | None = None,
        probabilities: bool = False,
        fail_rate: float = 0.0,
        latency: float = 0.0,
    ) -> None:
        self.victim = load(model)
        self.labels_only, self.top_k, self.probabilities = labels_only, top_k, probabilities
        self.fail_rate, self.latency = fail_rate, latency
        self.images = self.requests = 0
        self.trick: Callable[[Handler, int], bool] | None = None
        """For tests: called with every request and its number; returns whether it has answered."""
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/predict"

    def answer(self, images: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The model's answer for images in [0, 1], in the form that was chosen."""
        with (
            self.lock,
            torch.no_grad(),
        ):  # one request at a time, so that rounding is always the same
            scores = self.victim(torch.from_numpy(images)).double()
        if self.labels_only:
            return {"labels": scores.argmax(1).tolist()}
        if self.top_k is not None:
            best = scores.softmax(1).topk(self.top_k, 1)
            return {"indices": best.indices.tolist(), "scores": best.values.tolist()}
        if self.probabilities:
            return {"probabilities": scores.softmax(1).tolist()}
        return {"logits": scores.tolist()}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self.say(200, {"images": self.server.images, "requests": self.server.requests})

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with server.lock:
            server.requests += 1
            number = server.requests
        if server.trick is not None and server.trick(self, number):
            return
        if server.fail_rate and random.random() < server.fail_rate:
            self.say(500, {"error": "as requested by --fail-rate"})
            return
        if server.latency:
            time.sleep(server.latency)
        try:
            images = read(body, self.headers)
            answer = server.answer(images)
        except (ValueError, KeyError, TypeError, OSError, RuntimeError) as problem:
            self.say(400, {"error": f"{type(problem).__name__}: {problem}"})
            return
        with server.lock:
            server.images += len(images)
        self.say(200, answer)

    def say(self, status: int, content: object, **headers: str) -> None:
        """Send a status and JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def read(body: bytes, headers: Any) -> np.ndarray[Any, Any]:
    """The images of a request, float32 [rows, channels, height, width] in [0, 1]."""
    kind = headers.get("Content-Type", "").partition(";")[0]
    if kind == "image/png":
        return pixels(body)[None]
    if kind == "application/octet-stream":
        shape = [int(side) for side in headers["X-Shape"].split(",")]
        if headers["X-Dtype"] == "uint8":
            return np.frombuffer(body, np.uint8).reshape(shape).astype(np.float32) / 255
        return np.frombuffer(body, "<f4").reshape(shape).copy()
    found = json.loads(body)
    if "png" in found:
        return np.stack([pixels(base64.b64decode(one)) for one in found["png"]])
    return np.asarray(found["images"], dtype=np.float32)


def pixels(file: bytes) -> np.ndarray[Any, Any]:
    """A PNG file as float32 [channels, height, width] in [0, 1]."""
    image = np.asarray(Image.open(io.BytesIO(file)), dtype=np.float32) / 255
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


def main() -> None:
    command = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    command.add_argument("model", nargs="?", default="zoo:digits-natural")
    command.add_argument("--port", type=int, default=8000)
    command.add_argument("--labels-only", action="store_true")
    command.add_argument("--top-k", type=int)
    command.add_argument("--probabilities", action="store_true")
    command.add_argument("--fail-rate", type=float, default=0.0)
    command.add_argument("--latency", type=float, default=0.0, metavar="SECONDS")
    given = vars(command.parse_args())
    torch.set_num_threads(1)
    with Server(given.pop("model"), **given) as server:
        print(f"{server.url} answers; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(f"{server.images} images were answered")


if __name__ == "__main__":
    main()
