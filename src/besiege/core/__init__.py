"""The contract: threats, balls, oracles, the siege, dice, the registry and the errors."""
