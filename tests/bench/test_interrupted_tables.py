"""Ctrl-C while DuckDB reads or writes a table: the command ends, whatever DuckDB makes of it."""

from __future__ import annotations

import signal
from io import BytesIO

import numpy as np
import pytest

from besiege.bench import parquet


class _Pressed(BytesIO):
    """A file during whose first write the user presses Ctrl-C."""

    def write(self, _: object) -> int:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_file_is_written_is_no_error_of_the_table() -> None:
    with pytest.raises(KeyboardInterrupt):
        parquet.copy({"a": np.arange(3)}, _Pressed(), "FORMAT parquet")
    assert parquet.unpacked([("k", parquet.packed({"a": np.arange(3)}))])["a"].tolist() == [0, 1, 2]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timer signals")
def test_ctrl_c_during_a_query_is_no_error_of_the_query() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt), parquet._duck({}) as (duck, _, _):
            duck.execute("SELECT sum(hash(range)) FROM range(10_000_000_000)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert parquet.unpacked([("k", parquet.packed({"a": np.arange(3)}))])["a"].tolist() == [0, 1, 2]


def test_other_errors_of_a_query_stay_errors() -> None:
    with pytest.raises(Exception, match="nowhere"), parquet._duck({}) as (duck, _, _):
        duck.execute("SELECT * FROM nowhere")
