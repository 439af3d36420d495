"""The study ``su``."""

from __future__ import annotations

from pathlib import Path

from besiege.studies.choosing import Size
from besiege.studies.study import STUDIES, Study
from besiege.studies.su.figures import figures
from besiege.studies.su.findings import CLAIMS
from besiege.studies.su.readings import readings
from besiege.studies.su.tables import TABLES

_DIFFERS = (
    "Networks are ours, or published by others, and none is among the 18 of the publication. All "
    "that were trained for it are reported, with recipes and seeds that were fixed before.",
    "FGSM and I-FGSM ascend the cross-entropy, as the publication prints; the commands of its code "
    "use the target's raw logit (fgsm@su-code, bim@su-code). Of I-FGSM the last iterate counts.",
    "C&W and EAD-L1 have 9 rounds of 100 steps whose units follow the network, with which they end "
    "nearer than 9 of 1,000 steps at the published rate; --size paper has 1,000.",
    "A model's distortion is, as published, the mean over the successes of its attack, and beside "
    "it the median over all images with failures as infinity. Answers use the second.",
    "The published law is a line along the frontier, where distortion falls with accuracy by "
    "definition. S1 rests on the line through all models, against other orders of these models.",
    "Models of another size get the middle of the images, or a grey border; the publication says "
    "white, its code pads with grey.",
    "CLEVER has 100 batches of 256 fresh points in a ball of radius 5, and is called an estimate: "
    "images whose score an attack refutes are listed.",
    "Of data with few classes a targeted image counts as transferred where the target is "
    "predicted: one of ten classes is among the first five by chance half of the time.",
)

STUDIES.add(
    "su",
    Study(
        "su",
        "Is robustness the cost of accuracy? Families, transfer and a law",
        "Su et al. 2018, Is robustness the cost of accuracy? A comprehensive study on the "
        "robustness of 18 deep image classification models",
        Path(__file__).parent,
        CLAIMS,
        TABLES,
        figures,
        readings,
        sizes={
            "smoke": Size(
                "20 images, 5 with CLEVER; C&W and EAD-L1 with 9 rounds of 30 steps: shows that "
                "everything runs",
                20,
                30,
                {"CLEVER*": (5, 30)},
            ),
            "bench": Size(
                "the numbers of the specification: 1,000 images of CIFAR-10 (100 with CLEVER), 200 "
                "of imagenet-sample (20); C&W and EAD-L1 with 9 rounds of 100 steps",
                None,
                100,
            ),
            "paper": Size(
                "1,000 images, 100 with CLEVER; C&W and EAD-L1 with 9 rounds of 1,000 steps",
                1000,
                1000,
                {"CLEVER*": (100, 1000)},
            ),
        },
        tags={
            "family": {
                "ResNet": ("*resnet*", "cifar10-natural"),
                "DenseNet": ("*densenet*",),
                "VGG": ("*vgg*",),
                "MobileNet": ("*mobile*",),
                "Inception": ("*inception*",),
                "plain": ("*plain*", "*conv5*"),
                "SqueezeNet": ("*squeezenet*",),
                "EfficientNet": ("*efficientnet*",),
            }
        },
        # Rounds of C&W and EAD-L1 are limited through their steps.
        steps={"cw": 1, "ead": 1},
        parts=("linf*", "C&W*", "EAD*", "distance*", "CLEVER*"),
        differs=_DIFFERS,
    ),
)
