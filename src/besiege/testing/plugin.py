"""The pytest plugin: the fixture ``robustness``.

pytest imports this file at the start of every session, so it imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from besiege.testing.measuring import Robustness


@pytest.fixture(scope="session")
def robustness(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Robustness:
    """Measures a model: ``robustness(model, data, threat="linf:8/255", suite="quick")``.

    It returns what `besiege.evaluate` returns, so that a test can say
    ``assert found.robust.at_least(0.45)``. Finished work is kept in pytest's cache: the next
    session resumes, and processes of pytest-xdist share it. ``pytest --cache-clear`` forgets it.
    """
    from besiege.testing.measuring import Robustness

    cache = getattr(pytestconfig, "cache", None)  # not there with -p no:cacheprovider
    kept = tmp_path_factory.getbasetemp() if cache is None else cache.mkdir("besiege")
    return Robustness(kept)
