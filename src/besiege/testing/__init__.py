"""The conformance suite: laws every attack obeys, and victims with known distances."""
