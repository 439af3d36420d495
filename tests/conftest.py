"""For every test: no network, one thread."""

from __future__ import annotations

import os

# A test that downloads without being told to is a mistake; it must not depend on the weather.
os.environ.setdefault("BESIEGE_OFFLINE", "1")
