"""``besiege evaluate`` on an address: end to end, and what it would cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Besiege
from tests.models.serving import serving

from besiege.models import transport

NOISE = str(Path(__file__).parents[1] / "bench" / "walk.py") + ":Noise"
ASK = ("--data", "digits", "--count", "10", "--threat", "linf:0.3", "--attacks", NOISE)


def test_labels_behind_an_address_end_to_end(besiege: Besiege, tmp_path: Path) -> None:
    with serving(labels_only=True) as server:
        ask = ("evaluate", "--model", server.url, "--access", "decision", *ASK)
        would = besiege(*ask, "--dry-run")
        assert would.code == 0 and server.requests == 0
        assert "against linf:0.3 decision, 10 images: at most" in would.out
        assert (
            would.out.endswith("Nothing was sent.\n") and not (tmp_path / "besiege-runs").exists()
        )
        said = besiege(*ask)
        assert said.code == 0
        assert f"{server.images:,} images sent" in said.flat
        most = next(line for line in would.out.splitlines() if line.startswith("in all"))
        assert server.images <= int(most.split()[-1].replace(",", ""))
        assert "linf:0.3 decision" in said.out
        (page,) = (tmp_path / "besiege-runs").glob("*/report.html")
        shown = page.read_text("utf-8")
        assert "classified as" in shown and "Confidence" not in shown
        found = json.loads(besiege(*ask, "--json", "--no-page").out)
        assert {one["confidence"] for one in found["evaluations"][0]["gallery"]} == {None}
        assert sum(account["sent"] for account in found["paid"].values()) == server.images
    again = besiege(*ask)  # all is there: nobody needs to answer
    assert again.code == 0


def test_an_estimate_as_json(besiege: Besiege) -> None:
    url = "http://127.0.0.1:9/none(rate=10)"
    said = besiege("evaluate", url, *ASK, "--access", "decision", "--dry-run", "--json")
    found = json.loads(said.out)
    assert found["threat"] == "linf:0.3 decision" and found["rate"] == 10
    assert found["seconds"] == found["sent"] / 10
    accounts = [price["account"] for price in found["prices"]]
    assert accounts == ["probe", "clean", "Noise", "judge", "canary"]
    said = besiege("evaluate", url, *ASK, "--access", "decision", "--dry-run")
    assert "seconds at 10 images per second" in said.out or "minutes at 10" in said.out


def test_attacks_that_need_more_are_refused_with_those_that_fit(besiege: Besiege) -> None:
    ask = ("evaluate", "http://127.0.0.1:9/none", *ASK[:6], "--access", "decision")
    for more in ((), ("--dry-run",)):
        said = besiege(*ask, "--attacks", "pgd", *more)
        assert said.code == 2
        assert "needs gradient access, but only decision access is granted" in said.flat
        assert "attacks that fit: geoda, hopskipjump, noise, opt, rays, signopt" in said.flat


def test_labels_alone_are_refused_with_the_option_to_give(besiege: Besiege) -> None:
    with serving(labels_only=True) as server:
        said = besiege("evaluate", server.url, *ASK[:6], "--attacks", "square")
    assert said.code == 3
    assert "--access decision" in said.flat and "access=" not in said.flat


def test_a_server_that_is_not_there_is_named(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)
    with serving() as server:
        url = server.url
        server.trick = lambda handler, number: number > 8 and handler.say(404, b"gone") is None
        said = besiege("evaluate", url, *ASK[:6], "--attacks", "square", "--out", "run")
        assert said.code == 3
        assert "refused with status 404: gone (check the path)" in said.flat
        assert "The answers are kept in run; run the same command again to resume." in said.flat
    said = besiege("evaluate", f"{url}(retries=0)", *ASK[:6], "--attacks", "square", "--out", "no")
    assert said.code == 3 and "Connection refused" in said.flat and "kept" not in said.flat


def test_labels_have_no_confidence_in_the_list_of_images(besiege: Besiege) -> None:
    with serving(labels_only=True) as server:
        model = f"{server.url}(access='decision', classes=10)"
        ask = ("--images", "digits", "--count", "4", "--attack", NOISE, "--threat", "linf:0.3")
        said = besiege("attack", model, *ask, "--out", "made")
        assert said.code == 0, said.flat
    found = json.loads(Path("made", "results.json").read_text())
    assert {image["confidence"] for image in found["images"]} == {None}
    assert "100 %" not in said.out


def test_a_key_in_an_address_is_refused_before_anything_is_written(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "Zm9vYmFyMTIzNDU2Nzg5MA=="
    for more in ((), ("--dry-run",), ("--access", "decision")):
        said = besiege("evaluate", f"https://h.test/p?code={secret}", *ASK, *more, "--out", "run")
        assert said.code == 2 and "holds a key ('code=')" in said.flat
        assert "write {NAME} in its place" in said.flat
        assert secret not in said.err + said.out and not list(tmp_path.iterdir())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # on a terminal a bar has the model as its title
    said = besiege("evaluate", f"https://h.test/p?code={secret}", *ASK)
    assert said.code == 2 and secret[:8] not in said.err


def test_what_a_server_says_cannot_steer_the_terminal(
    besiege: Besiege, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-not-for-others")
    content = "\x1b[2J\u202e[red]SK-NOT-FOR-OTHERS[/red]".encode()
    with serving() as server:
        server.trick = lambda handler, number: handler.say(403, content) is None
        said = besiege("evaluate", f"{server.url}(token=OWN_KEY)", *ASK[:6], "--debug")
    assert said.code == 3 and "403: [2J[red][key][/red] (check" in said.flat
    assert "\x1b" not in said.err and "\u202e" not in said.err


def test_a_name_cannot_steer_the_terminal(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\u202eb").mkdir()
    said = besiege("evaluate", "zoo:digits-natural", "--data", "a\x1b[2J\u202eb", *ASK[4:])
    assert said.code == 2 and r"a\x1b[2J\u202eb" in said.flat and "\x1b" not in said.err
