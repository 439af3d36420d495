"""``python -m besiege`` is ``besiege``."""

from __future__ import annotations

import sys

from besiege.cli import main

sys.exit(main())
