"""Lists the trained defenses that besiege has recipes for, without torch.

Listings and help texts read this module; `besiege.training.shipped` has their settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Family:
    """A trained defense, which has a recipe for each data set.

    Attributes
    ----------
    title : str
        What it is, in a few words.
    source : str
        The paper that published it.
    network : str
        The network it needs, where ``{}`` stands for any architecture.
    needs : str
        Why it needs this network.
    bounded : bool
        Whether it needs a network without batch norm, whose weights bounds follow.
    """

    title: str
    source: str = ""
    network: str = "{}"
    needs: str = ""
    bounded: bool = False


_NO_NORM = "batch norm has no fixed weights that bounds could follow"
CATALOGUE: Mapping[str, Family] = MappingProxyType(
    {
        "natural": Family("cross-entropy of clean images"),
        "nat": Family(
            "clean images beside one step to the least likely class",
            "Kurakin, Goodfellow and Bengio, Adversarial Machine Learning at Scale, ICLR 2017",
        ),
        "eat": Family(
            "clean images beside R+FGSM crafted on static models (ensemble)",
            "Tramèr et al., Ensemble Adversarial Training: Attacks and Defenses, ICLR 2018",
        ),
        "pgd-at": Family(
            "adversarial training with PGD",
            "Madry et al., Towards Deep Learning Models Resistant to Adversarial Attacks, "
            "ICLR 2018",
        ),
        "alp": Family(
            "adversarial logit pairing",
            "Kannan, Kurakin and Goodfellow, Adversarial Logit Pairing, 2018 (arXiv:1803.06373)",
        ),
        "trades": Family(
            "cross-entropy of clean images and divergence under attack",
            "Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy, "
            "ICML 2019",
        ),
        "mart": Family(
            "misclassification-aware adversarial training",
            "Wang et al., Improving Adversarial Robustness Requires Revisiting Misclassified "
            "Examples, ICLR 2020",
        ),
        "fast-at": Family(
            "adversarial training with one step from a random start",
            "Wong, Rice and Kolter, Fast is better than free: Revisiting adversarial training, "
            "ICLR 2020",
        ),
        "free-at": Family(
            "adversarial training that replays every batch (free)",
            "Shafahi et al., Adversarial Training for Free!, NeurIPS 2019",
        ),
        "awp": Family(
            "adversarial training with perturbed weights",
            "Wu, Xia and Wang, Adversarial Weight Perturbation Helps Robust Generalization, "
            "NeurIPS 2020",
        ),
        "deepdefense": Family(
            "fine-tuning for large DeepFool perturbations",
            "Yan, Guo and Zhang, Deep Defense: Training DNNs with Improved Adversarial "
            "Robustness, NeurIPS 2018",
            "{}:natural.safetensors",
            "it fine-tunes trained weights",
        ),
        "denoise": Family(
            "adversarial training of a network with denoising blocks",
            "Xie et al., Feature Denoising for Improving Adversarial Robustness, CVPR 2019",
            "resnet20(denoise='gaussian')",
            "the blocks are in the network",
        ),
        "distilled": Family(
            "defensive distillation",
            "Papernot et al., Distillation as a Defense to Adversarial Perturbations against "
            "Deep Neural Networks, IEEE S&P 2016",
        ),
        "igr": Family(
            "input-gradient regularisation",
            "Ross and Doshi-Velez, Improving the Adversarial Robustness and Interpretability of "
            "Deep Neural Networks by Regularizing their Input Gradients, AAAI 2018",
        ),
        "rse": Family(
            "random self-ensemble: natural training of a noisy network",
            "Liu et al., Towards Robust Neural Networks via Random Self-ensemble, ECCV 2018",
            "vgg16(width=16, noise=(0.2, 0.1))",
            "the noise is in the network",
        ),
        "adp": Family(
            "several networks trained for diverse answers",
            "Pang et al., Improving Adversarial Robustness via Promoting Ensemble Diversity, "
            "ICML 2019",
            "joint(of='{}', members=3)",
            "several networks are trained as one",
        ),
        "mmc": Family(
            "Max-Mahalanobis centre loss",
            "Pang et al., Rethinking Softmax Cross-Entropy Loss for Adversarial Robustness, "
            "ICLR 2020",
        ),
        "thermometer": Family(
            "thermometer codes, trained against LS-PGA",
            "Buckman et al., Thermometer Encoding: One Hot Way To Resist Adversarial Examples, "
            "ICLR 2018",
        ),
        "gaussian": Family(
            "training with Gaussian noise, for randomised smoothing",
            "Cohen, Rosenfeld and Kolter, Certified Adversarial Robustness via Randomized "
            "Smoothing, ICML 2019",
        ),
        "smoothadv": Family(
            "adversarial training of the smoothed classifier, in l2",
            "Salman et al., Provably Robust Deep Learning via Adversarially Trained Smoothed "
            "Classifiers, NeurIPS 2019",
        ),
        "ibp": Family(
            "certified training by intervals",
            "Gowal et al., On the Effectiveness of Interval Bound Propagation for Training "
            "Verifiably Robust Models, 2018 (arXiv:1810.12715)",
            needs=_NO_NORM,
            bounded=True,
        ),
        "crown-ibp": Family(
            "certified training by intervals and, at first, lines",
            "Zhang et al., Towards Stable and Efficient Training of Verifiably Robust Neural "
            "Networks, ICLR 2020",
            needs=_NO_NORM,
            bounded=True,
        ),
        "convex": Family(
            "certified training by the convex outer polytope",
            "Wong and Kolter, Provable Defenses against Adversarial Examples via the Convex Outer "
            "Adversarial Polytope, ICML 2018",
            needs=_NO_NORM,
            bounded=True,
        ),
        "pixelcnn": Family(
            "a PixelCNN for the layer pixeldefend, by its likelihood",
            "Song et al., PixelDefend: Leveraging Generative Models to Understand and Defend "
            "against Adversarial Examples, ICLR 2018",
            "pixelcnn",
            "it is the network of a layer, and no classifier",
        ),
        "reformer": Family(
            "an autoencoder for the layer reform, by the noise it removes",
            "Meng and Chen, MagNet: A Two-Pronged Defense against Adversarial Examples, CCS 2017",
            "autoencoder",
            "it is the network of a layer, and no classifier",
        ),
    }
)
NETWORKS = MappingProxyType(
    {"digits": "digits_cnn", "mnist": "deepsec_cnn(width=16)", "cifar10": "resnet20"}
)
"""An architecture for each data set with recipes of its own."""
WITHOUT_NORM = MappingProxyType({**NETWORKS, "cifar10": "oval_base"})
"""The same without batch norm."""


def network_for(family: str, data: str) -> str:
    """The architecture of an example: what the family needs, for the images of a data set.

    Examples
    --------
    >>> network_for("adp", "digits")
    "joint(of='digits_cnn', members=3)"
    """
    known = CATALOGUE[family]
    return known.network.format((WITHOUT_NORM if known.bounded else NETWORKS)[data])
