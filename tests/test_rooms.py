"""Arrows between rooms point only as the table of docs/architecture.md says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "besiege"

ROOMS: dict[str, set[str]] = {
    "core": set(),
    "attacks": {"core"},
    "models": {"core"},
    "defenses": {"core", "models", "data"},  # data only where a detector reads its references
    "data": {"core"},
    "bounds": {"core", "models", "defenses"},
    "training": {"core", "attacks", "models", "defenses", "data", "bounds"},
    "evaluation": {"core", "attacks", "models", "defenses", "bounds"},
    "metrics": {"core", "bounds"},  # bounds only for radii from votes
    # report only inside the methods that show a result
    "bench": {
        *("core", "attacks", "models", "defenses", "data", "bounds", "training", "evaluation"),
        *("metrics", "report"),
    },
    "report": {"core", "metrics", "bench", "studies"},
    "studies": {"core", "metrics", "bench"},
    "cli": {
        *("core", "attacks", "models", "defenses", "data", "training", "evaluation"),
        *("metrics", "bench", "report", "studies"),
    },
    "testing": {
        *("core", "attacks", "models", "defenses", "data", "training", "evaluation", "metrics"),
    },
}
OTHERS: dict[str, set[str]] = {
    "core": {"torch", "numpy"},
    "attacks": {"torch", "safetensors"},  # safetensors only where a perturbation is kept
    # onnxruntime only where an ONNX file is asked for, and the packages of models by their names
    "models": {
        *("torch", "numpy", "safetensors", "onnxruntime"),
        *("torchvision", "timm", "transformers", "robustbench"),
    },
    "defenses": {"torch"},
    "data": {"torch", "numpy", "PIL", "sklearn"},
    "bounds": {"torch", "numpy", "scipy"},  # the last two only for bounds of probabilities
    "training": {"torch", "safetensors"},
    # rich only inside the progress bar a caller asks for, scipy for exact smallest perturbations
    "evaluation": {"torch", "numpy", "scipy", "rich"},
    "metrics": {"numpy", "scipy", "pandas", "pyarrow"},  # the last two only for their own tables
    # ray only where a cluster is asked for
    "bench": {"torch", "numpy", "safetensors", "pydantic", "duckdb", "fsspec", "ray"},
    "report": {"numpy", "PIL", "jinja2", "markupsafe", "rich"},
    "studies": {"numpy"},
    "cli": {"cyclopts", "rich", "numpy", "torch", "PIL", "safetensors"},
    "testing": {"torch", "numpy", "pytest"},
}
WITHOUT_TORCH = {
    "core/threat.py",
    "core/registry.py",
    "core/attack_registry.py",
    "core/errors.py",
    "core/rules.py",
    "core/text.py",
    "core/fields.py",
    "core/files.py",
    "core/lazy.py",
    "models/catalogue.py",
    "models/public.py",
    "data/catalogue.py",
    "data/places.py",
    "training/catalogue.py",
}
# What is read without a model: they may use arrays and tables, never torch, not even indirectly.
READING = (
    *("besiege.bench.reading", "besiege.bench.results", "besiege.report"),
    *("besiege.bench.evaluations", "besiege.bench.opening", "besiege.bench.exports.images"),
    *("besiege.metrics.bands", "besiege.metrics.crossings", "besiege.metrics.ranks"),
    *(
        "besiege.metrics.strength",
        "besiege.studies.digits",
        "besiege.studies.realsafe.realsafe",
        "besiege.studies.su.su",
        "besiege.report.site.writing",
    ),
    *("besiege.bench.benchmark_files", "besiege.bench.releasing", "besiege.report.cells"),
    *("besiege.bench.exports.tables", "besiege.report.paper", "besiege.bench.board_reading"),
    *("besiege.report.site", "besiege.report.site.serving"),
)


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every module a file imports, and whether at its top level."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append((node.module, id(node) in top))
    return found


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    inside = path.relative_to(ROOT)
    if len(inside.parts) == 1:
        return
    room = inside.parts[0]
    assert room in ROOMS, f"{room} has no place in the table of rooms"
    for module, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "besiege":
            other = parts[1] if len(parts) > 1 else ""
            # The package itself is its version; its names come from the rooms, which are checked.
            assert other in {"", room} or other in ROOMS[room], f"{inside} imports {module}"
        elif parts[0] not in sys.stdlib_module_names:
            assert parts[0] in OTHERS[room], f"{inside} imports {module}"
            if str(inside) in WITHOUT_TORCH:
                pytest.fail(f"{inside} imports {module}, but it must work without it")


def test_no_room_is_without_a_name_and_no_module_shadows_an_export() -> None:
    for path in files():
        assert path.stem not in {"utils", "util", "common", "helpers", "misc"}
        if path.name != "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        exported: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                exported = set(ast.literal_eval(node.value))
        modules = {p.stem for p in path.parent.glob("*.py")} - {"__init__"}
        assert not exported & modules, f"{path}: {exported & modules}"


def test_the_package_and_its_lightest_parts_import_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import besiege, besiege.core.registry, besiege.core.text\n"
        "print(besiege.Threat.parse('linf:8/255'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "linf:8/255"


def test_reading_a_run_needs_no_torch() -> None:
    code = f"import sys; sys.modules['torch'] = None\nimport {', '.join(READING)}\n"
    code += "from besiege.report import write_page, table, bar, fragment"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_craft_judge_and_train_run_with_torch_numpy_and_safetensors_alone() -> None:
    blocked = ["scipy", "sklearn", "PIL", "rich", "cyclopts", "pydantic", "duckdb", "jinja2"]
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import torch, besiege\n"
        "from besiege.data.dataset import Data\n"
        "from besiege.models import ARCHITECTURES\n"
        "from besiege.training import fresh, natural, train\n"
        "from dataclasses import replace\n"
        "x = torch.rand(8, 1, 8, 8); y = torch.arange(8)\n"
        "net = fresh(ARCHITECTURES['digits_cnn'])\n"
        "data = Data('x', 'train', x, y, torch.arange(8), 10, tuple('0123456789'))\n"
        "train(net, data, replace(natural, epochs=1))\n"
        "print(len(besiege.attack('pgd', net, x, y, threat='linf:0.1', steps=2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"
