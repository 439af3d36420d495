"""What `keep_freed` saves: page faults of memory that is freed and asked for again."""

import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource, sys
from besiege.core.allocating import keep_freed
if "keep" in sys.argv:
    print(keep_freed())
else:
    print(ctypes.CDLL(None).mallopt(-1, 1 << 17) and ctypes.CDLL(None).mallopt(-3, 1 << 20))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size = 8 << 20
def once():
    place = libc.malloc(size)
    ctypes.memset(place, 1, size)
    libc.free(place)
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is the GNU C library's")
def test_memory_that_is_freed_is_not_cleared_again() -> None:
    faults = {}
    for word in ("keep", "usual"):
        run = subprocess.run(
            [sys.executable, "-c", COUNT, word], capture_output=True, text=True, check=True
        )
        kept, count = run.stdout.split()
        faults[word] = int(count)
        if word == "keep" and kept == "False":
            pytest.skip("the C library has no mallopt")
    assert faults["usual"] > 10 * 1000 and faults["keep"] < 100, faults
