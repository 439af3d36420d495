"""Defenses: layers in front of a victim, with their own surrogate backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from besiege.core.lazy import lazily

if TYPE_CHECKING:
    from besiege.defenses.adapting import Adapt
    from besiege.defenses.bits import BitDepth
    from besiege.defenses.calibrating import calibrate
    from besiege.defenses.cropping import CropRescale
    from besiege.defenses.defended import Defended, load
    from besiege.defenses.detected import Calibration, Detected
    from besiege.defenses.detecting import Detector, Examined, detector
    from besiege.defenses.filters import Blur, Median, PilBlur
    from besiege.defenses.jpeg import Jpeg
    from besiege.defenses.layers import Layer, Rounding, Unclamped
    from besiege.defenses.learned import PixelDefend, Reform
    from besiege.defenses.lid import LID
    from besiege.defenses.magnet import MagNet
    from besiege.defenses.nlm import NonLocalMeans
    from besiege.defenses.noise import GaussianNoise
    from besiege.defenses.pooling import Pooled
    from besiege.defenses.randomising import Jitter, RandMix, ResizePad
    from besiege.defenses.smoothing import Smoothed
    from besiege.defenses.squeezing import Squeezing
    from besiege.defenses.thermometer import Thermometer
    from besiege.defenses.tvm import TotalVariation

__all__ = [
    "LID",
    "Adapt",
    "BitDepth",
    "Blur",
    "Calibration",
    "CropRescale",
    "Defended",
    "Detected",
    "Detector",
    "Examined",
    "GaussianNoise",
    "Jitter",
    "Jpeg",
    "Layer",
    "MagNet",
    "Median",
    "NonLocalMeans",
    "PilBlur",
    "PixelDefend",
    "Pooled",
    "RandMix",
    "Reform",
    "ResizePad",
    "Rounding",
    "Smoothed",
    "Squeezing",
    "Thermometer",
    "TotalVariation",
    "Unclamped",
    "calibrate",
    "detector",
    "load",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "adapting": "Adapt",
        "bits": "BitDepth",
        "cropping": "CropRescale",
        "defended": "Defended load",
        "calibrating": "calibrate",
        "detected": "Calibration Detected",
        "detecting": "Detector Examined detector",
        "filters": "Blur Median PilBlur",
        "jpeg": "Jpeg",
        "learned": "PixelDefend Reform",
        "layers": "Layer Rounding Unclamped",
        "lid": "LID",
        "magnet": "MagNet",
        "nlm": "NonLocalMeans",
        "noise": "GaussianNoise",
        "pooling": "Pooled",
        "randomising": "Jitter RandMix ResizePad",
        "smoothing": "Smoothed",
        "squeezing": "Squeezing",
        "thermometer": "Thermometer",
        "tvm": "TotalVariation",
    },
)
