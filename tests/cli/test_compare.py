"""``besiege compare`` as a shell calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Besiege

import besiege as package
from besiege.models.catalogue import ZOO

MODELS = ["zoo:digits-natural", "zoo:digits-pgd-at"]
ONE = "zoo:digits-natural"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of two models, and one of a model on more images."""
    place = tmp_path_factory.mktemp("runs")
    words: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": False}
    words["examine"] = "none"  # another process reads these runs
    package.evaluate(MODELS, "digits", out=place / "both", count=40, **words)
    package.evaluate(ONE, "digits", out=place / "more", count=50, **words)
    package.evaluate(ONE, "digits", out=place / "same", count=40, **words)
    return {path.name: path for path in place.iterdir()}


def test_the_models_of_one_run(besiege: Besiege, runs: dict[str, Path]) -> None:
    said = besiege("compare", str(runs["both"]))
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 80
    flat = " ".join(said.out.split())
    assert "zoo:digits-pgd-at withstands more than zoo:digits-natural: +" in flat
    assert "p < 0.001 on the same 40 images." in flat and "only" not in flat.partition("image")[0]
    assert "on the clean images model base CAV CRR CSR CCV COS 1 2 +" in flat
    plain = json.loads(besiege("compare", str(runs["both"]), "--json").out)
    utility = plain["groups"][0]["pairs"][0]["utility"]
    assert (utility["model"], utility["base"]) == ("zoo:digits-pgd-at", "zoo:digits-natural")
    assert f"1 2 {100 * utility['cav']['value']:+.1f} " in flat
    assert utility["cos"]["count"] <= 40 and f"{utility['cos']['value']:.3g}" in flat


def test_two_runs_of_one_name_are_told_apart(besiege: Besiege, runs: dict[str, Path]) -> None:
    said = besiege("compare", str(runs["both"]), str(runs["same"]), "--model", "digits-natural")
    assert said.code == 0
    assert "zoo:digits-natural (both) and zoo:digits-natural (same) withstand the same" in " ".join(
        said.out.split()
    )


def test_other_samples_are_an_error_that_offers_the_common_ones(
    besiege: Besiege, runs: dict[str, Path]
) -> None:
    given = ("compare", str(runs["both"]), str(runs["more"]))
    said = besiege(*given)
    assert said.code == 2 and said.out == ""
    assert "40 of the 397 images" in said.flat and "50 of the 397 images" in said.flat
    assert "They share 40 images: pass --common to compare them on these" in said.flat
    assert besiege(*given, "--common").code == 0


def test_the_ids_of_the_images(besiege: Besiege, runs: dict[str, Path]) -> None:
    said = besiege("compare", str(runs["both"]), "--images")
    found = json.loads(besiege("compare", str(runs["both"]), "--images", "--json").out)
    (pair,) = found["groups"][0]["pairs"]
    ids = pair["images"]["only_first"]
    assert len(ids) == pair["only_first"] > 5
    listed = ", ".join(map(str, ids))
    assert f"only zoo:digits-pgd-at ({len(ids)}): {listed}" in " ".join(said.out.split())
    plain = json.loads(besiege("compare", str(runs["both"]), "--json").out)
    assert "images" not in plain["groups"][0]["pairs"][0]
    assert plain["comparisons"] == 1 and pair["clear"] and pair["corrected_p"] == pair["p"]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ([], "RUN is missing, as in: besiege compare my-run"),
        (["nowhere"], "nowhere does not exist: name a folder"),
        (["."], ". is no run folder: name a folder"),
        (["MORE"], "is the only evaluation to compare in"),
        (["BOTH", "--model", "digits-naturel"], "did you mean 'zoo:digits-natural'"),
        (["BOTH", "MORE", "--model", "digits-pgd-at"], "has no evaluation of digits-pgd-at"),
        (["BOTH", "--comon"], "Did you mean"),
    ],
)
def test_wrong_input_is_answered(
    besiege: Besiege, runs: dict[str, Path], given: list[str], answer: str
) -> None:
    places = {"BOTH": str(runs["both"]), "MORE": str(runs["more"])}
    said = besiege("compare", *(places.get(word, word) for word in given))
    assert said.code == 2 and said.out == "" and "Traceback" not in said.err
    assert answer in said.flat


def test_a_run_that_cannot_be_read(besiege: Besiege, runs: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(runs["both"], tmp_path / "broken")
    (folder / "run.json").write_text("{}")
    said = besiege("compare", str(folder))
    assert said.code == 2 and "schema" in said.flat


def test_history(besiege: Besiege, tmp_path: Path) -> None:
    ask = ("evaluate", "digits_cnn:mine.safetensors", "--data", "digits", "--threat", "linf:0.15")
    for name in ("natural", "pgd-at"):
        shutil.copy(ZOO / f"digits-{name}.safetensors", tmp_path / "mine.safetensors")
        besiege(*ask, "--attacks", "fgsm", "--no-curve", "--count", "40", "--out", "run")
    without = besiege("compare", "run")
    assert without.code == 2 and "or pass --history for its 1 earlier result" in without.flat
    said = besiege("compare", "run", "--history")
    assert said.code == 0 and "withstands more than" in " ".join(said.out.split())


def test_missing_results_exit_with_3(besiege: Besiege, tmp_path: Path) -> None:
    # Half of the judged images of a model are gone.
    folder = tmp_path / "half"
    words: dict[str, Any] = {
        "threat": "linf:0.1",
        "attacks": "fgsm",
        "curve": False,
        "count": 40,
        "shard": 20,
    }
    one, _ = package.evaluate(MODELS, "digits", out=folder, **words)
    shutil.rmtree(folder / "records" / one._plan.stages()[1].parts[0][-1].key)
    said = besiege("compare", str(folder))
    assert said.code == 3
    assert "zoo:digits-natural is not complete: 20 of 40 images" in " ".join(said.out.split())


def test_figures_that_must_not_be_quoted_exit_with_4(besiege: Besiege, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)  # untrained\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    given = ("--data", "digits", "--threat", "linf:0.1", "--no-curve", "--count", "40")
    models = ("zoo:digits-natural", "wrong.py:make")
    besiege("evaluate", *models, *given, "--attacks", "fgsm", "--out", "run")
    said = besiege("compare", "run")
    assert said.code == 4, said.err
    flat = " ".join(said.out.split())
    assert "Do not quote the figures of wrong.py:make (W15)" in flat
    assert "(Not to be quoted.)" in flat


def test_it_needs_no_torch(runs: dict[str, Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from besiege.cli import main\n"
        f"assert main(['compare', {str(runs['both'])!r}]) == 0\n"
        f"__import__('shutil').rmtree({str(runs['both'] / 'figures')!r})\n"
        f"assert main(['compare', {str(runs['both'])!r}, '--images']) == 0\n"
        "assert 'scipy.stats' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
