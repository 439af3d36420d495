"""Evaluations of models behind a wall: accounts, ledgers, estimates, and what a kill costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.serving import serving

import besiege
from besiege.bench import estimate
from besiege.core.errors import AccessError, EndpointError
from besiege.models import load, transport
from besiege.models.black_box import Changed
from besiege.models.ledger import Ledger

NOISE = f"{Path(__file__).parent / 'walk.py'}:Noise"
ASK: dict[str, Any] = {"threat": "linf:0.3", "count": 15, "attacks": NOISE}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.005)


def only_ledger(folder: Path) -> Ledger:
    (file,) = (folder / "ledgers").glob("*.sqlite")
    return Ledger(file)


def test_what_is_charged_is_what_the_server_counted_by_account(tmp_path: Path) -> None:
    with serving(labels_only=True) as server:
        found = besiege.evaluate(server.url, "digits", access="decision", out=tmp_path, **ASK)
        assert found.paid is not None
        assert sum(sent for _, sent in found.paid.values()) == server.images
        queries = int(found.rows["queries"].sum())
        assert found.paid["craft"][0] == queries
        # The clean check of an attack was sent before; everything else it asked about was not.
        assert found.paid["craft"][1] == queries - 15
        # The clean images again and every success are asked about afresh.
        broken = int(found.rows["success"].sum())
        assert broken > 0 and found.paid["judge"] == (2 * 15 + 15 + broken, 15 + broken)
        assert found.paid["probe"] == (8 + 7, 8 + 7) and found.paid["clean"][1] == 15 - 8 + 15
        assert found.figures.threat.text == "linf:0.3 decision"
        ledger = only_ledger(tmp_path)
        assert len(ledger) == server.images - 7 - 2 * 15 - broken  # what is asked afresh
        local = besiege.evaluate("zoo:digits-natural", "digits", access="decision", **ASK)
        assert np.array_equal(found.rows["success"], local.rows["success"])
        assert np.array_equal(found.rows["queries"], local.rows["queries"])


def test_a_run_that_is_lost_is_replayed_from_the_ledger(tmp_path: Path) -> None:
    with serving() as server:
        ask = {**ASK, "attacks": "square", "queries": 30}
        first = besiege.evaluate(server.url, "digits", out=tmp_path, **ask)
        paid = server.images
        for record in (tmp_path / "records").iterdir():
            for file in record.iterdir():
                file.unlink()
            record.rmdir()
        again = besiege.evaluate(server.url, "digits", out=tmp_path, **ask)
        # Known images, pre-flight, clean images twice and successes: what a record says afresh.
        assert server.images == paid + 8 + 7 + 2 * 15 + int(first.rows["success"].sum())
        assert first.paid is not None and again.paid is not None
        for column in ("success", "queries", "first_query", "linf"):
            assert np.array_equal(first.rows[column], again.rows[column])


def test_a_server_that_stops_in_the_middle_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    with serving() as server:
        ask = {**ASK, "attacks": "square", "queries": 30, "out": tmp_path}
        server.trick = lambda handler, number: (
            number > 15 and handler.say(500, {"error": "gone"}) is None
        )
        url = f"{server.url}(retries=1, patience=0)"
        with pytest.raises(EndpointError, match="gone"):
            besiege.evaluate(url, "digits", **ask)
        kept, paid = len(only_ledger(tmp_path)), server.images
        assert kept == paid - 7 - 15 > 15
        server.trick = None
        found = besiege.evaluate(url, "digits", **ask)
        assert found.complete
        with serving() as other:
            whole = besiege.evaluate(other.url, "digits", **{**ask, "out": tmp_path / "other"})
            assert server.images == other.images + 8  # known images, before it goes on
        assert np.array_equal(found.rows["success"], whole.rows["success"])
        assert not [w for w in found.warnings if w.id == "FAILED"]


def test_another_model_at_the_same_address_is_noticed(tmp_path: Path) -> None:
    with serving() as server:
        ask = {**ASK, "attacks": "square", "queries": 20, "out": tmp_path}
        besiege.evaluate(server.url, "digits", **ask)
        answer = server.answer
        server.answer = lambda images: {
            "logits": [row[::-1] for row in answer(images)["logits"]],
        }
        besiege.evaluate(server.url, "digits", **ask)  # it has nothing to ask
        paid = server.images
        with pytest.raises(EndpointError, match="the model there has changed"):
            besiege.evaluate(server.url, "digits", **{**ask, "queries": 21, "seed": 1})
        assert server.images == paid + 8
        other = besiege.evaluate(f"{server.url}(version=2)", "digits", **ask)
        assert other.clean.value < 0.5


def test_another_model_is_noticed_by_its_labels_alone(tmp_path: Path) -> None:
    """Clean images are read alike by both; those that were asked about last are not."""
    ask = {**ASK, "attacks": "rays", "access": "decision", "out": tmp_path}
    with serving(labels_only=True) as server:
        besiege.evaluate(server.url, "digits", **ask, queries=60)
        server.victim, paid = load("zoo:digits-pgd-at"), server.images
        with pytest.raises(Changed, match="the model there has changed"):
            besiege.evaluate(server.url, "digits", **ask, queries=80)
        assert server.images == paid + 8


def test_chance_is_found_out_and_nothing_is_repeated_then(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    with serving() as server:
        answer = server.answer

        def noisy(images: Any) -> dict[str, Any]:
            logits = np.array(answer(images)["logits"])
            return {"logits": (logits + draw.normal(size=logits.shape)).tolist()}

        server.answer = noisy
        ask = {**ASK, "attacks": "square", "queries": 10}
        found = besiege.evaluate(server.url, "digits", out=tmp_path, **ask)
        assert "W14" in {w.id for w in found.warnings}
        assert found.paid is not None
        for account in ("clean", "craft", "judge"):
            asked, sent = found.paid[account]
            assert asked == sent > 0


def test_successes_are_confirmed_by_the_model_and_not_by_the_ledger(tmp_path: Path) -> None:
    """Sober on clean images, and by chance elsewhere: pre-flight and repeats see nothing of it."""
    clean = {row.tobytes() for row in besiege.data.load("digits", count=15).images.numpy()}
    seen: set[bytes] = set()
    with serving() as server:
        answer = server.answer

        def fickle(images: Any) -> dict[str, Any]:
            logits = np.array(answer(images)["logits"])
            for row, image in enumerate(np.asarray(images, np.float32)):
                key = image.tobytes()
                if key not in clean and key not in seen:
                    logits[row] = -logits[row]  # wrong once, and right when it is asked again
                    seen.add(key)
            return {"logits": logits.tolist()}

        server.answer = fickle
        ask = {**ASK, "threat": "linf:0.02", "attacks": "square", "queries": 10}
        found = besiege.evaluate(server.url, "digits", out=tmp_path, **ask)
        assert {"W14", "W17"} <= {w.id for w in found.warnings}
        assert seen and not (found.rows["success"] & found.rows["correct"]).any()
        assert only_ledger(tmp_path).distrusted


def test_more_than_it_grants_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with serving() as server:
        url = f"{server.url}(access=decision, classes=10)"
        with pytest.raises(AccessError, match=r"'pgd' needs gradient .* fit: .*rays"):
            besiege.evaluate(url, "digits", threat="linf:0.1", attacks="pgd", out=tmp_path)
        with pytest.raises(
            AccessError, match=r"score access was requested, but .* grants decision"
        ):
            besiege.evaluate(url, "digits", threat="linf:0.1", access="score", attacks="square")
        assert server.requests == 0 and not list(tmp_path.iterdir())


def test_an_estimate_asks_nothing_and_is_kept(tmp_path: Path) -> None:
    with serving(labels_only=True) as server:
        url = f"{server.url}(format=uint8, rate=50)"
        ask = {**ASK, "access": "decision"}
        found = estimate(url, "digits", **ask)
        assert server.requests == 0
        prices = {price.account: price for price in found.prices}
        assert prices["Noise"].each == 21 and prices["Noise"].asked == 15 * 21
        assert found.rate == 50 and found.seconds == pytest.approx(found.sent / 50)  # type: ignore[operator]
        real = besiege.evaluate(url.replace(", rate=50", ""), "digits", out=tmp_path, **ask)
        assert real.paid is not None and found.sent is not None
        assert sum(sent for _, sent in real.paid.values()) <= found.sent
        for account, price in (("probe", prices["probe"]), ("clean", prices["clean"])):
            assert real.paid[account] == (price.asked, price.sent)
        spared = 15 - int(real.rows["success"].sum())  # what is no success is not confirmed
        assert prices["judge"].asked is not None and prices["judge"].sent is not None
        assert real.paid["judge"] == (prices["judge"].asked - spared, prices["judge"].sent - spared)


def test_an_estimate_counts_what_is_repeated_in_every_shard(tmp_path: Path) -> None:
    with serving() as server:
        ask = {**ASK, "count": 43, "shard": 20, "attacks": "square", "queries": 5}
        found = estimate(server.url, "digits", **ask)
        prices = {price.account: price for price in found.prices}
        repeated = 16 + 16 + 3
        assert prices["clean"].asked == 43 + repeated
        assert prices["judge"].asked == 3 * 43 + repeated
        real = besiege.evaluate(server.url, "digits", out=tmp_path, **ask)
        assert real.paid is not None and found.sent is not None
        assert real.paid["clean"] == (prices["clean"].asked, prices["clean"].sent)
        assert sum(sent for _, sent in real.paid.values()) == server.images <= found.sent
    usual = estimate("http://127.0.0.1:9/none", "digits", **{**ask, "count": 250, "shard": None})
    assert usual.prices[1].asked == 250 + 3 * 16


def test_an_estimate_is_bounded_by_the_queries_and_admits_what_it_does_not_know() -> None:
    ask: dict[str, Any] = {"threat": "linf:0.3", "count": 10, "access": "score"}
    url = "http://127.0.0.1:9/none"  # it is never asked
    bounded = estimate(url, "digits", attacks="square(steps=500)", queries=100, **ask)
    assert bounded.prices[2].each == 100 and bounded.prices[2].asked == 1000
    free = estimate(url, "digits", attacks="square(steps=500)", **ask)
    assert free.prices[2].each == 502
    unknown = estimate(url, "digits", attacks="repeat(square, 2)", **ask)
    if unknown.prices[2].each is None:
        assert unknown.sent is None and unknown.seconds is None
    local = estimate("zoo:digits-natural", "digits", attacks="square", queries=9, **ask)
    assert local.rate is None and local.prices[0].asked == 8


@pytest.mark.parametrize("form", ["uint8", "png"])
def test_images_between_the_levels_are_brought_to_them(form: str, tmp_path: Path) -> None:
    with serving() as server:
        url = f"{server.url}(format={form}, batch=8)"
        ask = {**ASK, "attacks": "square", "queries": 20}
        found = besiege.evaluate(url, "digits", out=tmp_path, **ask)
        assert found.complete and found.clean.value > 0.8
        steps = found.rows["linf"][found.rows["success"]] * 255
        assert np.abs(steps - np.rint(steps)).max() < 1e-3


COMMAND = "import sys; from besiege.cli import main; sys.exit(main(sys.argv[1:]))"


def test_killed_and_resumed_it_pays_for_nothing_twice(tmp_path: Path) -> None:
    words = ["--data", "digits", "--count", "12", "--threat", "linf:0.25"]
    words += ["--attacks", "square", "--queries", "60", "--examine", "none"]
    ask: dict[str, Any] = {"threat": "linf:0.25", "count": 12, "attacks": "square", "queries": 60}
    flying = 2 * 4
    with serving(latency=0.01) as server:
        url = f"{server.url}(batch=4, concurrency=2)"
        begun = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "evaluate", url, *words, "--out", "killed"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        while server.images < 120 and begun.poll() is None:
            time.sleep(0.002)
        begun.send_signal(signal.SIGKILL)
        begun.communicate()
        time.sleep(0.05)  # what was on its way arrives
        paid, server.latency = server.images, 0.0
        kept = len(only_ledger(tmp_path / "killed"))
        afresh = 7 + 12
        assert paid >= 120 and paid - afresh - flying <= kept <= paid - afresh
        found = besiege.evaluate(url, "digits", out=tmp_path / "killed", **ask)
        total, server.images = server.images, 0
        whole = besiege.evaluate(url, "digits", out=tmp_path / "whole", **ask)
        # Sent twice at most: what was on its way, and known images before it goes on.
        assert server.images <= total <= server.images + flying + 8
    names = [{p.name for p in (tmp_path / f / "records").iterdir()} for f in ("killed", "whole")]
    assert names[0] == names[1]
    for column in ("sample", "success", "queries", "first_query", "linf", "prediction"):
        assert np.array_equal(found.rows[column], whole.rows[column])
