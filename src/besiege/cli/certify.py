"""``besiege certify``: proves which images no perturbation within a budget can break."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from besiege.cli.evaluate import evaluate
from besiege.cli.grammar import (
    AsJson,
    Count,
    DataSource,
    Device,
    Flag,
    Model,
    Place,
    Real,
    Seed,
    ThreatText,
    examples,
    flowing,
)

command = App(
    name="certify",
    help_epilogue=examples(
        "besiege certify zoo:digits-pgd-at --data digits --threat linf:0.05",
        "besiege certify public:cifar10_oval_base_kw --data cifar10 \\",
        "  --threat linf:2/255 --method complete --seconds 10 --count 100",
    ),
)


@command.default
@flowing
def certify(
    model: Model,
    /,
    *,
    data: DataSource,
    threat: ThreatText,
    method: Annotated[str, Parameter(metavar="METHOD")] = "crown",
    seconds: Real = 10.0,
    attacks: Annotated[str, Parameter(metavar="A,B")] = "pgd",
    no_curve: Flag = False,
    count: Count = None,
    seed: Seed = 0,
    split: str = "test",
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    shard: Count = None,
    device: Device = None,
    workers: Count = None,
    as_json: AsJson = False,
) -> int:
    """Prove which images no perturbation within the budget can break.

    An attack shows how low robust accuracy is at most, a proof how low it is at least. Both are
    printed: clean, under attack, certified. An image is proved, broken, misclassified, or open. The
    model must be a network whose operations have bounds, or vote under noise; an operation without
    bounds is named. Run the same command again to resume. The exit code is 4 if a proof and an
    attack contradict each other.

    Parameters
    ----------
    model
        Model to certify, written as for evaluate.
    data
        Data set, folder or file.
    threat
        Norm and budget: linf, l2 or l1.
    method
        ibp, crown-ibp, fast-lin or crown, from loose and fast to tight; alpha tightens crown;
        complete splits what crown leaves open; exact finds the smallest perturbation in linf of a
        small network. smoothing certifies MODEL+smoothed by votes, in l2:
        "smoothing(n=1000, n0=100, alpha=0.001)".
    seconds
        Time limit for each image, for complete and exact.
    attacks
        Attacks that break what can be broken, as for evaluate.
    no_curve
        Certify at the budget only, and search for no smallest perturbation.
    count
        Number of images, chosen by the seed; all by default.
    seed
        Seed of the choice of images and of every random number.
    split
        Part of the data set.
    out
        Run folder, as for evaluate.
    shard
        Images per record; 100.
    device
        Device of the model.
    workers
        Number of processes that share the work.
    """
    return evaluate(
        model,
        data=data,
        threat=(threat,),
        attacks=attacks,
        no_curve=no_curve,
        examine="none",
        certify=method,
        certify_seconds=seconds,
        count=count,
        seed=seed,
        split=split,
        out=out,
        shard=shard,
        device=device,
        workers=workers,
        as_json=as_json,
    )
