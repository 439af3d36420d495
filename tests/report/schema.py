"""Checks documents against the part of XML Schema that junit.xsd uses, without a library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

_XS = "{http://www.w3.org/2001/XMLSchema}"
_READ: dict[str, Callable[[str], object]] = {
    "xs:string": str,
    "xs:token": str,
    "xs:int": int,
    "xs:decimal": Decimal,
    "xs:dateTime": datetime.fromisoformat,
}


class Schema:
    """The types and elements of a schema file."""

    def __init__(self, path: Path) -> None:
        root = ElementTree.parse(path).getroot()
        self.types = {one.get("name", ""): one for one in root if one.tag != f"{_XS}element"}
        self.elements = {one.get("name", ""): one for one in root if one.tag == f"{_XS}element"}

    def problems(self, document: bytes) -> list[str]:
        """All violations of the schema; none for a valid document."""
        found = ElementTree.fromstring(document)
        if found.tag not in self.elements:
            return [f"the root is {found.tag}"]
        return list(self._element(found, self.elements[found.tag]))

    def _element(self, found: Element, declared: Element) -> Iterator[str]:
        named = declared.get("type", "")
        if named in _READ:
            yield from self._value(found.tag, found.text or "", named)
            yield from (f"{found.tag} has {one.tag}" for one in found)
            return
        kind = self.types[named] if named else declared.find(f"{_XS}complexType")
        assert kind is not None, "every element has a type"
        extension = kind.find(f"{_XS}simpleContent/{_XS}extension")
        yield from self._attributes(found, kind if extension is None else extension)
        if extension is None and (found.text or "").strip():
            yield f"{found.tag} has text"
        yield from self._content(found, kind)

    def _attributes(self, found: Element, kind: Element) -> Iterator[str]:
        declared = {one.get("name", ""): one for one in kind.findall(f"{_XS}attribute")}
        yield from (f"{found.tag} has {name}" for name in found.attrib if name not in declared)
        for name, one in declared.items():
            if name in found.attrib:
                yield from self._value(
                    f"{found.tag} {name}", found.attrib[name], one.get("type", "")
                )
            elif one.get("use") == "required":
                yield f"{found.tag} lacks {name}"

    def _content(self, found: Element, kind: Element) -> Iterator[str]:
        """The children in their order; of a choice at most one."""
        left = list(found)
        choice, sequence = kind.find(f"{_XS}choice"), kind.find(f"{_XS}sequence")
        if choice is not None:
            declared = {one.get("name"): one for one in choice}
            if left and left[0].tag in declared:
                yield from self._element(left[0], declared[left.pop(0).tag])
        for one in () if sequence is None else sequence:
            count = 0
            while left and left[0].tag == one.get("name"):
                yield from self._element(left.pop(0), one)
                count += 1
            most = one.get("maxOccurs", "1")
            if count < int(one.get("minOccurs", "1")) or (
                most != "unbounded" and count > int(most)
            ):
                yield f"{found.tag} has {count} {one.get('name')} in their place"
        yield from (f"{found.tag} has {one.tag}, which is not expected there" for one in left)

    def _value(self, where: str, text: str, kind: str) -> Iterator[str]:
        restriction = None if kind in _READ else self.types[kind].find(f"{_XS}restriction")
        if restriction is not None:
            for limit in restriction:
                value = limit.get("value", "")
                short = limit.tag == f"{_XS}minLength" and len(text) < int(value)
                if short or (limit.tag == f"{_XS}pattern" and not re.fullmatch(value, text)):
                    yield f"{where} is {text!r}"
            kind = restriction.get("base", "")
        try:
            _READ[kind](text)
        except (ValueError, ArithmeticError):
            yield f"{where} is {text!r}, no {kind}"
