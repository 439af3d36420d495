"""Your own model on your own images: from a file and a folder to a figure.

    python examples/own_model.py

trains a small network, writes some images as a folder of class folders, and evaluates the network
on them, all below ``besiege-runs/own``. In a shell the evaluation is

    besiege evaluate examples/own_model.py:make --data besiege-runs/own/images --threat linf:0.1
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import nn

import besiege

FOLDER = Path("besiege-runs", "own")


class Network(nn.Module):
    """Two convolutions and a linear layer, for grey images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(x).flatten(1))
        return logits


def make() -> besiege.Classifier:
    """The model as besiege sees it: the network, its weights, its normalisation."""
    net = Network()
    net.load_state_dict(torch.load(FOLDER / "weights.pt", weights_only=True))
    return besiege.Classifier(net, mean=0.5, std=0.5)


def prepare() -> None:
    """Trained weights and a folder of images, which you have already."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    net = besiege.training.fresh(Network)  # initial weights of a seed
    train = besiege.data.load("digits", split="train")
    besiege.training.train(besiege.Classifier(net, mean=0.5, std=0.5), train, "natural(epochs=5)")
    torch.save(net.state_dict(), FOLDER / "weights.pt")
    data = besiege.data.load("digits", count=100)
    for image, label, number in zip(data.images, data.labels, data.ids, strict=True):
        path = FOLDER / "images" / str(int(label)) / f"{int(number)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * image[0]).round().byte().numpy()).save(path)


def main() -> None:
    prepare()
    result = besiege.evaluate(
        make(),
        FOLDER / "images",
        threat="linf:0.1",
        attacks=["fgsm", "pgd", "pgd(loss=margin)"],
        out=FOLDER / "run",  # run it again: nothing is computed twice
    )
    print(result)
    print(f"The page is {result.page()}")


if __name__ == "__main__":
    main()
