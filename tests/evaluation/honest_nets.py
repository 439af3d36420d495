"""Random honest networks of many kinds: nothing about them may raise an alarm."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from besiege.core.samples import Samples
from besiege.models.classifier import Classifier


class Attention(nn.Module):
    """Patches, one layer of self-attention, and the mean over the patches."""

    def __init__(self, channels: int, patch: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        logits: Tensor = self.head(self.norm(tokens + mixed).mean(1))
        return logits


class Residual(nn.Module):
    """A convolution added to its input."""

    def __init__(self, width: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.inner(x)
        return changed


def network(draw: random.Random, channels: int, size: int, classes: int) -> nn.Module:
    """An untrained network; its weights come from the global generator of torch."""
    activation = draw.choice([nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.ELU])
    kind = draw.choice(["linear", "mlp", "cnn", "pool", "residual", "attention"])
    width = draw.choice([8, 16, 32])
    bias = draw.random() < 0.5
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
    if kind == "mlp":
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = channels * size * size
        for _ in range(draw.randint(1, 4)):
            layers += [nn.Linear(inputs, 4 * width, bias=bias), activation()]
            inputs = 4 * width
        return nn.Sequential(*layers, nn.Linear(inputs, classes))
    if kind == "attention":
        return Attention(channels, size // 4, classes)
    layers = [nn.Conv2d(channels, width, 3, padding=1, bias=bias)]
    if draw.random() < 0.5 or kind == "residual":
        layers.append(nn.BatchNorm2d(width))
    layers.append(activation())
    if kind == "residual":
        layers += [Residual(width, activation) for _ in range(draw.randint(1, 3))]
    pools: list[Callable[[int], nn.Module]] = [nn.MaxPool2d, nn.AvgPool2d]
    layers.append(nn.MaxPool2d(2) if kind == "pool" else draw.choice(pools)(2))
    layers += [nn.Conv2d(width, width, 3, padding=1, bias=bias), activation()]
    if kind == "pool":
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(2) if draw.random() < 0.5 else nn.AdaptiveMaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width, classes))


def drawn(number: int) -> tuple[Classifier, Samples, str]:
    """A network, images and a threat; the same for the same number."""
    draw = random.Random(number)
    channels, size = draw.choice([1, 3]), draw.choice([8, 16, 28, 32])
    classes = draw.choice([2, 3, 10, 43, 100])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        net = network(draw, channels, size, classes)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = 0.1 * torch.randn(module.num_features)
                module.running_var = 0.1 + torch.rand(module.num_features)
        scale = draw.choice([1.0, 1.0, 3.0])
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(scale if parameter.dim() > 1 else 1.0)
        images = torch.rand(24, channels, size, size)
        if draw.random() < 0.5:  # bytes with a black background, as many data sets have
            images = ((images - 0.4).clamp_min(0) * 255).round() / 255
    if draw.random() < 0.2:
        net = net.to(draw.choice([torch.float16, torch.bfloat16, torch.float64]))
    mean, std = (0.4, 0.25) if draw.random() < 0.5 else (None, None)
    victim = Classifier(net, classes=classes, mean=mean, std=std)
    labels = torch.arange(24) % classes
    if draw.random() < 0.5:
        with victim.held(), torch.no_grad():
            labels = victim(images).argmax(1)
    linf = ["linf:8/255", "linf:0.1", "linf:0.3", "linf:1/255", "linf"]
    threat = draw.choice([*linf, "l2:0.5", "l2:2", "l1:10", "l0:8", "l2"])
    return victim, Samples.of(images, labels), threat
