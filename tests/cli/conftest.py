"""Commands called as a shell would, in this process: tokens in, exit code and texts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from besiege.cli import main


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """Standard error in one line, however it was wrapped."""
        return " ".join(self.err.split())


Besiege = Callable[..., Said]


@pytest.fixture
def besiege(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Besiege]:
    """Calls a command in an empty folder, on a terminal of no colours and 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("BESIEGE_DEBUG", "FORCE_COLOR", "BESIEGE_DATA"):
        monkeypatch.delenv(name, raising=False)

    def call(*tokens: str) -> Said:
        capsys.readouterr()
        code = main(tokens)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield call
    torch.set_num_threads(threads)
