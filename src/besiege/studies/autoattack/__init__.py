"""AutoAttack's two sub-studies (Croce and Hein 2020): the scale of logits, and step sizes."""
