"""The words that ask the same again: a command, or a call."""

from __future__ import annotations

import shlex

from besiege.bench.shards import SHARD
from besiege.bench.spec import Asked


def command_of(asked: Asked) -> str:
    """What asks the same again: a command where everything has a name, else a call."""
    if not asked.textual:
        given = [f"threat={asked.threat!r}"]
        given.append(f"suite={asked.suite!r}" if asked.suite else f"attacks={[*asked.attacks]!r}")
        usual: dict[str, object] = {"split": "test", "queries": None, "count": None}
        usual |= {"seed": 0, "shard": SHARD, "curve": "short", "substitute": (), "fuse": "logits"}
        given += [f"{k}={getattr(asked, k)!r}" for k, v in usual.items() if getattr(asked, k) != v]
        return f"besiege.evaluate(<{asked.model}>, <{asked.data}>, {', '.join(given)})"
    parts = ["besiege", "evaluate", asked.model, "--data", asked.data, "--threat", asked.threat]
    if asked.suite is not None:
        parts += ["--suite", asked.suite]
    else:
        parts += ["--attacks", ", ".join(asked.attacks)]
    for one in asked.substitute:
        parts += ["--substitute", one]
    if len(asked.substitute) > 1 and asked.fuse != "logits":
        parts += ["--fuse", asked.fuse]
    if asked.split != "test":
        parts += ["--split", asked.split]
    if asked.queries is not None:
        parts += ["--queries", str(asked.queries)]
    if asked.count is not None:
        parts += ["--count", str(asked.count)]
    if asked.seed:
        parts += ["--seed", str(asked.seed)]
    if asked.shard != SHARD:
        parts += ["--shard", str(asked.shard)]
    if asked.curve == "none":
        parts.append("--no-curve")
    elif asked.curve == "full":
        parts += ["--curve", "full"]
    return " ".join(map(shlex.quote, parts))
