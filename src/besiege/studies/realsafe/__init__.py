"""RealSafe (Dong et al. 2020): 15 attacks, two curves, six findings."""
