"""Which process a file belongs to, and whether that process still runs."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process, told apart from all others, also from a later one with the same number.

    Attributes
    ----------
    machine : str
        A digest of the host, its boot and its process namespace: where it is the same, process
        numbers mean the same.
    pid : int
        The number of the process.
    birth : str
        When it was started, as the system counts; ``0`` where the system does not tell.
    """

    machine: str
    pid: int
    birth: str

    def __str__(self) -> str:
        return f"{self.machine}.{self.pid}.{self.birth}"

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner that `str` wrote; None for any other text.

        Examples
        --------
        >>> Owner.parse("0f3a.12.77"), Owner.parse("something")
        (Owner(machine='0f3a', pid=12, birth='77'), None)
        """
        parts = text.split(".")
        if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit()):
            return None
        return cls(parts[0], int(parts[1]), parts[2])

    @property
    def gone(self) -> bool | None:
        """Whether the process has ended; None for one of another machine, which nobody sees."""
        if self.machine != _machine():
            return None
        return _birth(self.pid) != self.birth


def this() -> Owner:
    """The running process."""
    return _owner(os.getpid())  # a forked child is another one


@cache
def _owner(pid: int) -> Owner:
    return Owner(_machine(), pid, _birth(pid) or "0")


@cache
def _machine() -> str:
    """A digest of what decides which processes a number means."""
    about = [platform.node()]
    try:
        about.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        about.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # a system without them
        about.append(platform.system())
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def _birth(pid: int) -> str | None:
    """When a process was started, ``0`` where the system does not tell; None without one."""
    try:
        # The name of the program, in brackets, may contain anything.
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else others[18]  # a killed child waits for its parent
    except OSError:
        return None if Path("/proc/self/stat").exists() else _runs(pid)


def _runs(pid: int) -> str | None:
    if os.name != "posix":  # elsewhere the same call ends the process
        return "0"
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "0"
    except OSError:
        return None
    return "0"
