"""The study ``deepsec``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from besiege.studies.choosing import Size
from besiege.studies.deepsec import answers as of
from besiege.studies.deepsec.attacks import SAME_BUT_GOAL
from besiege.studies.deepsec.tables import TABLES, readings
from besiege.studies.study import STUDIES, Claim, Study

_TRANSFER = "By transfer from an undefended model: "
_ADAPTIVE = "Adaptively: "
_OBLIVIOUS = (
    "These images were made on the undefended model, as DEEPSEC made them: this is no robustness."
)
_UNIVERSAL, _POINT = 0.0, -0.01

CLAIMS = (
    Claim(
        "R1",
        "Iterative linf attacks succeed on nearly all images of an undefended model.",
        of.iterative_succeed,
        smallest=0.99,
        denied=0.96,
        paper="100 % on CIFAR-10; 59 to 86 % on MNIST, where 100 % are known",
    ),
    Claim(
        "R2",
        "PSD varies most over the attacks, and ASS least.",
        of.sensitive,
        smallest=0.01,
        paper="yes",
        caveat="What people see is not measured.",
    ),
    Claim(
        "R3",
        "Untargeted successes survive a blur and a compression more than targeted ones.",
        of.survives,
        smallest=0.05,
        paper="yes, with Guetzli; JPEG 90 here",
    ),
    Claim(
        "R4",
        "Defenses that keep accuracy keep the confidence and the stability of answers.",
        of.utility_follows_accuracy,
        smallest=0.3,
        paper="yes, for 13 defenses",
    ),
    Claim(
        "R5",
        f"{_ADAPTIVE}no defense withstands all attacks on more than nine of ten images.",
        partial(of.none_is_universal, transfer=False),
        smallest=0.1,
        denied=0.05,
        paper="not measured",
    ),
    Claim(
        "R5t",
        f"{_TRANSFER}no defense withstands all attacks on more than nine of ten images.",
        partial(of.none_is_universal, transfer=True),
        smallest=0.1,
        denied=0.05,
        paper="none is universal; defenses that are trained again look better",
        caveat=_OBLIVIOUS,
    ),
    Claim(
        "R6",
        f"{_ADAPTIVE}the larger FGSM is no easier to detect.",
        partial(of.larger_no_easier, transfer=False),
        smallest=_UNIVERSAL,
        denied=-0.05,
        paper="not measured",
    ),
    Claim(
        "R6t",
        f"{_TRANSFER}the larger FGSM is no easier to detect.",
        partial(of.larger_no_easier, transfer=True),
        smallest=_UNIVERSAL,
        denied=-0.05,
        paper="areas fall with the budget, below one half: a flipped sign",
        caveat=_OBLIVIOUS,
    ),
    Claim(
        "R7",
        "Untargeted attacks transfer more than the same ones with a target.",
        partial(of.transfers_more, pairs=SAME_BUT_GOAL),
        smallest=0.05,
        paper="88 against 4 % (FGSM and LLC)",
    ),
    Claim(
        "R7n",
        "Untargeted linf attacks transfer more than DeepFool, in l2.",
        partial(of.transfers_more, pairs=of.LINF_AND_L2),
        smallest=0.05,
        paper="88 against 13 % (FGSM and DeepFool)",
        caveat="DeepFool stops at the decision boundary: this compares budgets, too.",
    ),
    Claim(
        "R8",
        f"{_ADAPTIVE}no ensemble withstands more than its best member.",
        partial(of.ensembles_do_not_beat, transfer=False),
        smallest=_UNIVERSAL,
        denied=_POINT,
        paper="not measured",
    ),
    Claim(
        "R8t",
        f"{_TRANSFER}no ensemble withstands more than its best member.",
        partial(of.ensembles_do_not_beat, transfer=True),
        smallest=_UNIVERSAL,
        denied=_POINT,
        paper="on average none; the worst member is lifted",
        caveat=_OBLIVIOUS,
    ),
)

_SEARCHES = (
    *("blb@deepsec", "cw@deepsec", "cw@deepsec-20", "ead@deepsec-en", "ead@deepsec-l1"),
    *("optmargin@deepsec-mnist", "optmargin@deepsec-cifar10"),
)
_DIFFERS = (
    "Images are chosen at random among all test images, and rates are of those that a model "
    "classifies correctly; DEEPSEC took 1,000 that its undefended model classifies correctly.",
    "Every model is attacked itself. DEEPSEC replayed images only, which is called transfer here.",
    "JPEG with quality 90 stands for Guetzli: they are different encoders.",
    "Ensembles add probabilities, and are victims: attacks see the ensemble.",
    "Trained networks are re-implementations; a missing one is listed as absent.",
    "UAP is fitted on the images it is measured on, on models without a defense.",
    "BIM has 15 steps, as in the authors' scripts. What is printed on CIFAR-10 fits 10 steps: 12 "
    "images have L0 0.998 and L2 2.42 after 15 steps, 0.776 and 2.02 after 10; printed are 0.775 "
    "and 2.00. An odd number of equal steps leaves almost no value where it was.",
    "Smaller sizes have fewer steps in the slow searches (OptMargin, BLB, C&W, EAD); the names of "
    "attacks have the numbers.",
)

STUDIES.add(
    "deepsec",
    Study(
        "deepsec",
        "DEEPSEC: 16 attacks, their utility, and defenses attacked themselves",
        "Ling et al. 2019, DEEPSEC: A uniform platform for security analysis of deep learning "
        "models",
        Path(__file__).parent / "specs",
        CLAIMS,
        TABLES,
        readings=lambda board: tuple(readings(board)),
        sizes={
            "smoke": Size(
                "100 images, 40 and 30 steps for slow searches: shows that everything runs",
                100,
                30,
                {"*slow": (40, 30)},
            ),
            "bench": Size(
                "1,000 images; 200 and 1,000 steps for OptMargin, BLB, C&W and EAD",
                1000,
                cells={"*slow": (200, 1000)},
            ),
            "paper": Size("1,000 images, and all steps", 1000),
        },
        # Steps of searches whose number is a size, not queries: one query each.
        steps=dict.fromkeys(_SEARCHES, 1),
        parts=("linf*", "l2", "l0*", "l2 margin*", "l2 random*", "adaptive*"),
        differs=_DIFFERS,
    ),
)
