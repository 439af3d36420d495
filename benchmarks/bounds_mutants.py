"""Mutants of bounds and of certified training: the published slips, one each.

Each entry is what is wrong, the file, the text, what is put in its place, and a test that fails.
"""

from __future__ import annotations

_BOUNDS = "tests/bounds/test_bounding.py"
_TRAINED = "tests/training/test_bounded.py"
SLIPS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "bounds: the chord's intercept has the wrong sign",
        "bounds/relaxing.py",
        "torch.where(unstable, (slope - 1) * low * high / width, 0.0)",
        "torch.where(unstable, (1 - slope) * low * high / width, 0.0)",
        f"{_BOUNDS}::test_no_sampled_and_no_attacked_image_is_below_a_bound",
    ),
    (
        "bounds: positive and negative weights take the other line",
        "bounds/relaxing.py",
        "negative = functions.clamp_max(0)\n    constant",
        "negative = functions.clamp_min(0)\n    constant",
        f"{_BOUNDS}::test_no_sampled_and_no_attacked_image_is_below_a_bound",
    ),
    (
        "bounds: intervals without absolute weights",
        "bounds/operations.py",
        "return functional.linear(radii[0], self.weight.abs())",
        "return functional.linear(radii[0], self.weight)",
        f"{_BOUNDS}::test_every_hidden_value_is_within_its_bounds",
    ),
    (
        "bounds: the ball is not cut by the box",
        "bounds/region.py",
        "(images + way * wide).clamp(*box)",
        "(images + way * wide)",
        f"{_BOUNDS}::test_the_box_limits_what_must_be_bounded",
    ),
    (
        "bounds: the norm of the ball in place of its dual",
        "bounds/region.py",
        "flat.norm(dim=1) if self.norm is L2 else flat.abs().amax(1)",
        "flat.norm(dim=1) if self.norm is L2 else flat.abs().sum(1)",
        f"{_BOUNDS}::test_bounds_of_linear_networks_are_exact",
    ),
    (
        "training by bounds: bounds of one image's class for all",
        "training/bounded.py",
        "own = every == labels[:, None]",
        "own = every == labels[:1, None]",
        f"{_TRAINED}::test_worst_logits_keep_the_order_of_the_classes",
    ),
    (
        "training by bounds: upper bounds in place of lower ones",
        "training/bounded.py",
        "masked_scatter(~own, -margins)",
        "masked_scatter(~own, margins)",
        f"{_TRAINED}::test_the_loss_is_above_that_of_every_image_within_the_budget",
    ),
    (
        "training by bounds: the budget does not grow",
        "training/bounded.py",
        "return smooth(gone)",
        "return 1.0",
        f"{_TRAINED}::test_the_budget_is_zero_then_grows_smoothly_and_is_whole",
    ),
    (
        "training by bounds: exactly the budget of the test",
        "training/shipped.py",
        'beyond = 4 / 3 if setting.data == "mnist" else 1.1',
        "beyond = 1.0",
        f"{_TRAINED}::test_recipes_have_texts_that_read_back",
    ),
    (
        "training by bounds: copies of the weights",
        "bounds/known.py",
        "return Linear(weight, bias), [x]",
        "return Linear(weight.clone(), bias), [x]",
        f"{_TRAINED}::test_bounds_follow_the_weights_while_they_are_trained",
    ),
    (
        "training by bounds: lines at the end, intervals at first",
        "training/bounded.py",
        "return share * flat + (1 - share) * _by_lines",
        "return (1 - share) * flat + share * _by_lines",
        f"{_TRAINED}::test_crown_ibp_goes_over_from_lines_to_intervals",
    ),
    (
        "certify: a radius of votes counts at every budget",
        "metrics/proofs.py",
        'proved &= rows["radius"].astype(float) >= evidence.eps * WITHIN',
        "pass",
        "tests/bench/test_certified_votes.py::test_few_wrong_certificates_are_chance_and_many_are_a_bug",
    ),
    (
        "certify: an abstention of the deployed vote contradicts a certificate",
        "metrics/proofs.py",
        'misread &= ~evidence.clean["rejected"].astype(bool)',
        "pass",
        "tests/bench/test_certified_votes.py::test_an_abstention_of_the_deployed_vote_is_no_contradiction",
    ),
    (
        "certify: a radius around a wrong class counts",
        "evaluation/certificates/smoothing.py",
        "certain = right & (reach > 0)",
        "certain = reach > 0",
        "tests/bench/test_certified_votes.py::test_records_hold_the_radii_of_the_same_images",
    ),
    (
        "certify: the l2 radius stands beside an linf budget",
        "evaluation/certificates/smoothing.py",
        "if order.threat.norm is Linf:",
        "if False:",
        "tests/bench/test_certified_votes.py::test_votes_are_about_every_budget_of_a_norm",
    ),
    (
        "smoothed: the noise that a model was trained with stays",
        "defenses/smoothing.py",
        "    if victim.trained:\n        layers = ",
        "    if False:\n        layers = ",
        "tests/defenses/test_smoothing.py::test_noise_that_a_model_was_trained_with_is_replaced",
    ),
)
