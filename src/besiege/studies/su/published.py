"""The lines that Su et al. (2018) printed: distortion = slope * ln(error) + intercept."""

from __future__ import annotations

from collections.abc import Mapping

from besiege.studies.su.reading import ESTIMATE, L2, LEAST, LINF, RANDOM

LINES: Mapping[tuple[str, str, bool], tuple[float, float]] = {
    (LINF, RANDOM, False): (2.9e-2, 6.2e-2),
    (L2, RANDOM, False): (1.1e-5, 2.1e-5),
    (ESTIMATE, RANDOM, False): (4.6e-6, 12.5e-6),
    (LINF, RANDOM, True): (4.3e-2, 8.5e-2),
    (L2, RANDOM, True): (9.0e-6, 17.3e-6),
    (LINF, LEAST, False): (4.3e-2, 8.5e-2),
    (L2, LEAST, False): (1.5e-5, 2.7e-5),
}
"""By measure, goal, and whether it is of the images that all models classify correctly. Two of the
linf lines are printed alike: one of them is probably a copy."""
