"""Hostile command lines and calls: whatever is typed, besiege answers, or refuses in one sentence.

python benchmarks/fuzz.py --lines 2000 --calls 2000 --seed 0
python benchmarks/fuzz.py --seed 0 --only line:17        # one case again, with its traceback

Every case runs in a process that is used again, and replaced where it dies or takes more than ten
seconds. A finding is a traceback, an error that is no BesiegeError, an exit code that is not
documented, a hang, a warning of Python's, or a file that was written although the input was
refused. The exit code is 1 where there are findings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.fuzzing.calls import call
from benchmarks.fuzzing.files import fill
from benchmarks.fuzzing.lines import line
from benchmarks.fuzzing.worker import said, serve

LIMIT = 10.0
"""Seconds for a case."""
_FINE, _GATE, _REFUSED, _INCOMPLETE, _STOP = 0, 1, 2, 3, 4
_BEGUN = re.compile(r"records are kept in|resuming in|nothing is left|epoch \d|round \d|% done")
"""What a command prints once its input was found valid: it works, and does not hang."""
_UNTYPED = re.compile(
    r"\b(Value|Type|Key|Index|Attribute|Overflow|Runtime|Memory|Recursion|Assertion|ZeroDivision|"
    r"NotImplemented|OS)Error\b"
)


class Worker:
    """A process that runs cases, replaced where it dies or hangs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.process: subprocess.Popen[bytes] | None = None
        self.answers = -1
        self.replaced = -1

    def _start(self) -> subprocess.Popen[bytes]:
        self.replaced += 1
        self.answers, theirs = os.pipe()
        words = [sys.executable, __file__, "--worker", str(self.folder), str(theirs)]
        quiet = {"COLUMNS": "100", "BESIEGE_OFFLINE": "1", "HOME": str(self.folder / "home")}
        quiet |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        quiet |= {
            "TMPDIR": str(self.folder.parent),
            "XDG_CACHE_HOME": str(self.folder / "home/.cache"),
        }
        held = {k: v for k, v in os.environ.items() if not k.startswith("BESIEGE_")}
        process = subprocess.Popen(
            [*words, "--seed", str(self.seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder.parent / "worker.txt").open("ab"),
            pass_fds=(theirs,),
            env=held | quiet,
        )
        os.close(theirs)
        return process

    def __call__(self, kind: str, number: int) -> dict[str, Any]:
        first = self.process is None
        if self.process is None:
            self.process = self._start()
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps([kind, number]) + "\n").encode())
        self.process.stdin.flush()
        text = self._answer(LIMIT + 60 * first)  # importing torch takes a while
        if text.endswith(b"\n"):
            return dict(json.loads(text))
        running = self.process.poll() is None
        code = self.close()
        if not running:
            return {"died": code}
        return {"works" if _BEGUN.search(said(self.folder, "err")) else "hangs": True}

    def _answer(self, limit: float) -> bytes:
        """A line of the worker's, or what there is of one when the time is over or it has gone."""
        text, end = b"", time.monotonic() + limit
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.answers, 1 << 16) if ready else b""
            if not part:
                if ready and self.process is not None:
                    self.process.wait()
                return text
            text += part
        return text

    def close(self) -> int:
        """End the process; how it ended."""
        if self.process is None:
            return 0
        self.process.kill()
        code, self.process = self.process.wait(), None
        os.close(self.answers)
        return code


