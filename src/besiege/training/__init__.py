"""Training: recipes as values, and one `train`."""
