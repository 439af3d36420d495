"""What all other packages build on: threats, balls, victims, sieges, dice, registries, errors."""
