"""DEEPSEC (Ling et al. 2019): its attacks and printed values, and effects of its remarks."""
