"""Secrets: kept out of addresses, and hidden in what a server says, however it writes them."""

from __future__ import annotations

import base64
import html
import json
import random
import string
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.models.serving import serving

import besiege
from besiege.core.errors import InputError
from besiege.defenses import load
from besiege.models import Endpoint
from besiege.models.address import Address
from besiege.models.secrecy import Veil, may_be_secret, must_hold_no_secret

KEY = 'sk-Not+For/Others=9"<&\\zQ7'
CODE = "Zm9vYmFyMTIzNDU2Nzg5MA=="
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln"


@pytest.mark.parametrize(
    "rest",
    [
        *(f"p?v=1&{name}=a1" for name in ("code", "X-Amz-Signature", "jwt", "sas", "pwd")),
        *(f"p?{name}=a1" for name in ("bearer", "session", "hmac", "sig", "access%5Ftoken")),
        *(f"p;{name}=a1" for name in ("jsessionid", "X-Goog-Credential", "clientSecret")),
        *(f"p?v={CODE}", f"p?{CODE}", f"p?v={quote(quote(CODE))}", f"p?{CODE}=1", f"p#{CODE}"),
        *(f"p?v={JWT}", f"hooks/{JWT}/p", "p?v=9f86d081884c7d659a2feaa0c55ad015"),
        "services/T02AB3CDE/B02AB3CDE/xGk9Qm2ZrT7vLp4WcY8nHd3J",
        "bot123456:AAH-DEF1234ghIkl-zyx57W2v1u123ew11/p",
        "p(token=ghp_a8Xk2PqLm9Rt4VbN7cZe1WsY6uJh3Gf5Dd0T)",
        f"p?v={CODE}(format=png",  # other messages would repeat the text
        f"p?v={CODE}+unknown",
        f"p?v={CODE} x",
    ],
)
def test_an_address_that_holds_a_key_is_refused_without_repeating_it(rest: str) -> None:
    with pytest.raises(InputError, match=r"holds a key .*write \{NAME\} in its place") as told:
        load(f"https://h.test/{rest}")
    for secret in (CODE, JWT, "a1", "9f86d", "xGk9Q", "zyx57", "ghp_"):
        assert secret not in str(told.value)


def test_a_factory_is_given_no_key_in_an_address() -> None:
    with pytest.raises(InputError, match="holds a key"):
        load(f"no_such.py:make(url='https://h.test/p?code={CODE}')")
    with pytest.raises(besiege.BesiegeError, match=r"no_such\.py"):
        load("no_such.py:make(url='https://h.test/p?code={NAME}')")


@pytest.mark.parametrize("text", ["http://me:pass@h/", "http://me:pa/ss@h/", "ftp://me:pass@h/"])
def test_a_password_is_not_repeated(text: str) -> None:
    with pytest.raises(InputError) as told:
        Address(text)
    assert "pa" not in str(told.value).replace("password", "").replace("path", "")


@pytest.mark.parametrize(
    "rest",
    [
        "p?model=resnet50&version=3",
        "v1/models/my-long-model-name-2024:predict",
        "v1/models/vit_base_patch16_224.augreg_in21k_ft_in1k:predict?max_tokens=5&tokens=5",
        "v1/projects/my-project-123456/locations/us-central1/endpoints/1234567890123456789:predict",
        "deployments/123e4567-e89b-12d3-a456-426614174000/score",
        "endpoints/my-endpoint-2024-01-01-12-00-00-123/invocations?signature_name=serving_default",
        "v2/models/Rebuffi2021FixingLinf70x16CutmixExtra/versions/1/infer",
        "versions/5c7d5dc6dd8bf75c1acaa8565735e7986bc5b66206b55cca93cb72c9bf15ccaa/predictions",
        "m@sha256:5c7d5dc6dd8bf75c1acaa8565735e7986bc5b66206b55cca93cb72c9bf15ccaa",
        "runs/5d41402abc4b2a76b9719d911017c592?revision=9f86d081884c7d659a2feaa0c55ad015",
        "api/session/predict?sort_key=name&country_code=de&token_type=word&key=&at=2024-01-31T23:59:59Z",
        "p(version=9f86d081884c7d659a2feaa0c55ad015, token=MY_MODEL_KEY_2024)",
        "p(name=convnextv2_huge.fcmae_ft_in22k_in1k_384)",
    ],
)
def test_ordinary_addresses_are_taken(rest: str) -> None:
    must_hold_no_secret(f"https://h.test/{rest}")


