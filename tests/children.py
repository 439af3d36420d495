"""Work in a process of its own that need not import torch again."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable


def forked(work: Callable[[], object]) -> int:
    """The number of a forked process that does some work, to be killed or waited for.

    It ends with 0, with 130 after an interrupt, and with 1 after any other error.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)
            work()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def from_a_child(work: Callable[[], str], forget: Iterable[str] = ()) -> str:
    """The text that some work returns in a forked process, which leaves nothing behind here.

    Modules to `forget` are those it imports from files that may have changed, or that another test
    has imported from elsewhere.
    """
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Compiled files are told apart by size and second: two of a test may be alike in both.
            sys.dont_write_bytecode = True
            importlib.invalidate_caches()
            for name in forget:
                sys.modules.pop(name, None)
            os.write(ours, work().encode())
        finally:
            os._exit(0)
    os.close(ours)
    with open(theirs, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    assert text, "the child failed; see its traceback"
    return text
