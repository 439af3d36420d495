"""The words that ask the same again: a command, or a call."""

from __future__ import annotations

import shlex

from besiege.bench.shards import SHARD
from besiege.bench.spec import Request


def command_of(request: Request) -> str:
    """What asks the same again: a command where everything has a name, else a call."""
    if not request.textual:
        given = [f"threat={request.threat!r}"]
        given.append(
            f"suite={request.suite!r}" if request.suite else f"attacks={[*request.attacks]!r}"
        )
        usual: dict[str, object] = {"split": "test", "queries": None, "count": None}
        usual |= {"seed": 0, "shard": SHARD, "curve": "short", "substitute": (), "fuse": "logits"}
        given += [
            f"{k}={getattr(request, k)!r}" for k, v in usual.items() if getattr(request, k) != v
        ]
        return f"besiege.evaluate(<{request.model}>, <{request.data}>, {', '.join(given)})"
    parts = [
        "besiege",
        "evaluate",
        request.model,
        "--data",
        request.data,
        "--threat",
        request.threat,
    ]
    if request.suite is not None:
        parts += ["--suite", request.suite]
    else:
        parts += ["--attacks", ", ".join(request.attacks)]
    for one in request.substitute:
        parts += ["--substitute", one]
    if len(request.substitute) > 1 and request.fuse != "logits":
        parts += ["--fuse", request.fuse]
    if request.split != "test":
        parts += ["--split", request.split]
    if request.queries is not None:
        parts += ["--queries", str(request.queries)]
    if request.count is not None:
        parts += ["--count", str(request.count)]
    if request.seed:
        parts += ["--seed", str(request.seed)]
    if request.shard != SHARD:
        parts += ["--shard", str(request.shard)]
    if request.curve == "none":
        parts.append("--no-curve")
    elif request.curve == "full":
        parts += ["--curve", "full"]
    return " ".join(map(shlex.quote, parts))
