"""Detected victims: exact signs, thresholds, files, what is refused, and attacks on both."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import besiege
from besiege.core.answer import Aim
from besiege.core.dice import Dice
from besiege.core.errors import BesiegeError, DataError, InputError, UnknownNameError
from besiege.core.oracle import Oracle
from besiege.core.threat import Threat
from besiege.core.victim import Victim
from besiege.data.contents import contents
from besiege.defenses import (
    BitDepth,
    Calibration,
    Defended,
    Detected,
    Median,
    Pooled,
    ResizePad,
    Squeezing,
    load,
)
from besiege.defenses.calibrating import calibrate, threshold_at
from besiege.defenses.contents import digest_of
from besiege.defenses.detected import forced, rejection
from besiege.defenses.detecting import Detector, Examined, Material, Numbers
from besiege.defenses.detector_files import as_ranges, from_ranges
from besiege.defenses.lid import LID
from besiege.models import ARCHITECTURES, Classifier, Ensemble
from besiege.testing import VICTIM_LAWS, conform_victim
from besiege.testing.victims import module_of
from besiege.training import fit_detector
from besiege.training.detectors import fooled

MODEL = "zoo:digits-natural"
TEST = besiege.data.load("digits", "test")
IMAGES = TEST.images[:11]


@dataclass(frozen=True)
class Brightness(Detector):
    """The score is the mean pixel value."""

    def examine(self, victim: Victim, x: Tensor, dice: Dice, numbers: Numbers) -> Examined:
        return Examined(victim(x, dice), x.mean((1, 2, 3)))


@pytest.fixture(scope="module")
def squeezing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detectors") / "squeezing.safetensors"
    return fit_detector("squeezing", MODEL, "digits", out)


def neighbours(value: float) -> list[float]:
    """A float32 number with those next to it, and some farther away."""
    own = torch.tensor(value)
    ends = [torch.nextafter(own, torch.tensor(end)) for end in (torch.inf, -torch.inf)]
    return [value, *map(float, ends), value + 1, value - 1, value + 1e-3, 1e30, -1e30]


@pytest.mark.parametrize("spread", [1e-45, 1e-30, 1e-3, 1.0, 1e6, 1e38])
@pytest.mark.parametrize("threshold", [0.0, 1.1402, -7.5, 1e-40, 3e7])
def test_the_last_column_is_the_largest_exactly_above_the_threshold(
    threshold: float, spread: float
) -> None:
    scores = torch.tensor(neighbours(float(torch.tensor(threshold))))
    for top in (0.0, 1e-30, 3.7, -12.0, 1e6, 3e38, -3e38):
        logits = torch.tensor([[top, -math.inf, top]]).expand(len(scores), -1)
        for gain in (1e-6, 1.0, 50.0):
            known = [torch.tensor(v, dtype=torch.float32) for v in (threshold, spread, gain)]
            last = rejection(logits, scores, *known)
            assert torch.isfinite(last).all()
            assert torch.equal(last > logits.amax(1), scores > known[0])
            # Equal to the top logit would be a tie, which folding gives to the smaller class.
            assert not bool((last == logits.amax(1)).any())


def test_far_from_rounding_the_last_column_is_its_formula_and_so_is_its_gradient() -> None:
    logits = torch.tensor([[1.0, 3.0], [2.0, 0.5]], requires_grad=True)
    score = torch.tensor([0.7, 0.1], requires_grad=True)
    numbers = [torch.tensor(v) for v in (0.4, 0.5, 2.0)]
    last = rejection(logits, score, *numbers)
    assert torch.allclose(last, torch.tensor([3.0 + 2 * 0.3 / 0.5, 2.0 - 2 * 0.3 / 0.5]))
    slopes = torch.autograd.grad(last.sum(), (logits, score))
    assert torch.equal(slopes[0], torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert torch.allclose(slopes[1], torch.full((2,), 4.0))


def test_a_score_that_is_no_number_is_not_accepted_silently() -> None:
    one = torch.tensor(1.0)
    assert rejection(torch.zeros(1, 2), torch.tensor([torch.nan]), one, one, one).isnan().all()


@pytest.mark.parametrize(
    ("scores", "fpr", "wanted"),
    [
        (list(range(1, 101)), 0.05, 95),
        (list(range(1, 101)), 0.07, 93),  # 100 * (1 - 0.07) is 92.99999999999999
        (list(range(1, 101)), 0.29, 71),  # 100 * 0.29 is 28.999999999999996
        (list(range(1, 21)), 0.05, 19),  # n * fpr = 1: one image is above
        ([5, 1, 4, 2, 3], 0.2, 4),
        ([1, 1, 1, 1, 2, 2, 2, 2, 2, 2], 0.5, 2),  # ties: none is above, fewer than nominal
        ([0.0] * 10, 0.1, 0.0),
        ([2, 1], 0.5, 1),
        (list(range(1, 31)), 0.05, 29),  # ceil(28.5) = 29
    ],
)
def test_thresholds_by_false_positive_rate(scores: list[float], fpr: float, wanted: float) -> None:
    s = torch.tensor(scores, dtype=torch.float32)
    threshold = threshold_at(s, fpr)
    assert threshold == wanted
    assert float((s > threshold).float().mean()) <= fpr + 1e-6
    exact = sorted(scores)[math.ceil(round(len(scores) * (1 - fpr), 9)) - 1]
    assert threshold == exact


@pytest.mark.parametrize("fpr", [0.0, 1.0, -0.1, 2.0, math.nan, True, "0.05"])
def test_rates_outside_0_and_1_are_refused(fpr: object) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        threshold_at(torch.arange(100.0), fpr)  # type: ignore[arg-type]  # that is the point


def test_a_rate_below_one_image_is_refused_and_not_rounded_to_all() -> None:
    # The public code of MagNet takes marks[-int(n fpr)], which is marks[0] here: all are rejected.
    with pytest.raises(InputError, match="give 1000 images or more"):
        threshold_at(torch.arange(999.0), 0.001)
    assert threshold_at(torch.arange(1000.0), 0.001) == 998


def test_scores_that_are_not_finite_give_no_threshold() -> None:
    with pytest.raises(InputError, match="1 of 100 clean images"):
        threshold_at(torch.tensor([math.inf, *range(99)]), 0.05)
    with pytest.raises(InputError, match="threshold is nan"):
        Calibration(math.nan)
    with pytest.raises(InputError, match="spread 0"):
        Calibration(0.0, 0.0)


def test_detected_declares_what_it_is() -> None:
    inner = Defended(MODEL, BitDepth(4))
    victim = Detected(inner, Squeezing((BitDepth(1), Median(2))), Calibration(0.5))
    assert victim.rejects and victim.classes == 10 and victim.passes == 3
    assert victim.bare.digest() == load(MODEL).digest()
    assert victim.name == f"{MODEL}+bits+squeezing(bits(depth=1), median)"
    assert victim(IMAGES).shape == (11, 11)
    score, logits = victim.score(IMAGES), inner(IMAGES)
    assert torch.equal(victim(IMAGES)[:, :-1], logits)
    assert torch.equal(victim(IMAGES)[:, -1] > logits.amax(1), score > 0.5)


def test_forced_acceptance_is_the_bare_model_and_forced_rejection_leaves_no_success() -> None:
    victim = Detected(MODEL, Squeezing((BitDepth(1),)), Calibration(0.5))
    x, y = TEST.images[:12], TEST.labels[:12]
    for attack in ("pgd", "apgdt(steps=5)", "square(steps=60)", "deepfool"):
        threat = "linf:0.1" if attack != "deepfool" else "l2"
        bare = besiege.attack(attack, load(MODEL), x, y, threat=threat)
        open_door = besiege.attack(attack, forced(victim, math.inf), x, y, threat=threat)
        assert torch.equal(bare.images, open_door.images)
        assert torch.equal(bare.success, open_door.success)
        if attack != "deepfool":
            shut = besiege.attack(attack, forced(victim, -math.inf), x, y, threat=threat)
            assert not bool(shut.success.any())


def test_gradients_of_the_last_column_reach_score_and_logits() -> None:
    victim = Detected(MODEL, Brightness(), Calibration(0.3, 0.1, 2.0))

    def last(logits: Tensor, aim: Aim) -> Tensor:
        return logits[:, -1]

    last.unfolded = True  # type: ignore[attr-defined]  # as a loss declares it
    with victim.held():
        slope = Oracle(victim).gradient(IMAGES, last, Aim(TEST.labels[:11]))[0]
        x = IMAGES.clone().requires_grad_()
        (top,) = torch.autograd.grad(load(MODEL)(x).amax(1).sum(), x)
    assert torch.allclose(slope, top + 20.0 / 64, atol=1e-5)


def test_the_twin_is_the_detector_before_the_twin_of_the_model() -> None:
    net = Classifier(module_of((1, 8, 8), 10), classes=10)
    victim = Detected(net, Squeezing((BitDepth(3),)), Calibration(0.5, 0.2, 3.0))
    samples = besiege.core.samples.Samples.of(IMAGES, TEST.labels[:11])
    alone = net.twin(samples, Threat.parse("linf:0.1"))
    twin = victim.twin(samples, Threat.parse("linf:0.1"))
    assert alone is not None and isinstance(twin, Detected)
    assert twin.rejects and type(twin.victim) is type(alone)
    with victim.held():
        assert torch.allclose(twin(IMAGES), victim(IMAGES), atol=1e-3)
    assert (
        Detected(load(MODEL), Brightness(), Calibration(0.5)).twin(
            samples, Threat.parse("linf:0.1")
        )
        is None
    ), "a model without a twin has none behind a detector either"


def test_every_number_is_part_of_the_digest() -> None:
    kinds = [
        Detected(MODEL, Brightness(), Calibration(0.5)),
        Detected(MODEL, Brightness(), Calibration(0.6)),
        Detected(MODEL, Brightness(), Calibration(0.5, 2.0)),
        Detected(MODEL, Brightness(), Calibration(0.5, gain=2.0)),
        Detected(MODEL, Squeezing((BitDepth(1),)), Calibration(0.5)),
        Detected(MODEL, Squeezing((BitDepth(2),)), Calibration(0.5)),
        Detected("zoo:digits-pgd-at", Brightness(), Calibration(0.5)),
        Detected(Defended(MODEL, BitDepth(3)), Brightness(), Calibration(0.5)),
    ]
    assert len({victim.digest() for victim in kinds}) == len(kinds)
    assert kinds[0].digest() == Detected(MODEL, Brightness(), Calibration(0.5)).digest()


@pytest.mark.parametrize("attack", ["pgd(loss=margin)", "apgd(steps=20)", "cw(steps=30)"])
def test_every_attack_attacks_both_together(attack: str) -> None:
    victim = Detected(MODEL, Brightness(), Calibration(float(TEST.images.mean()) + 0.05, 0.05))
    x, y = TEST.images[:16], TEST.labels[:16]
    found = besiege.attack(attack, victim, x, y, threat="l2:2" if "cw" in attack else "linf:0.15")
    assert bool(found.success.any())
    with victim.held():
        answers = victim(found.images[found.success])
    assert bool((answers.argmax(1) < 10).all()), "a success is accepted"
    assert bool((answers.argmax(1) != y[found.success]).all())


def test_a_detector_of_ones_own_conforms() -> None:
    victim = Detected(MODEL, Brightness(), Calibration(0.3, 0.1, 2.0))
    assert conform_victim(victim, IMAGES) == tuple(VICTIM_LAWS)


def test_calibration_sets_threshold_spread_and_gain() -> None:
    victim = load(MODEL)
    made = calibrate(victim, Brightness(), {}, TEST.images, 0.05)
    score = TEST.images.mean((1, 2, 3))
    assert made.threshold == threshold_at(score, 0.05)
    assert made.spread == pytest.approx(float(score.double().std(unbiased=False)), rel=1e-5)
    best = victim(TEST.images).detach().topk(2, dim=1).values
    assert made.gain == pytest.approx(float((best[:, 0] - best[:, 1]).median()), rel=1e-4)


def test_scores_that_are_all_alike_still_calibrate() -> None:
    same = torch.full((40, 1, 8, 8), 0.5)
    made = calibrate(load(MODEL), Brightness(), {}, same, 0.05)
    assert made.threshold == 0.5 and made.spread > 0


class Drawing(Victim):
    stochastic = True
    classes = 10

    def __call__(self, x: Tensor, dice: Dice | None = None) -> Tensor:
        return torch.zeros(len(x), 10)


def test_what_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(InputError, match="stochastic"):
        Detected(Drawing(), Brightness(), Calibration(0.5))
    with pytest.raises(InputError, match="rejects images already"):
        Detected(Detected(MODEL, Brightness(), Calibration(0.5)), Brightness(), Calibration(0.5))
    labels = besiege.function_model(lambda x: x.sum((1, 2, 3)).astype(int) % 2, 2, "decision")
    with pytest.raises(InputError, match="labels only"):
        Detected(labels, Brightness(), Calibration(0.5))
    with pytest.raises(InputError, match="derives from"):
        Detected(MODEL, nn.Identity(), Calibration(0.5))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="suited"):
        Detected(MODEL, Squeezing(), Calibration(0.5))


# Files.


def test_a_file_reads_back_exactly(squeezing: Path) -> None:
    text = f"{MODEL}+detector('{squeezing}')"
    victim = load(text)
    assert isinstance(victim, Detected) and victim.name == text
    assert load(victim.name).digest() == victim.digest()
    card = json.loads(squeezing.with_suffix(".json").read_text())
    assert victim.calibration.threshold == card["threshold"]
    assert torch.tensor(victim.calibration.gain) == torch.tensor(card["gain"])
    assert card["kind"] == "squeezing(bits(depth=1), median)" and card["fpr"] == 0.05
    assert card["calibration"]["count"] == 198 and card["calibration"]["split"] == "test"
    assert victim.withheld is not None and len(victim.withheld.ids) == 198
    assert victim.withheld.ids == tuple(TEST.ids[-198:].tolist()), "the last of the split"
    assert conform_victim(text, IMAGES) == tuple(VICTIM_LAWS)


def test_a_victim_in_front_of_it_passes_on_what_is_withheld(squeezing: Path) -> None:
    victim = load(f"{MODEL}+detector('{squeezing}')")
    assert Defended(victim, BitDepth(3)).withheld == victim.withheld


def test_a_detector_is_of_one_model(squeezing: Path) -> None:
    for other in ("zoo:digits-pgd-at", f"{MODEL}+bits(depth=2)"):
        with pytest.raises(InputError, match=r"calibrated for 'zoo:digits-natural'.*fit one"):
            load(f"{other}+detector('{squeezing}')")
    few = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), classes=3)
    from besiege.defenses.detector_files import DetectorFile

    with pytest.raises(InputError, match="10 classes, and 'Sequential' has 3"):
        DetectorFile(str(squeezing))(few)


def test_the_models_digest_is_that_of_its_weights_and_preprocessing() -> None:
    net = module_of((1, 8, 8), 10)
    plain = digest_of(Classifier(net))
    assert digest_of(Classifier(net, name="another")) == plain
    assert digest_of(Classifier(net, mean=0.5, std=0.5)) != plain
    assert digest_of(Classifier(module_of((1, 8, 8), 10, 1))) != plain
    assert digest_of(Defended(Classifier(net), BitDepth(3))) != plain
    assert digest_of(Defended(Classifier(net), BitDepth(3))) != digest_of(
        Defended(Classifier(net), BitDepth(2))
    )


def test_the_models_digest_is_that_of_its_structure() -> None:
    alike = ARCHITECTURES["resnet20"](denoise="mean")
    other = ARCHITECTURES["resnet20"](denoise="median")
    other.load_state_dict(alike.state_dict())
    assert digest_of(alike) == digest_of(copy.deepcopy(alike)) == digest_of(alike.train())
    assert digest_of(alike) != digest_of(other)
    members = [Classifier(module_of((1, 8, 8), 10, seed)) for seed in (0, 1)]
    kinds = [
        Ensemble(members, "logits"),
        Ensemble(members, "probabilities"),
        Ensemble(members, "probabilities", weights=[9, 1]),
    ]
    assert len({digest_of(one) for one in kinds}) == 3


_NETWORK = """
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return {factor} * x


