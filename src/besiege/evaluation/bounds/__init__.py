"""Bounds on what a network answers around an image: proofs, where attacks only give examples."""

from __future__ import annotations
