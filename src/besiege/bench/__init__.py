"""Evaluations as tasks, and the store of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.bench.certifying import certified
    from besiege.bench.compared import PairedComparison
    from besiege.bench.comparison import compare_runs
    from besiege.bench.estimating import Estimate, estimate
    from besiege.bench.evaluations import Evaluation
    from besiege.bench.single import evaluate
    from besiege.bench.spec import Request
    from besiege.bench.store import Store

__all__ = [
    "Estimate",
    "Evaluation",
    "PairedComparison",
    "Request",
    "Store",
    "certified",
    "compare_runs",
    "estimate",
    "evaluate",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "certifying": "certified",
        "compared": "PairedComparison",
        "comparison": "compare_runs",
        "estimating": "Estimate estimate",
        "evaluations": "Evaluation",
        "single": "evaluate",
        "spec": "Request",
        "store": "Store",
    },
)