def make():
    return Net()
"""


def test_the_digest_of_a_detector_covers_the_code_of_its_layers(tmp_path: Path) -> None:
    found = set()
    for factor in (1.0, 0.3):
        (tmp_path / "net.py").write_text(_NETWORK.format(factor=factor))
        layer = load(f"{MODEL}+reform('{tmp_path / 'net.py'}:make')")
        assert isinstance(layer, Defended)
        found.add(Detected(MODEL, Squeezing(layer.layers), Calibration(0.5, 0.2)).digest())
    assert len(found) == 2


def test_damaged_files_are_refused(squeezing: Path, tmp_path: Path) -> None:
    def copied(change: dict[str, object], content: bytes | None = None) -> str:
        card = json.loads(squeezing.with_suffix(".json").read_text()) | change
        (tmp_path / "d.json").write_text(json.dumps(card))
        (tmp_path / "d.safetensors").write_bytes(content or squeezing.read_bytes())
        return f"{MODEL}+detector('{tmp_path / 'd.safetensors'}')"

    with pytest.raises(DataError, match="do not belong together"):
        load(copied({"sha256": "0" * 64}))
    with pytest.raises(DataError, match="another version of squeezing"):
        load(copied({"revision": 9}))
    with pytest.raises(DataError, match="no detector"):
        load(copied({"kind": "bits"}))
    with pytest.raises(DataError, match="cannot be read"):
        load(copied({"kind": "skweezing"}))
    text = copied({})
    (tmp_path / "d.json").write_text("{}")
    with pytest.raises(DataError, match="lacks kind"):
        load(text)
    (tmp_path / "d.json").unlink()
    with pytest.raises(DataError, match=r"d\.json does not exist"):
        load(text)
    with pytest.raises(DataError, match="`besiege detector KIND"):
        load(f"{MODEL}+detector('{tmp_path}/none.safetensors')")
    with pytest.raises(InputError, match="is no detector"):
        load(f"{MODEL}+detector('{tmp_path}/none.bin')")
    with pytest.raises(UnknownNameError, match="the zoo has no detector 'nothing'"):
        load(f"{MODEL}+detector('zoo:nothing')")
    with pytest.raises(BesiegeError):
        load(f"{MODEL}+detector")


def test_a_detector_is_written_last(squeezing: Path) -> None:
    written = f"detector('{squeezing}')"
    with pytest.raises(InputError, match="'detector' is written last"):
        load(f"{MODEL}+{written}+bits(depth=3)")
    with pytest.raises(InputError, match="threshold would hold for some draws only"):
        load(f"{MODEL}+resize_pad+pooled(3)+{written}")
    with pytest.raises(InputError, match="rejects images, and a rejection cannot be averaged"):
        load(f"ensemble({MODEL}+{written}, zoo:digits-pgd-at)")


def test_a_rejection_is_averaged_nowhere(squeezing: Path) -> None:
    guarded = load(f"{MODEL}+detector('{squeezing}')")
    with pytest.raises(InputError, match="rejects images, and a rejection cannot be averaged"):
        Ensemble([guarded, "zoo:digits-pgd-at"])
    with pytest.raises(InputError, match="rejects images, and a rejection cannot be averaged"):
        Pooled(Defended(guarded, ResizePad(0.9)), draws=3)


# Fitting.


def test_calibration_images_are_not_the_models_training_images(tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    with pytest.raises(InputError, match=r"digits \(train\).*trained on"):
        fit_detector("squeezing", MODEL, "digits", out, split="train")
    assert not out.exists()
    fit_detector("squeezing", MODEL, "digits", out, split="train", force=True)
    assert json.loads(out.with_suffix(".json").read_text())["calibration"]["split"] == "train"


def test_wrong_input_is_refused_before_any_work(tmp_path: Path, squeezing: Path) -> None:
    out = tmp_path / "d.safetensors"
    for given, problem in (
        ({"fpr": 0.0}, "between 0 and 1"),
        ({"fpr": 0.001, "count": 100}, "less than one of 100"),
        ({"count": 0}, "count is 0"),
        ({"count": 398}, "398 calibration images were requested"),
        ({"fit_on": 3}, "fit_on is 3"),
    ):
        with pytest.raises(InputError, match=problem):
            fit_detector("squeezing", MODEL, "digits", out, **given)
    with pytest.raises(InputError, match="ends differently"):
        fit_detector("squeezing", MODEL, "digits", tmp_path / "d.bin")
    with pytest.raises(InputError, match="has a detector already"):
        fit_detector("lid", f"{MODEL}+detector('{squeezing}')", "digits", out)
    with pytest.raises(InputError, match="no detector"):
        fit_detector("bits(depth=2)", MODEL, "digits", out)
    with pytest.raises(UnknownNameError, match="squeezing"):
        fit_detector("squeesing", MODEL, "digits", out)
    assert not out.exists()


def test_data_without_splits_are_calibrated_on_their_last_images(tmp_path: Path) -> None:
    data = besiege.data.load((TEST.images, TEST.labels))
    out = fit_detector("magnet(blur)", MODEL, data, tmp_path / "d.safetensors", fit_on=50)
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["calibration"]["ids"] == "199-396"
    assert load(f"{MODEL}+detector('{out}')").rejects


@pytest.mark.parametrize("chosen", ["last", "random"])
def test_no_image_is_fitted_on_and_calibrated_on(
    chosen: Literal["last", "random"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Material] = []

    def noting(self: LID, victim: Victim, material: Material) -> dict[str, Tensor]:
        found.append(material)
        return fit(self, victim, material)

    fit = LID.fit
    monkeypatch.setattr(LID, "fit", noting)
    data = besiege.data.load((TEST.images, TEST.labels))  # without splits: both are of one pool
    out = tmp_path / "d.safetensors"
    fit_detector("lid", MODEL, data, out, count=100, chosen=chosen, fit_on=397)
    held = set(json.loads(out.with_suffix(".json").read_text())["calibration"]["contents"])
    (material,) = found
    used = torch.cat([material.clean, material.reference])
    labels = torch.zeros(len(used), dtype=torch.int64)
    others = set(contents(besiege.data.load((used, labels))))
    assert len(held) == 100 and len(others) == len(used) == 297
    assert not held & others


def test_only_images_that_are_right_when_clean_are_fitted_on() -> None:
    victim = load(MODEL)
    labels = TEST.labels.clone()
    labels[::2] = (labels[::2] + 1) % 10  # the model misclassifies these, clean and attacked
    made, kept = fooled(victim, TEST.images, labels, 0.15)
    with torch.no_grad():
        clean, attacked = (victim(x).argmax(1) for x in (TEST.images[kept], made))
    assert 10 <= len(kept) == len(made) < 300
    assert bool((clean == labels[kept]).all()), "right when clean"
    assert bool((attacked != labels[kept]).all()), "wrong when attacked"


def test_calibration_images_may_be_random(tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    fit_detector("squeezing", MODEL, "digits", out, count=100, chosen="random")
    withheld = load(f"{MODEL}+detector('{out}')").withheld
    assert withheld is not None and len(withheld.ids) == 100 < withheld.ids[-1] - withheld.ids[0]
    for seed in range(4):  # a draw of its own: by chance a quarter of them are in any other draw
        assert len({*withheld.ids} & {*TEST.subset(100, seed).ids.tolist()}) < 40
    again = tmp_path / "again.safetensors"
    fit_detector("squeezing", MODEL, "digits", again, count=100, chosen="random", seed=1)
    other = load(f"{MODEL}+detector('{again}')").withheld
    assert other is not None and len({*withheld.ids} & {*other.ids}) < 40
    with pytest.raises(InputError, match="chosen is 'first'"):
        fit_detector("squeezing", MODEL, "digits", out, chosen="first")  # type: ignore[arg-type]


def test_ids_as_ranges() -> None:
    ids = [0, 1, 2, 5, 7, 8, 2**62]
    assert as_ranges(ids) == f"0-2, 5, 7-8, {2**62}"
    assert from_ranges(as_ranges(ids)) == ids
    for wrong in ("", "a", "3-1", "1-99999999999", "1,,2"):
        with pytest.raises(DataError, match="no range of ids"):
            from_ranges(wrong)


def test_an_evaluation_leaves_out_what_it_was_calibrated_on(
    squeezing: Path, tmp_path: Path
) -> None:
    text = f"{MODEL}+detector('{squeezing}')"
    how: dict[str, Any] = {"threat": "linf:0.1", "attacks": "fgsm", "curve": "none"}
    how["examine"] = "none"
    for number, (data, count) in enumerate((("digits", 190), ((TEST.images, TEST.labels), None))):
        made = besiege.evaluate(
            text,
            data if isinstance(data, str) else besiege.data.load(data),
            **how,
            count=count,
            out=tmp_path / str(number),
        )
        rows = made.rows["sample"]
        known = set(load(text).withheld.ids)  # type: ignore[union-attr]
        if number == 1:  # under another name: the pixels of each image tell
            assert len(set(rows)) == 199 and not known & set(TEST.ids[rows].tolist())
            continue
        assert len(set(rows)) == 190 and not known & set(map(int, rows))
        assert any(one.id == "W51" for one in made.warnings)
