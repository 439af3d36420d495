"""The browser that tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.report.browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
