"""The study ``realsafe``."""

from __future__ import annotations

from pathlib import Path

from besiege.studies.choosing import Size
from besiege.studies.realsafe.figures import figures
from besiege.studies.realsafe.findings import CLAIMS
from besiege.studies.realsafe.tables import TABLES, readings
from besiege.studies.study import STUDIES, Study

_DIFFERS = (
    "Networks and seeds are ours, or published by others: no figure is expected to be the printed "
    "one. A model of theirs without a counterpart is listed as absent.",
    "Images of imagenet-sample are a public sample of one image of each class, and no validation "
    "images of ImageNet: networks may have been trained on them.",
    "Budget curves follow from the smallest perturbation of each image. A search doubles and "
    "bisects the budget to 1 % (3 % for score attacks), FGSM is scanned over 32 equal budgets, and "
    "an image's distance is that of its adversarial image, never the budget tried.",
    "Transfer has 16 budgets, crafted once on the substitute and judged on every model: a search "
    "would minimise on the substitute.",
    "The smallest perturbation of a randomised model is one lucky draw. Such models have a few "
    "budgets with gradients averaged over 10 draws, score attacks at the standard budget, and no "
    "decision attacks, which would need votes.",
    "The presets have the steps of the text, 0.15 of the budget; their code has 1.5 budgets in all "
    "in its searches. Both forms have names, such as bim@realsafe and bim@realsafe-code.",
    "Boundary and Evolutionary start as the publication says, and the start is charged.",
)
_SLOW = {
    "score*": (100, 5000),
    "decision*": (50, 5000),
    "white*, averaged": (100, 5000),
    "score*, averaged": (25, 5000),
}

STUDIES.add(
    "realsafe",
    Study(
        "realsafe",
        "RealSafe: 15 attacks at four levels of knowledge",
        "Dong et al. 2020, Benchmarking adversarial robustness on image classification",
        Path(__file__).parent,
        CLAIMS,
        TABLES,
        figures,
        readings,
        sizes={
            "smoke": Size("50 images, 1,000 queries: shows that everything runs", 50, 1000),
            "bench": Size(
                "500 images; 100 with 5,000 queries for score attacks, 50 for decision attacks; of "
                "attacks averaged over draws 100 with gradients and 25 with scores",
                500,
                5000,
                _SLOW,
            ),
            "paper": Size("10,000 images and 20,000 queries", 10_000, 20_000),
        },
        tags={
            "defense": {
                "randomised": ("*+resize_pad*", "*+randmix*", "*+noise*", "*cifar10-rse*"),
                "transformation": ("*+jpeg*", "*+bits*"),
                "adversarial training": ("*pgd-at*", "*trades*", "*_adv", "*_adv4", "*_pgd"),
                "certified": ("*_kw*",),
                "none": ("*natural", "*resnet[0-9][0-9]", "public:imagenet_*[0-9]"),
            }
        },
        only={"*, averaged": ("defense", "randomised")},
        # An iterate, and a pair of probes for each direction.
        steps={
            "nes@realsafe-code": 101,
            "nes@realsafe-strength": 501,
            "spsa@realsafe-code": 101,
            "spsa@realsafe-code-l2": 101,
            "spsa@realsafe-strength": 501,
            "spsa@realsafe-strength-l2": 501,
            "spsa@realsafe-strength-imagenet": 501,
            "spsa@realsafe-strength-imagenet-l2": 501,
            "nattack@realsafe": 101,
        },
        parts=(
            *("white linf*", "white l2*", "transfer linf*", "transfer l2*"),
            *("score linf*", "score l2*", "decision*"),
        ),
        differs=_DIFFERS,
    ),
)
