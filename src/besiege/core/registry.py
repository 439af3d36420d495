"""Registries of objects by name: loaded on first use, and open to other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from besiege.core.errors import BesiegeError, UnknownNameError, near

T = TypeVar("T")
V = TypeVar("V")


class Registry(Generic[T]):
    """Objects by name, added by decorators, by besiege's own modules and by entry points.

    Parameters
    ----------
    kind : str
        What the names stand for, as error messages call it.
    modules : tuple of str
        Modules whose import registers the built-in names; imported on the first look-up.
    group : str, optional
        Entry-point group through which other packages add names; loaded on the first look-up.
    """

    def __init__(self, kind: str, modules: tuple[str, ...] = (), group: str | None = None) -> None:
        self.kind = kind
        self._modules = modules
        self._group = group
        self._known: dict[str, T] = {}
        self._names: tuple[int, dict[int, str]] = 0, {}
        """How many names there were, and the names of things by their addresses."""
        self._broken: dict[str, str] = {}
        self._loaded = False

    def add(self, name: str, thing: T) -> None:
        """Give a name to a thing; the same name for another thing is refused."""
        old = self._known.get(name)
        # A file that is loaded twice defines its classes again: these count as the same.
        if old is not None and old is not thing and not _same(old, thing):
            raise BesiegeError(
                f"the {self.kind} '{name}' is registered already; choose another name"
            )
        self._known[name] = thing
        self._names = 0, {}

    def register(self, name: str) -> Callable[[V], V]:
        """Decorator form of `add`."""

        def keep(thing: V) -> V:
            self.add(name, thing)  # type: ignore[arg-type]  # V is a T, seen by the caller
            return thing

        return keep

    def get(self, name: str) -> T:
        """The thing of that name; the error for an unknown name lists the nearest ones."""
        self._load()
        if name not in self._known and name in self._broken:
            raise BesiegeError(
                f"the {self.kind} '{name}' of another package could not be loaded: "
                f"{self._broken[name]}"
            )
        if name not in self._known:
            raise UnknownNameError(f"no {self.kind} is called '{name}': {near(name, self._known)}")
        return self._known[name]

    def name_of(self, thing: object) -> str | None:
        """The first name, in alphabetical order, of a thing; None for another one."""
        self._load()
        if self._names[0] != len(self._known):
            names = {id(one): name for name, one in sorted(self._known.items(), reverse=True)}
            self._names = len(self._known), names
        return self._names[1].get(id(thing))

    def names(self) -> list[str]:
        """All names in alphabetical order."""
        self._load()
        return sorted(self._known)

    def items(self) -> Iterator[tuple[str, T]]:
        """Names and things in alphabetical order."""
        self._load()
        yield from sorted(self._known.items())

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._known

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # set first: an imported module may look names up
        try:
            for module in self._modules:
                import_module(module)
        except BaseException:
            self._loaded = False  # or the next look-up would call every name unknown
            raise
        for point in entry_points(group=self._group) if self._group is not None else ():
            try:
                self.add(point.name, point.load())
            except Exception as problem:  # another package's error must not hide our own names
                self._broken[point.name] = f"{type(problem).__name__}: {problem}"


def _same(old: object, new: object) -> bool:
    names = ("__qualname__", "__module__")
    first, second = ([getattr(thing, name, None) for name in names] for thing in (old, new))
    return None not in first and first == second
