"""Table 3 of the publication: CIFAR-10, untargeted linf, median distance and accuracy at 8/255."""

from __future__ import annotations

from collections.abc import Mapping

MODELS = {
    "res-56": "Res-56",
    "pgd-at": "PGD-AT",
    "deepdefense": "DeepDefense",
    "trades": "TRADES",
    "convex": "Convex",
    "jpeg": "JPEG",
    "rse": "RSE",
    "adp": "ADP",
}
"""Rows of our specification, and the columns of theirs that they stand for."""

_PRINTED = """
white fgsm .005/21.6 .039/56.0 .001/9.2 .047/60.9 .017/36.6 .012/31.2 .020/29.0 .037/56.0
white bim .002/0.0 .030/48.3 .001/0.0 .037/56.8 .016/34.3 .008/3.2 .018/23.5 .008/12.2
white mim .003/0.0 .032/50.9 .001/0.0 .040/58.1 .016/34.9 .008/6.1 .019/25.1 .010/16.7
white deepfool .003/0.0 .040/56.5 .001/0.0 .047/60.6 .015/32.9 .007/3.1 .021/35.9 .016/28.7
transfer fgsm .067/72.9 .067/71.3 .048/62.1 .087/73.6 .050/57.5 .051/62.8 .048/62.0 .066/73.4
transfer bim .049/70.3 .055/70.2 .041/58.8 .069/72.2 .044/56.7 .039/58.9 .041/60.0 .048/71.4
transfer mim .052/71.5 .056/70.4 .041/59.4 .067/72.2 .045/56.6 .041/59.9 .043/59.8 .050/70.4
transfer dim .052/73.3 .056/70.0 .043/58.8 .063/70.5 .044/55.3 .043/61.1 .043/60.2 .051/73.4
score nes .004/0.0 .048/65.5 .002/0.0 .055/66.7 .025/44.0 .001/2.1 .293/79.7 .007/12.1
score spsa .003/0.0 .042/61.1 .002/0.0 .049/64.9 .021/39.7 .001/2.1 .208/78.7 .007/9.7
score nattack .002/0.0 .030/48.6 .001/0.0 .037/55.8 .016/33.1 .000/0.0 .031/48.6 .005/2.4
"""


def _read() -> Mapping[tuple[str, str, str], tuple[float, float]]:
    found = {}
    for line in _PRINTED.split("\n"):
        if line:
            knowledge, attack, *values = line.split()
            for model, pair in zip(MODELS, values, strict=True):
                median, _, accuracy = pair.partition("/")
                found[knowledge, attack, model] = (float(median), float(accuracy))
    return found


TABLE_3 = _read()
"""Median distance, and accuracy in percent, by knowledge, attack and row."""
