from __future__ import annotations

import numpy as np

from besiege.metrics.rows import places


def test_ids_are_found_in_any_order_and_missing_ones_are_said() -> None:
    ids = np.array([7, 3, 9, 3, 5])
    wanted = np.array([3, 10, 7, 4, 9, 0, 5])
    assert places(ids, wanted).tolist() == [1, -1, 0, -1, 2, -1, 4]
    assert places(ids, wanted[:0]).tolist() == []
    assert places(ids[:0], wanted).tolist() == [-1] * 7
