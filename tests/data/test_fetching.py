from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from besiege.core.errors import DataError, InputError, UnknownNameError
from besiege.data import catalogue, fetch, fetching, listing, load
from besiege.data.catalogue import CATALOGUE, Entry, Remote

draw = np.random.default_rng(0)


class Server:
    """A published place: what it offers, and what was asked of it."""

    def __init__(self) -> None:
        offered: dict[str, bytes] = {}
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                content = offered.get(self.path)
                self.send_response(404 if content is None else 200)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.offered, self.asked = offered, asked
        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.close()


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address leads nowhere, unless a test says otherwise."""
    monkeypatch.delenv("BESIEGE_OFFLINE")
    monkeypatch.delenv("BESIEGE_DATA", raising=False)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    for name, entry in CATALOGUE.items():
        monkeypatch.setitem(CATALOGUE, name, replace(entry, addresses=("http://127.0.0.1:9/",)))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "besiege" / "data"


def idx(values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    sizes = np.array(values.shape, dtype=">u4").tobytes()
    return bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()


def publish(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]
) -> None:
    """Offer these files of the test split, with checksums that fit."""
    entry = CATALOGUE[name]
    assert entry.remotes is not None
    remotes = tuple(
        replace(r, md5=hashlib.md5(files[r.file]).hexdigest(), bytes=len(files[r.file]))
        for r in entry.remotes["test"]
    )
    server.offered.update({f"/{file}": content for file, content in files.items()})
    changed = replace(entry, addresses=(server.address,), remotes={"test": remotes})
    monkeypatch.setitem(CATALOGUE, name, changed)


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files = {
        "t10k-images-idx3-ubyte.gz": gzip.compress(
            idx(draw.integers(0, 256, (5, 28, 28), dtype=np.uint8))
        ),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(np.arange(5, dtype=np.uint8))),
    }
    publish(server, monkeypatch, "mnist", files)
    return files


def archive(members: dict[str, bytes], link: str | None = None) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            if name == link:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(member)
            else:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def cifar(rows: int) -> dict[str, bytes]:
    batch = {
        "data": draw.integers(0, 256, (rows, 3072), dtype=np.uint8),
        "labels": draw.integers(0, 10, rows).tolist(),
    }
    names = ["test_batch", *(f"data_batch_{i}" for i in range(1, 6))]
    return {f"cifar-10-batches-py/{name}": pickle.dumps(batch) for name in names}


def left(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_what_is_missing_is_fetched_once(
    server: Server, mnist: dict[str, bytes], cache: Path
) -> None:
    data = load("mnist")
    assert data.labels.tolist() == [0, 1, 2, 3, 4]
    assert left(cache) == [f"MNIST/raw/{file}" for file in sorted(mnist)]
    assert load("mnist").digest == data.digest
    assert len(server.asked) == 2
    where = {line.entry.name: line.where["test"] for line in listing()}
    assert where["mnist"] == str(cache / "MNIST" / "raw")
    assert where["digits"] == "shipped"
    assert where["fashion-mnist"] == "downloads 4 MB"


def test_the_data_root_comes_first(
    server: Server,
    mnist: dict[str, bytes],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = load("mnist")
    own = tmp_path / "root" / "mnist"
    own.mkdir(parents=True)
    (own / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 28, 28), dtype=np.uint8)))
    (own / "t10k-labels.idx1-ubyte").write_bytes(idx(np.zeros(2, dtype=np.uint8)))
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path / "root"))
    # Two spellings are no complete layout, so the cache still answers.
    assert load("mnist").digest == fetched.digest
    (own / "t10k-labels.idx1-ubyte").rename(own / "t10k-labels-idx1-ubyte")
    assert len(load("mnist")) == 2


def test_progress_is_told(server: Server, mnist: dict[str, bytes]) -> None:
    told: list[tuple[str, int, int]] = []
    folder = fetch("mnist", watch=lambda *now: told.append(now))
    assert folder.name == "raw"
    assert {name: come for name, come, _ in told} == {k: len(v) for k, v in mnist.items()}
    assert all(come == total for _, come, total in told)
    with pytest.raises(InputError, match="nothing to fetch"):
        fetch("digits")
    with pytest.raises(UnknownNameError, match="mnist"):
        fetch("minst")


def test_another_address_is_tried(
    server: Server, mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CATALOGUE["mnist"]
    monkeypatch.setitem(
        CATALOGUE, "mnist", replace(entry, addresses=("http://127.0.0.1:9/", server.address))
    )
    assert len(load("mnist")) == 5


def test_a_wrong_checksum_leaves_nothing_behind(
    server: Server, mnist: dict[str, bytes], cache: Path
) -> None:
    server.offered["/t10k-images-idx3-ubyte.gz"] = b"<html>Please log in</html>"
    with pytest.raises(
        DataError, match=r"26 bytes with MD5.*published.*t10k-images-idx3-ubyte\.gz"
    ):
        load("mnist")
    assert left(cache) == []


def test_without_a_network_it_says_what_to_put_where(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError) as error:
        load("mnist")
    text = str(error.value)
    assert f"{cache}/MNIST/raw/t10k-images-idx3-ubyte.gz" in text
    assert "http://127.0.0.1:9/t10k-labels-idx1-ubyte.gz" in text
    assert "refused" in text and "BESIEGE_DATA" in text
    monkeypatch.setenv("BESIEGE_DATA", str(tmp_path / "root"))
    with pytest.raises(DataError, match="root, a folder that does not exist"):
        load("cifar10")
    half = tmp_path / "root" / "cifar-10-batches-bin"
    half.mkdir(parents=True)
    with pytest.raises(DataError, match=r"needs .*root/cifar-10-batches-bin/test_batch\.bin"):
        load("cifar10")


def test_offline_means_that_nobody_is_asked(
    server: Server, mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESIEGE_OFFLINE", "1")
    with pytest.raises(DataError, match="BESIEGE_OFFLINE is set"):
        load("mnist")
    assert server.asked == []


def test_an_archive_is_unpacked_and_removed(
    server: Server, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    members = cifar(3)
    extra = {"../escaped": b"x", "/tmp/besiege-escaped": b"x", "cifar-10-batches-py/readme": b"x"}
    packed = archive({**extra, **members})
    publish(server, monkeypatch, "cifar10", {"cifar-10-python.tar.gz": packed})
    assert len(load("cifar10")) == 3
    assert left(cache.parent) == [f"data/{name}" for name in sorted(members)]
    assert len(load("cifar10", "train")) == 15
    assert len(server.asked) == 1


def test_a_link_in_an_archive_is_not_followed(
    server: Server, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    name = "cifar-10-batches-py/test_batch"
    packed = archive(cifar(3), link=name)
    publish(server, monkeypatch, "cifar10", {"cifar-10-python.tar.gz": packed})
    with pytest.raises(DataError, match=f"lacks {name}"):
        load("cifar10")
    assert not (cache / name).exists()


def test_a_cache_that_cannot_be_written_is_named(
    server: Server, mnist: dict[str, bytes], cache: Path
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("in the way")
    with pytest.raises(DataError, match=r"writing failed.*XDG_CACHE_HOME"):
        load("mnist")


def test_an_interrupted_download_leaves_nothing_behind(
    server: Server, mnist: dict[str, bytes], cache: Path
) -> None:
    def stop(*now: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", watch=stop)
    assert left(cache) == []


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        entry = CATALOGUE["mnist"]
        monkeypatch.setitem(CATALOGUE, "mnist", replace(entry, addresses=(address,)))
        with pytest.raises(DataError, match="timed out"):
            load("mnist")


def test_the_catalogue_knows_where_everything_is_published() -> None:
    for entry in CATALOGUE.values():
        if entry.shipped or entry.name == "imagenet-sample":  # on GitHub, as other files
            assert entry.remotes is None
            continue
        assert entry.remotes is not None
        for split in entry.images:
            remotes: tuple[Remote, ...] = entry.remotes[split]
            assert remotes
            for remote in remotes:
                assert len(remote.md5) == 32 and remote.bytes > 0
            placed = {f"{r.folder}/{r.file}" for r in remotes if not r.members}
            placed.update(member for r in remotes for member in r.members)
            layout = entry.layouts[0]
            needed = {f"{layout.folders[0]}/{file}" for file in layout.files[split]}
            assert needed <= {name.removesuffix(".gz") for name in placed}


def test_facts_have_an_entry() -> None:
    entry: Entry = catalogue.entry("cifar10")
    assert (entry.classes, entry.shape, entry.images["test"]) == (10, (3, 32, 32), 10_000)
