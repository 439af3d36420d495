"""Names of other libraries (Foolbox, torchattacks, ART, CleverHans) and what they are here."""

from __future__ import annotations

from collections.abc import Mapping

ITERATIONS = (
    *("nb_iter", "num_steps", "n_steps", "nb_steps", "iterations", "num_iterations", "iters"),
    *("max_iter", "max_iterations", "n_iter", "num_iter", "num_iter_set"),
)
AGAIN = (
    *("n_restarts", "num_restarts", "nb_restarts", "random_restarts"),
    *("num_random_init", "nb_random_init"),
)
LENGTHS = (
    *("alpha", "step_size", "stepsize", "eps_step", "eps_iter", "abs_stepsize"),
    *("learning_rate", "lr"),
)
"""Step sizes, in units of pixels."""
BUDGETS = ("eps", "epsilon", "epsilons", "max_epsilon")
BUDGETED = ("nes", "spsa", "rgf", "prgf")
"""Attacks of ours whose rate is a fraction of the budget."""

_WEIGHED = {"confidence": "kappa", "binary_search_steps": "rounds", "abort_early": "abort"}
RENAMED: Mapping[str, Mapping[str, str]] = {
    "cw": _WEIGHED,
    "optmargin": _WEIGHED,
    "ead": {
        **_WEIGHED,
        "regularization": "beta",
        "decision_rule": "rule",
        "initial_stepsize": "rate",
    },
    "zoo": {"binary_search_steps": "rounds", "nb_parallel": "coordinates", "variable_h": "h"},
    "deepfool": dict.fromkeys(("nb_grads", "candidates", "num_classes"), "classes"),
    "square": {"n_queries": "steps", "max_queries": "steps", "resc_schedule": "rescale"},
    "spsa": {"delta": "sigma"},
    "hopskipjump": dict.fromkeys(("init_eval", "initial_gradient_eval_steps"), "probes"),
    "boundary": {"spherical_step": "sphere", "delta": "sphere", "source_step": "toward"},
    "signopt": {"k": "votes", "num_trial": "tries"},
    "apgdt": {"n_target_classes": "targets"},
    "fabt": {"n_target_classes": "targets"},
}
"""Parameters with the same meaning under another name, by attack."""
ELSEWHERE = {
    **dict.fromkeys(("norm", "ord", "p"), "The norm is part of the threat: threat='l2:0.5'"),
    **dict.fromkeys(
        ("n_queries", "max_queries", "query_limit"),
        "A query limit is given beside the attack: queries=1000",
    ),
    **dict.fromkeys(
        ("targeted", "y_target", "target_class"),
        "The goal is part of the threat: threat='linf:8/255 targeted:class=3'",
    ),
    **dict.fromkeys(
        ("clip_min", "clip_max", "bounds"),
        "The range of pixels belongs to the model: Classifier(net, box=(0, 1))",
    ),
    **dict.fromkeys(("n_classes", "num_classes"), "The model says how many classes it has"),
    "batch_size": "The batch size is batch=32, beside the attack",
    "device": "The attack runs on the model's device: move the model",
    "verbose": "A progress bar is shown by progress=True, beside the attack",
    "seed": "The seed is given beside the attack: seed=0",
}
"""What is no parameter of an attack here."""
NAMES = {
    **dict.fromkeys(("projectedgradientdescent", "pgdpytorch", "pgd"), "pgd"),
    **dict.fromkeys(("fgm", "fastgradient", "fastgradientsign"), "fgsm"),
    **dict.fromkeys(("ifgsm", "basiciterative", "bi"), "bim"),
    **dict.fromkeys(("mifgsm", "momentumiterative", "momentumiterativefastgradient"), "mim"),
    **dict.fromkeys(("difgsm", "di2fgsm"), "dim"),
    "tifgsm": "tim",
    **dict.fromkeys(("autopgd", "autoprojectedgradientdescent"), "apgd"),
    **dict.fromkeys(("carliniwagner", "carlinil2", "carlinilinf", "carlinil0", "carlini"), "cw"),
    **dict.fromkeys(("elasticnet", "eaden", "eadl1"), "ead"),
    **dict.fromkeys(("hsja", "hopskip"), "hopskipjump"),
    **dict.fromkeys(("saliencymap", "jsm"), "jsma"),
    **dict.fromkeys(("ce", "xent", "crossentropy"), "cross_entropy"),
    **{name: name for name in ("deepfool", "ddn", "fmn", "ead", "square", "boundary", "geoda")},
}
"""Without capitals, hyphens, underscores, the norm before them and 'attack' or 'method' after."""