def test_random_values_are_noticed_and_names_are_not() -> None:
    dice = random.Random(0)
    everything = string.ascii_letters + string.digits
    for letters, size, share in (
        ("0123456789abcdef", 32, 1.0),
        ("0123456789abcdef", 24, 0.85),
        (string.ascii_lowercase + string.digits, 32, 0.95),
        (everything, 24, 0.97),
        (everything + "-_", 43, 0.99),
    ):
        made = ["".join(dice.choices(letters, k=size)) for _ in range(300)]
        assert sum(may_be_secret("", one) for one in made) >= share * 300, (letters, size)
    assert not any(may_be_secret("", str(uuid.UUID(int=dice.getrandbits(128)))) for _ in range(300))
    ours = {file.stem for file in Path(besiege.__file__).parent.rglob("*")}
    assert len(ours) > 100 and not [name for name in ours if may_be_secret("", name)]


def test_a_key_has_its_place_in_an_address_and_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_CODE", CODE)
    seen: set[str] = set()

    def noted(handler: Any, number: int) -> bool:
        seen.add(handler.path)
        return False

    with serving() as server:
        server.trick = noted
        text = f"{server.url}?code={{OWN_CODE}}&v=1"
        ask: dict[str, Any] = {"count": 4, "attacks": "square", "queries": 5}
        found = besiege.evaluate(text, "digits", threat="linf:0.2", out=tmp_path, **ask)
        assert seen == {f"/predict?code={CODE}&v=1"}
        server.trick = lambda handler, number: handler.say(403, {"asked": handler.path}) is None
        with pytest.raises(besiege.BesiegeError, match=r"code=\[key\]&v=1") as told:
            Endpoint(text)(besiege.data.load("digits", count=2).images)
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"{OWN_CODE}" in kept
    for shown in (kept, repr(found).encode(), str(told.value).encode()):
        assert CODE.rstrip("=").encode() not in shown
    monkeypatch.delenv("OWN_CODE")
    with pytest.raises(InputError, match="key in the address is 'OWN_CODE', but no environment"):
        Endpoint(text)


def _lines(text: str) -> str:
    return "\r\n".join(text[at : at + 11] for at in range(0, len(text), 11))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        KEY.upper(),
        KEY.lower(),
        KEY.swapcase(),
        quote(KEY, safe=""),
        quote(KEY, safe="").lower(),
        quote(quote(KEY)),
        json.dumps({"token": KEY}),
        json.dumps(json.dumps({"token": KEY})),
        "".join(f"\\u{ord(letter):04x}" for letter in KEY),
        "".join(f"%{ord(letter):02X}" for letter in KEY),
        html.escape(KEY),
        repr(KEY),
        "\0".join(KEY),
        "\u200b".join(KEY),
        _lines(KEY),
        KEY.encode().hex(),
        *(_b64("x" * shift + KEY + "tail") for shift in range(4)),
        *(base64.urlsafe_b64encode(b"Bearer " + b"y" * n + KEY.encode()).decode() for n in (0, 2)),
        quote(_b64(f"Bearer {KEY}"), safe=""),
        _lines(_b64(f"Bearer {KEY}")),
        _b64(KEY).lower(),
    ],
)
def test_a_key_is_hidden_however_it_is_written(echo: str) -> None:
    told = Veil([KEY])(f"status 403: it said «{echo}», bye")
    assert told.startswith("status 403: it said «") and told.endswith("», bye")
    inside = told.partition("«")[2].partition("»")[0]
    assert "[key]" in inside
    left = inside.replace("[key]", "").replace("token", "")
    assert not any(letter.isalnum() for letter in left), left
    for end in (12, 20):  # the beginning of an answer is all that is shown
        cut = Veil([KEY])(echo[: len(echo) * end // 20])
        assert KEY[:6].lower() not in cut.lower()


def test_what_a_server_says_cannot_steer_a_terminal() -> None:
    said = Veil([])("\x1b[31mred\x1b]0;title\x07 \u202eabc\u2066\x9b2J\n\r\tnext \ud800\u2028line")
    assert said == "[31mred]0;title abc2J next line"
    assert Veil(["a"])("st-a-tus") == "st-[key]-tus"
