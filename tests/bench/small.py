"""The beginning of a benchmark file that runs in a second; tests add cells of their own."""

from __future__ import annotations

SMALL = """
name = "small"
data = "digits"
count = 12
shard = 6
[models]
natural = "zoo:digits-natural"
pgd-at = "zoo:digits-pgd-at"
[[cells]]
name = "white"
threat = "linf:0.15"
attacks = ["fgsm", "bim(steps=3)"]
"""
