"""Secrets: refused in addresses, read from environment variables, hidden in servers' messages."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from string import ascii_letters, digits
from urllib.parse import unquote_plus

from besiege.core.errors import InputError

PLACE = re.compile(r"\{(\w+)\}")
"""Placeholder for the value of an environment variable: ``http://HOST/PATH?code={NAME}``."""

_TELLING_NAME = re.compile(
    r".*(?:token|secret|password|passwd|passphrase|pwd|signature|credentials?|bearer|jwt|hmac"
    r"|session|sessionid|cookie|oauth|authorization)"
    r"|x?(?:api|access|account|app|auth|client|functions?|host|master|private|secret|shared"
    r"|subscription|user)*key|(?:x|xgoog)?sig|sas|auth|code|pass|sid|otp"
)
"""Names of parameters that hold a secret; lower case, letters and digits only."""
_VERSION_NAME = re.compile(r"(?:model)?(?:versions?|digest|commit|revision|hash|runs?|runid)")
"""Names after which a long hexadecimal number is a version."""
_DIGEST = re.compile(r"[\da-f]{32,128}", re.I)
_NAMED = re.compile(
    r"(?<![\da-f])(?:[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|sha\d+:[\da-f]{32,128})(?![\da-f])",
    re.I,
)
"""UUIDs, and digests with a prefix such as ``sha256:``."""
_JWT = re.compile(r"eyJ[\w-]{8,}\.[\w-]+")
_PIECE = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]")
"""Numbers and words, the pieces of names."""
_HARSH = re.compile(r"[^aeiouy]{5,}", re.I)
"""Runs of consonants that no word has."""
_BREAK = r"(?:\s|\\+[nr])*"
"""Line breaks that may lie between the letters of a secret."""
_BASE64 = f"{ascii_letters}{digits}+/-_"
_SHORTEST, _LONG = 20, 32
"""Random-looking letters that make a secret; length from which a run is hardly a name."""


def may_be_secret(name: str, value: str) -> bool:
    """Whether a value under a name, both decoded, may be a secret.

    Either the name shows it, or the value looks random: a JSON web token, 32 or more hexadecimal
    digits, or runs of 8 or more letters and digits, 20 together, whose pieces (words, numbers) are
    shorter than three letters on average. A UUID is not a secret, nor is a digest after a word such
    as ``version``.

    Examples
    --------
    >>> may_be_secret("code", "a1"), may_be_secret("v", "c3VwZXItc2VjcmV0LXZhbHVl")
    (True, True)
    >>> may_be_secret("model", "vit_base_patch16_224.augreg_in21k_ft_in1k")
    False
    """
    letters, value = re.sub(r"[^a-z0-9]", "", name.lower()), PLACE.sub("", value)
    if _TELLING_NAME.fullmatch(letters):
        return bool(value)
    if _DIGEST.fullmatch(value) and _VERSION_NAME.fullmatch(letters):
        return False
    value = _NAMED.sub("", value)
    random = (run for run in re.findall(r"[A-Za-z0-9]{8,}", value) if _is_random(run))
    return bool(_JWT.search(value)) or sum(map(len, random)) >= _SHORTEST


