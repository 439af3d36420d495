"""The laws go red: for each, an attack that breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.laws import spoiled
from tests.laws.spoiled import (
    ANY,
    Absolute,
    Blind,
    Boasting,
    Centred,
    Climb,
    Dividing,
    Gambling,
    Greedy,
    Guessing,
    Hairline,
    Hoarding,
    Idle,
    Lame,
    Meddling,
    MeddlingWithNumpy,
    MeddlingWithPython,
    Mingling,
    Mistyped,
    Overstepping,
    Peeping,
    Plain,
    Repainting,
    Scaled,
    Scoring,
    Silent,
    Smearing,
    Smuggling,
    SmugglingOutOfTheBox,
    Square,
    Straying,
    Stuck,
    TenClasses,
    Thawed,
    Timid,
)

from besiege.attacks.attack import Attack
from besiege.core.attack_registry import ATTACKS, register
from besiege.core.siege import Siege
from besiege.core.threat import ALL_NORMS, Goal, Linf, Norm
from besiege.testing import LAWS, Case, cases, conform
from besiege.testing.laws import (
    access,
    box_equivariant,
    feasible,
    firm,
    honest_accounts,
    judged,
    more_never_hurts,
    not_idle,
    repeatable,
    row_independent,
    scale_and_classes,
    sound_queries,
)
from besiege.testing.trial import Shelf, Trial
from besiege.testing.victims import digits

BREACHES = [
    (feasible, Smuggling, "the largest perturbation is 0.5 keeping"),
    (feasible, SmugglingOutOfTheBox, "images reach from -0.1 to"),
    (feasible, Repainting, "it changed the clean images in place"),
    (repeatable, Repainting, "it changed the clean images in place"),
    (judged, Boasting, "claimed successes fail"),
    (firm, Hairline, "successes do not hold"),
    (row_independent, Mingling, "differ in the batch and"),
    (row_independent, Gambling, "(draw from siege.dice, not from torch)"),
    (repeatable, Meddling, "changed the random state: torch"),
    (repeatable, MeddlingWithNumpy, "changed the random state: numpy"),
    (repeatable, MeddlingWithPython, "changed the random state: random"),
    (repeatable, Smearing, "changed the model: grad of"),
    (repeatable, Stuck, "another seed drew the same"),
    (honest_accounts, Peeping, "and the meter says"),
    (access, Greedy, "AccessError"),
    (not_idle, Idle, "and noise of that size"),
    (not_idle, Lame, "rows of the linear victim withstood"),
    (more_never_hurts, Hoarding, "were lost with"),
    (more_never_hurts, Timid, "robust accuracy is"),
    (scale_and_classes, Scaled, "with logits times"),
    (scale_and_classes, Blind, "W11 was not reported"),
    (scale_and_classes, Square, "RuntimeError"),
    (scale_and_classes, TenClasses, "IndexError"),
    (box_equivariant, Absolute, "differ between the boxes (0, 1) and (0, 256)"),
    (box_equivariant, Centred, "of request 2 differ between the boxes (0, 1) and (-1, 1)"),
    (sound_queries, Dividing, "it sent values from nan to nan"),
    (sound_queries, Straying, "and the box is (0.0, 1.0)"),
    (feasible, Straying, "it sent values from -0.1 to"),
]


def test_the_honest_attack_conforms() -> None:
    tried = conform(Climb())
    assert tried == list(cases(Climb())) == [Case(law, Linf, ANY) for law in LAWS]
    many = len(LAWS)
    assert str(tried) == repr(tried) == f"Climb obeys {many} laws in {many} cases"


def test_a_law_it_was_not_held_to_is_not_called_obeyed() -> None:
    tried = conform(Lame(), {"Lame": {"not_idle": "it limps"}})
    held = len(LAWS) - 1
    assert str(tried) == f"Lame obeys {held} laws in {held} cases, and is excepted from not_idle"


@pytest.mark.parametrize(
    ("law", "attack", "seen"), BREACHES, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_breach_is_seen_and_told(law: object, attack: type[Attack], seen: str) -> None:
    assert callable(law)
    with pytest.raises(AssertionError) as told:
        law(attack(), Linf, ANY)
    message = str(told.value)
    assert seen in message
    assert not re.search(r"np\.|\.0*[1-9]\d{6}", message), "numbers are printed to six digits"
    for fact in (f"law {law.number} ({law.name})", attack.__name__, "linf", "untargeted"):  # type: ignore[attr-defined]  # laws have a number and a name
        assert fact in message


def test_what_is_found_outside_the_ball_is_no_success() -> None:
    """An attack may ask anywhere, and many must; only points of the ball count."""
    judged(Overstepping(), Linf, ANY)


def test_conform_tells_all_breaches_at_once_in_a_line_per_law() -> None:
    class Resting(Idle):
        """Idle in every norm, and boasts of it."""

        norms = ALL_NORMS

        def run(self, siege: Siege) -> None:
            siege.record.success[:] = True

    with pytest.raises(
        AssertionError, match=rf"^Resting breaks the laws in \d+ of {4 * len(LAWS)} cases:"
    ) as told:
        conform(Resting())
    _, *lines = str(told.value).splitlines()
    laws = [line.partition(":")[0] for line in lines]
    assert "law 2 (judged)" in laws and len(laws) == len(set(laws)) <= len(LAWS)
    assert lines[laws.index("law 2 (judged)")].endswith(
        "claimed successes fail keeping first, leaving at success "
        "(4 cases: linf untargeted, l2 untargeted, l1 untargeted, ...)"
    )


def test_an_exception_of_the_attack_itself_is_raised_once_with_its_line() -> None:
    line = Mistyped.start.__code__.co_firstlineno + 1
    with pytest.raises(AssertionError) as told:
        conform(Mistyped())
    message = str(told.value)
    assert f"AttributeError at {spoiled.__file__}:{line}: " in message
    assert message.count("AttributeError") == 1
    assert "law" not in message.replace(spoiled.__file__, "")
    assert isinstance(told.value.__cause__, AttributeError)


def test_an_exception_a_law_forbids_is_a_breach_of_it() -> None:
    with pytest.raises(
        AssertionError, match=r"law 9 .*: RuntimeError at .*\(1 case: linf unt"
    ) as told:
        conform(Square())
    assert "law 1 " not in str(told.value)


def test_an_attack_cannot_change_what_others_are_tried_on() -> None:
    # No row leaves at the clean check, so that the siege holds the very images it was given.
    before = digits(16).images.clone()
    with pytest.raises(AssertionError, match="in place"):
        judged(Repainting(), Linf, Goal.RANDOM)
    assert torch.equal(digits(16).images, before)


def test_laws_share_copies_of_what_they_craft() -> None:
    trial = Trial("law", Climb(), Linf, ANY, shelf={})
    first = trial.usual(trial.size())
    kept = first.images.clone()
    first.images.zero_()
    first.success.fill_(False)
    again = trial.usual(trial.size(), "first", "success")  # what is kept by default
    assert trial.shelf is not None and len(trial.shelf) == 1
    assert torch.equal(again.images, kept) and bool(again.success.any())
    assert replace(trial, shelf=None).usual(trial.size()).images is not again.images
    trial.usual(trial.size(), "last", "end")
    trial.by(Climb(steps=2)).usual(trial.size())
    assert len(trial.shelf) == 3


def test_what_laws_share_hides_no_run_that_differs() -> None:
    class Wavering(Climb):
        """Begins elsewhere every time."""

        def start(self, siege: Siege) -> torch.Tensor:
            center = siege.ball.center
            return siege.ball.project(center + 0.1 * torch.rand_like(center))

    shelf: Shelf = {}
    feasible(Wavering(), Linf, ANY, shelf=shelf)
    assert shelf
    with pytest.raises(AssertionError, match="between two runs of one seed"):
        repeatable(Wavering(), Linf, ANY, shelf=shelf)


@pytest.mark.parametrize(
    ("attack", "lacking"),
    [(Plain, "not a frozen dataclass"), (Thawed, "not a frozen"), (Silent, "no docstring")],
)
def test_the_form_of_an_attack_comes_first(attack: type[Attack], lacking: str) -> None:
    for tried in (conform, Case("feasible", Linf, ANY).check):
        with pytest.raises(AssertionError, match=f"^{attack.__name__} .*{lacking}"):
            tried(attack())


def test_an_exception_with_a_reason_excuses_the_law_or_a_part_of_it() -> None:
    case = Case("not_idle", Linf, ANY)
    reasons = {"Lame": {"not_idle:linear": "it limps"}}
    assert case.check(Lame(), reasons) is None
    assert case.check(Idle(), {"Idle": {"not_idle": "it rests"}}) == "it rests"
    with pytest.raises(AssertionError):
        case.check(Lame())


@pytest.fixture
def guessing() -> Iterator[str]:
    register("guessing")(Guessing)
    yield "guessing"
    del ATTACKS._known["guessing"]


@pytest.mark.parametrize("attack", [Guessing(), Scoring()], ids=str)
@pytest.mark.parametrize(
    ("norm", "goal"),
    [
        pytest.param(norm, goal, marks=() if goal is ANY else pytest.mark.slow)
        for norm, goal in zip(Norm, (ANY, Goal.RANDOM, Goal.SECOND, Goal.GIVEN), strict=True)
    ],
    ids=str,
)
def test_attacks_of_less_access_obey_what_is_not_about_strength(
    attack: Attack, norm: Norm, goal: Goal
) -> None:
    for law in LAWS:
        if law != "not_idle":
            # Random search loses rows as the ball grows: noise is all it has.
            LAWS[law](attack, norm, goal, without=("eps",))


def test_the_refusal_lists_a_fitting_attack_once_there_is_one(
    guessing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    access("pgd", Linf, ANY)
    # The list is compared with the registry, so that a refusal that lists nobody is seen.
    monkeypatch.setattr("besiege.evaluation.checking.fitting", lambda *_: [])
    with pytest.raises(AssertionError, match=f"does not name .*{guessing}"):
        access("pgd", Linf, ANY)
