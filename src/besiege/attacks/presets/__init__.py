"""The published forms of the attacks, one file for each kind of attack."""