def _is_random(run: str) -> bool:
    if run.isdigit() or (run.isalpha() and (run.islower() or run.isupper())):
        return False  # numbers and single words
    pieces = _PIECE.findall(run)
    parts = len(pieces) + sum(len(harsh) // 3 for one in pieces for harsh in _HARSH.findall(one))
    length = 3.5 if len(run) >= _LONG else 3.0
    return len(run) < length * parts or (len(run) >= _LONG and _DIGEST.fullmatch(run) is not None)


def must_hold_no_secret(text: str) -> None:
    """Refuse a model's text if an address or an argument in it contains a secret.

    The secret would show in records, on pages and on the screen. No message repeats the value.
    """
    for rest in re.findall(r"://([^\s\"'()]*)", text):
        host = re.split(r"[/?#]", rest, maxsplit=1)[0]
        if "@" in host:
            raise InputError(
                "the address holds a user name or a password, which would be kept in records: name "
                "an environment variable with token=NAME instead"
            )
        given = text.partition("(")[2]
        for where, name, value in (*_pieces(rest[len(host) :]), *_arguments(given)):
            if may_be_secret(name, value):
                raise InputError(
                    f"the address holds a key ({where}), which would be kept in records: put it "
                    "into an environment variable NAME, and write {NAME} in its place"
                )


def _pieces(rest: str) -> Iterator[tuple[str, str, str]]:
    """Place, name and value, decoded, of every part of a path and a query."""
    path, *queries = re.split(r"[?#]", rest)
    before = ""
    for part in re.split(r"[/;]", path):
        name, equals, value = _read(part).partition("=")
        if not equals:
            # A part is named by the part before it, but '/session/predict' holds no session.
            name, value = (before if _VERSION_NAME.fullmatch(before.lower()) else ""), name
        yield "in its path", name, value
        before = value
    for part in re.split(r"[&;]", "&".join(queries)):
        name, equals, value = part.partition("=")
        name, value = (_read(name), _read(value)) if equals else ("", _read(name))
        yield ("in its query" if may_be_secret("", name) or not name else f"'{name}='"), name, value
        yield "in its query", "", name


def _arguments(given: str) -> Iterator[tuple[str, str, str]]:
    """The same for arguments that are shown; a token names a variable, which is not secret."""
    for name, value in re.findall(r"\b(token|version|name)\s*=\s*['\"]?([^,)'\"]+)", given):
        yield f"'{name}='", "" if name == "token" else name, value


def _read(part: str) -> str:
    for _ in range(3):  # it may be encoded more than once
        part = unquote_plus(part)
    return part


def from_environment(name: str, what: str = "token") -> str:
    """The secret that an environment variable holds; `what` names it."""
    held = os.environ.get(name, "").strip()
    if not held:
        # Text that is no name, or looks random, may be the key itself.
        named = re.fullmatch(r"\w+", name) is not None and not may_be_secret("", name)
        raise InputError(
            f"{what} is {repr(name) if named else 'no name'}, but no environment variable of this "
            "name is set: give the name of the variable that holds the key, so that no record "
            "contains the key"
        )
    if not all(" " <= letter <= "~" for letter in held):
        raise InputError(
            f"the environment variable {name} holds line breaks or letters that are not ASCII, "
            "which no key does"
        )
    return held


def filled(text: str) -> tuple[str, list[str]]:
    """A text with every ``{NAME}`` replaced by the environment variable's value; the values."""
    what = "the key in the address"
    held = {name: from_environment(name, what) for name in PLACE.findall(text)}
    return PLACE.sub(lambda match: held[match[1]], text), [*held.values()]


class Veil:
    r"""Makes a server's message safe to show and keep.

    The message becomes one line of printable characters: no control characters, no escape sequences
    of a terminal, no change of writing direction. Then secrets in it are hidden, also if they are
    cut off after six letters or more, or written differently: in upper or lower case, encoded for
    an address, JSON or HTML, as hexadecimal digits or as base64 of a text that contains them.

    Parameters
    ----------
    secrets : iterable of str
        The texts to hide.

    Examples
    --------
    >>> Veil(["sk-12345678"])("\x1b[31mUnknown key SK-1234567\n")
    '[31mUnknown key [key]'
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        plain = {form for one in secrets for form in (one, unquote_plus(one)) if form}
        encoded = (core for one in plain if len(one) >= 4 for core in _encodings(one.encode()))
        self._forms = [(one, 6, "") for one in plain] + [(one, 8, _BASE64) for one in encoded]

    def __call__(self, text: str) -> str:
        shown = (letter for letter in text if letter.isprintable() or letter.isspace())
        text = " ".join("".join(shown).split())
        pieces, at = [], 0
        for begin, end in sorted(span for form in self._forms for span in _spans(text, *form)):
            if begin >= at:
                pieces += [text[at:begin], "[key]"]
            at = max(at, end)
        return "".join([*pieces, text[at:]])


def _encodings(secret: bytes) -> Iterator[str]:
    """The secret in base64 of a text around it, at each alignment; and in hexadecimal.

    Letters at the ends are left out, since they depend on the text beside the secret.
    """
    for shift in range(3):
        text, first = b64encode(b"\0" * shift + secret).decode(), -(-8 * shift // 6)
        yield text[first : 8 * (shift + len(secret)) // 6]
    yield secret.hex()


def _spans(text: str, secret: str, telling: int, around: str) -> Iterator[tuple[int, int]]:
    """Where a text contains a secret, or at least its first `telling` letters.

    Neighbouring letters out of `around` are included.
    """
    begins = re.compile(_BREAK.join(map(_written, secret[:telling])), re.IGNORECASE)
    for match in begins.finditer(text):
        begin, end = match.span()
        for letter in secret[telling:]:
            more = re.compile(_BREAK + _written(letter), re.IGNORECASE).match(text, end)
            if more is None:
                break
            end = more.end()
        while around and begin and text[begin - 1] in around:
            begin -= 1
        while around and text[end : end + 1] in (*around,):
            end += 1
        yield begin, end


@cache
def _written(letter: str) -> str:
    r"""A pattern for all ways to write a letter: %2B, \u002b, \x2b, &#43;, &amp;."""
    number, alike = f"{ord(letter):02x}", {"+": "-", "/": "_", " ": "+"}.get(letter, letter)
    plain = "|".join(re.escape(one) for one in (escape(letter), letter, alike))
    return (
        rf"(?:%(?:25)*{number}|\\+(?:u00|x){number}|&\#0*{ord(letter)};|&\#x0*{number};"
        rf"|\\*(?:{plain}))"
    )
