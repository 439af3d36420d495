"""Su et al. 2018: is robustness the cost of accuracy? Transfer between models, and answers."""
