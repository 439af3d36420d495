from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

ROOMS = (
    "attacks",
    "bench",
    "bounds",
    "cli",
    "data",
    "defenses",
    "evaluation",
    "metrics",
    "models",
    "report",
    "studies",
    "testing",
    "training",
)
PACKAGES = [f"besiege.{room}" for room in ROOMS]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_nothing_heavy_by_itself(package: str) -> None:
    heavy = {"torch", "numpy", "scipy", "sklearn", "PIL", "rich"}
    code = f"import sys, {package}; print(*{heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_promised_name_is_there_and_no_module_hides_it(package: str) -> None:
    home = import_module(package)
    for name in home.__all__:
        assert getattr(home, name) is not None
        with pytest.raises(ModuleNotFoundError):
            import_module(f"{package}.{name}")
    with pytest.raises(AttributeError, match="no_such_name"):
        home.no_such_name


def test_victims_need_torch_numpy_and_safetensors_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('scipy', 'sklearn', 'rich', 'PIL'): sys.modules[name] = None\n"
        "import besiege.models as m\n"
        "for name in m.__all__: getattr(m, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