def judged(kind: str, found: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a case ended; each text is one kind of finding."""
    if "died" in found:
        yield f"the process died with {found['died']}"
        return
    if "hangs" in found:
        yield f"took more than {LIMIT:.0f} s"
    if "hangs" in found or "works" in found:
        return
    raised = found.get("raised")
    if raised is not None and (kind == "line" or found["ours"]):
        yield f"{raised['kind']} in {raised['place']}: {_general(raised['said'])}"
    code = found.get("code", _REFUSED)
    if code not in (_FINE, _GATE, _REFUSED, _INCOMPLETE, _STOP):
        yield f"exit code {code}: {_general(_first(found['err']))}"
    if kind == "line" and "Traceback" in found["err"] and "--debug" not in found["words"]:
        yield f"a traceback: {_general(_last(found['err']))}"
    if code == _INCOMPLETE and (named := _UNTYPED.search(found["out"] + found["err"])):
        yield f"incomplete by an untyped error: {named[0]}"
    if kind == "line" and code == _REFUSED and raised is None:
        if "--debug" not in found["words"] and not found["err"].lstrip().startswith("error:"):
            when = "after the work began" if "error:" in found["err"] else "without 'error:'"
            yield f"refused {when}: {_general(_first(found['err']))}"
        if len(found["err"]) > 2500 and "--debug" not in found["words"]:
            yield "a message of more than 2,500 characters"
    for told in found.get("warned", ()):
        yield f"warns: {_general(told)}"
    if kind == "line" and (named := re.search(r"\w*Warning: .*", found["err"])):
        yield f"warns: {_general(named[0])}"
    if found["changed"] and code == _REFUSED:
        yield f"wrote {_general(found['changed'][0])} although it was refused"


def _general(text: str) -> str:
    """A text without what differs from case to case, so that equal findings are one."""
    return re.sub(r"'[^']*'|\d+|\S*/\S*", "_", text)[:110]


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def shown(kind: str, seed: int, number: int) -> str:
    """A case in one line; of long words the beginning."""
    if kind == "call":
        text = call(seed, number)
    else:
        words = [w if len(w) < 80 else f"{w[:60]}...({len(w)} letters)" for w in line(seed, number)]
        text = shlex.join(["besiege", *words])
    text = re.sub(r"(.)\1{60,}", lambda m: m[1] * 9 + f"...({len(m[0])})", text)
    return text if len(text) <= 400 else text[:400] + "..."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="KIND:NUMBER")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        serve(Path(given.worker[0]), given.seed, int(given.worker[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="besiege-fuzz-") as root:
        folder = Path(root) / "files"
        (folder / "home").mkdir(parents=True)
        fill(folder)
        if given.only:
            return _alone(folder, given.seed, given.only)
        return _campaign(folder, given.seed, given.lines, given.calls)


def _alone(folder: Path, seed: int, which: str) -> int:
    """One case in this process, with all that it says."""
    kind, _, number = which.partition(":")
    print(shown(kind, seed, int(number)))
    os.chdir(folder)
    os.environ |= {"BESIEGE_OFFLINE": "1", "BESIEGE_DEBUG": "1", "HOME": str(folder / "home")}
    if kind == "line":
        from besiege.cli import main as besiege

        print("exit code", besiege(line(seed, int(number))))
    else:
        from benchmarks.fuzzing.calls import names

        print(repr(eval(call(seed, int(number)), names(str(folder))))[:2000])
    return 0


def _campaign(folder: Path, seed: int, lines: int, calls: int) -> int:
    worker, begin = Worker(folder, seed), time.perf_counter()
    findings: dict[str, list[tuple[str, int]]] = {}
    ends: Counter[str] = Counter()
    slow: list[str] = []
    for kind, number in [("line", n) for n in range(lines)] + [("call", n) for n in range(calls)]:
        found = worker(kind, number)
        found["words"] = line(seed, number) if kind == "line" else []
        what = next((w for w in ("died", "hangs", "works") if w in found), "raised")
        if what == "works":
            slow.append(f"at work {kind}:{number} {shown(kind, seed, number)}")
        ends[f"{kind}s: {_ENDS.get(found.get('code', what), what)}"] += 1
        if found.get("seconds", 0) > LIMIT / 2:
            slow.append(f"{found['seconds']:.1f} s {kind}:{number} {shown(kind, seed, number)}")
        for text in judged(kind, found):
            findings.setdefault(text, []).append((kind, number))
    worker.close()
    for name, count in sorted(ends.items()):
        print(f"{count:6} {name}")
    print(f"{time.perf_counter() - begin:.0f} s, the process was replaced {worker.replaced} times")
    for text in slow:
        print(f"slow: {text}")
    print(f"{len(findings)} findings of seed {seed}")
    for text, cases in sorted(findings.items(), key=lambda pair: -len(pair[1])):
        kind, number = min(cases, key=lambda case: len(shown(case[0], seed, case[1])))
        print(f"- {text} ({len(cases)} times)")
        print(f"    --only {kind}:{number}  {shown(kind, seed, number)}")
        if len(cases) > 1:
            print("    " + ", ".join(f"{kind}:{number}" for kind, number in cases[:12]))
    return 1 if findings else 0


_ENDS = {
    _FINE: "fine",
    _GATE: "a gate failed",
    _REFUSED: "refused",
    _INCOMPLETE: "incomplete",
    _STOP: "not to be quoted",
}


if __name__ == "__main__":
    raise SystemExit(main())
