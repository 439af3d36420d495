"""An environment with the plugins that pyproject.toml declares, whatever is installed here."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path(place: Path) -> str:
    """A PYTHONPATH on which pytest finds the declared entry points, kept in a folder."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    about = place / "installed-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    points = [f"{name} = {module}" for name, module in declared["pytest11"].items()]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *points]))
    return os.pathsep.join([str(ROOT / "src"), str(place), os.environ.get("PYTHONPATH", "")])
