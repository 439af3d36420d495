"""Mutants of randomised smoothing: the published slips, one each.

Each entry is what is wrong, the file, the text, what is put in its place, and a test that fails.
"""

from __future__ import annotations

SLIPS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "smoothing: a two-sided alpha for a one-sided bound",
        "bounds/votes.py",
        "n - some + 1, alpha)",
        "n - some + 1, alpha / 2)",
        "tests/metrics/test_certificates.py::test_the_bound_is_one_sided",
    ),
    (
        "smoothing: a one-sided alpha for the two-sided test",
        "defenses/smoothing.py",
        "2 * limit.denominator",
        "limit.denominator",
        "tests/defenses/test_smoothing.py::test_of_a_hundred_votes_67_pass_and_66_abstain",
    ),
    (
        "smoothing: the votes that chose the class estimate it",
        "defenses/counting.py",
        'dice.of("estimate")',
        'dice.of("choose")',
        "tests/bench/test_certifying.py::test_votes_that_chose_the_class_do_not_estimate_it",
    ),
    (
        "smoothing: noisy images are clamped to the box",
        "defenses/noise.py",
        "return x + self.sigma * (box[1] - box[0]) * dice.normal(tuple(x.shape[1:]))",
        "return (x + self.sigma * (box[1] - box[0]) * dice.normal(tuple(x.shape[1:]))).clamp(*box)",
        "tests/defenses/test_smoothing.py::test_noise_is_added_before_normalisation_and_not_clamped",
    ),
    (
        "smoothing: noise in units of another box",
        "defenses/noise.py",
        "self.sigma * (box[1] - box[0]) * dice",
        "self.sigma * dice",
        "tests/defenses/test_smoothing.py::test_noise_is_added_before_normalisation_and_not_clamped",
    ),
    (
        "smoothing: an abstention may be right",
        "metrics/certificates.py",
        "given = np.where(reach > 0, classes, ABSTAINS)",
        "given = classes",
        "tests/metrics/test_certificates.py::test_abstentions_and_wrong_answers_are_wrong_at_every_radius",
    ),
    (
        "smoothing: abstentions are left out",
        "metrics/certificates.py",
        "left / len(reach), low, high, len(reach)",
        "left / max((reach > 0).sum(), 1), low, high, len(reach)",
        "tests/metrics/test_certificates.py::test_abstentions_and_wrong_answers_are_wrong_at_every_radius",
    ),
    (
        "smoothing: the radius of a wrong class counts",
        "metrics/certificates.py",
        "held = np.sort(reach[good])",
        "held = np.sort(reach)",
        "tests/metrics/test_certificates.py::test_abstentions_and_wrong_answers_are_wrong_at_every_radius",
    ),
    (
        "smoothing: the network votes in training mode",
        "defenses/counting.py",
        "with one.held(), full_precision(one.device):",
        "with full_precision(one.device):",
        "tests/bench/test_certifying.py::test_the_network_votes_in_evaluation_mode_and_in_full_precision",
    ),
    (
        "smoothing: the network votes in the caller's precision",
        "defenses/counting.py",
        "with one.held(), full_precision(one.device):",
        "with one.held():",
        "tests/bench/test_certifying.py::test_the_network_votes_in_evaluation_mode_and_in_full_precision",
    ),
    (
        "smoothing: the radius of another sigma than that of the votes",
        "defenses/counting.py",
        "return Voter(found, (first.sigma * width,))",
        "return Voter(found, (0.25 * width,))",
        "tests/bench/test_certifying.py::test_a_constant_classifier_has_the_largest_radius",
    ),
    (
        "smoothing: votes that all agree certify everything",
        "bounds/votes.py",
        "return np.where(counts > 0, betaincinv(some, n - some + 1, alpha), 0.0)",
        "return np.where(counts == n, 1.0, betaincinv(some, n - some + 1, alpha))",
        "tests/metrics/test_certificates.py::test_bounds_and_radii_are_the_published_ones",
    ),
    (
        "randmix: one noisy copy in place of two",
        "defenses/counting.py",
        "(first.sigma * width,) * 2",
        "(first.sigma * width,)",
        "tests/bench/test_certifying.py::test_the_unit_of_a_vote_decides_the_radius",
    ),
    (
        "randmix: a vote of ten draws counts as one draw",
        "defenses/counting.py",
        "one.deviations * found.draws",
        "one.deviations",
        "tests/bench/test_certifying.py::test_the_unit_of_a_vote_decides_the_radius",
    ),
    (
        "smoothing: shares decide an abstention, not counts",
        "defenses/smoothing.py",
        "torch.where(first < least, usual.clamp_min(1e-6), usual.clamp_max(0.0))",
        "usual",
        "tests/defenses/test_smoothing.py::test_of_a_hundred_votes_67_pass_and_66_abstain",
    ),
    (
        "smoothing: noise by the place in the batch",
        "defenses/counting.py",
        "Dice(dice.key[row]).counted(draw)",
        "Dice(dice.key[row]).counted(pairs - start)",
        "tests/bench/test_certifying.py::test_votes_do_not_depend_on_batch_or_neighbours",
    ),
    (
        "smoothadv: new noise in every step",
        "training/inner.py",
        'drawn = dice.of("noise")  #',
        'drawn = dice.of("noise", step)  #',
        "tests/training/test_smoothadv.py::test_the_noise_of_an_image_is_the_same_in_every_step_and_in_the_loss",
    ),
    (
        "smoothadv: other noise in the loss",
        "training/epochs.py",
        'batch.dice.of("epoch", batch.epoch)',
        'batch.dice.of("other", batch.epoch)',
        "tests/training/test_smoothadv.py::test_the_noise_of_an_image_is_the_same_in_every_step_and_in_the_loss",
    ),
    (
        "smoothadv: the mean of logits in place of probabilities",
        "training/epochs.py",
        'noises, "probabilities")',
        'noises, "logits")',
        "tests/training/test_smoothadv.py::test_images_maximise_the_log_of_the_mean_probability",
    ),
)
