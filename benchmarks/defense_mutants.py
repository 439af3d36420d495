"""Mutants of the defenses that transform, randomise, vote or reject: one slip each.

Each entry is what is wrong, the file, the text, what is put in its place, and a test that fails.
"""

from __future__ import annotations

SLIPS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "the surrogate is deployed in place of the transformation",
        "defenses/layers.py",
        "return straight(stand_in, real)",
        "return stand_in",
        "tests/defenses/test_layers.py",
    ),
    (
        "layers in the opposite order",
        "defenses/defended.py",
        "for place, layer in enumerate(self.layers):",
        "for place, layer in enumerate(self.layers[::-1]):",
        "tests/defenses/test_defended.py",
    ),
    (
        "bits: as many steps as levels",
        "defenses/bits.py",
        "return torch.round(share * (levels - 1)) / (levels - 1) * width + low",
        "return torch.round(share * levels) / levels * width + low",
        "tests/defenses/test_bits.py",
    ),
    (
        "resize_pad: the border is black on any box",
        "defenses/randomising.py",
        "border = box[0] + self.fill * (box[1] - box[0])",
        "border = 0.0",
        "tests/defenses/test_randomising.py",
    ),
    (
        "jitter: half of the cube",
        "defenses/randomising.py",
        ".mul_(2.0).sub_(1.0).to(x)",
        ".to(x)",
        "tests/defenses/test_randomising.py",
    ),
    (
        "jitter: images leave the box",
        "defenses/randomising.py",
        "return (x + drawn * (self.radius * (box[1] - box[0]))).clamp(*box)",
        "return x + drawn * (self.radius * (box[1] - box[0]))",
        "tests/defenses/test_randomising.py",
    ),
    (
        "randmix: the same noise for both copies",
        "defenses/randomising.py",
        'dice.of("copy", copy)',
        'dice.of("copy", 1)',
        "tests/defenses/test_randomising.py",
    ),
    (
        "pooled: every draw is the first",
        "defenses/pooling.py",
        'dice.of("draw", number).key for number',
        'dice.of("draw", 0).key for number',
        "tests/defenses/test_pooling.py",
    ),
    (
        "pooled: the sum of the logits in place of their mean",
        "defenses/pooling.py",
        "return self._sum(x, dice, self.draws, follow)[0] / self.draws",
        "return self._sum(x, dice, self.draws, follow)[0]",
        "tests/defenses/test_pooling.py",
    ),
    (
        "pooled: votes have no gradient",
        "defenses/pooling.py",
        "return straight(likely - math.log(few), counted), votes",
        "return counted, votes",
        "tests/defenses/test_pooling.py",
    ),
    (
        "pooled: another number of draws has the same digest",
        "defenses/pooling.py",
        'return sha256(f"{self.victim.digest()}\\n{self.pool}".encode()).hexdigest()',
        "return self.victim.digest()",
        "tests/defenses/test_pooling.py",
    ),
    (
        "ensemble: logits are averaged where probabilities are asked for",
        "models/ensemble.py",
        "torch.stack([z.log_softmax(1) + math.log(w) for w, z in pairs])",
        "torch.stack([z + math.log(w) for w, z in pairs])",
        "tests/models/test_ensemble.py",
    ),
    (
        "ensemble: the draws of the member that pools most",
        "models/ensemble.py",
        "self.draws = min((one.draws",
        "self.draws = max((one.draws",
        "tests/defenses/test_ensembles.py",
    ),
    (
        "refusal: the smaller of label and rejection",
        "core/refusal.py",
        "torch.maximum(",
        "torch.minimum(",
        "tests/core/test_refusal.py",
    ),
    (
        "refusal: no gradient through the rejection",
        "core/refusal.py",
        "logits[:, -1:])",
        "logits[:, -1:].detach())",
        "tests/core/test_refusal.py",
    ),
    (
        "refusal: an unfolded loss sees folded logits",
        "core/oracle.py",
        "if self.victim.rejects and not unfolded(loss) else logits",
        "if self.victim.rejects else logits",
        "tests/core/test_refusal.py",
    ),
    (
        "refusal: gradients of chosen logits are not folded",
        "core/oracle.py",
        "return logits if labels is None else self.fold(logits, labels[rows])",
        "return logits[:, :-1] if self.victim.rejects else logits",
        "tests/core/test_refusal.py",
    ),
    (
        "refusal: a rejected image counts as a success",
        "evaluation/judging.py",
        " & criterion.accepted(labels, classes)",
        "",
        "tests/core/test_refusal.py",
    ),
)
