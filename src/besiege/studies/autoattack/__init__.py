"""AutoAttack (Croce and Hein 2020): its parts alone and together, and two sub-studies."""
