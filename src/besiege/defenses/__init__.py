"""Defenses: layers in front of a victim, with their own surrogate backward."""
