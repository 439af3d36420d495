"""Shards of one attack done together: the same records as those done one by one."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.bench.records import content, finished
from tests.children import forked
from torch import nn

import besiege
from besiege import Attack, Siege
from besiege.bench import context, runner, working
from besiege.bench.claims import Claims
from besiege.bench.context import Context
from besiege.bench.kinds.craft import Craft
from besiege.bench.planning import plan_of
from besiege.bench.request import requested, resolve
from besiege.bench.spec import Machine
from besiege.bench.store import Record, Store
from besiege.bench.work_estimate import Event, WorkEstimate
from besiege.core.samples import Samples

NATURAL = "zoo:digits-natural"
ASK: dict[str, Any] = {"threat": "linf:0.1", "count": 22, "shard": 6, "curve": False}
SUITE = ["apgd(steps=5)", "apgdt(steps=4, targets=3)", "fabt(steps=4, targets=2)"]
SUITE.append("square(steps=60)")


@contextmanager
def together(most: int = 1000, lost: float = math.inf) -> Iterator[None]:
    """As on a GPU: so many samples at once, and so many seconds of work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "most_together", lambda self, digest: most)
        patch.setattr(runner, "LOST", lost)
        yield


def evaluate(folder: Path, model: Any = NATURAL, **ask: Any) -> besiege.Evaluation:
    found: besiege.Evaluation = besiege.evaluate(model, "digits", out=folder, **{**ASK, **ask})
    return found


def rows_of(folder: Path) -> dict[str, Any]:
    """All records, but for what describes the batch that was computed.

    These are the padding, the candidates that Square computed ahead in vain, and the loss after
    three quarters of the requests for a batch of which nothing is left.
    """
    found = content(folder)
    for identity, totals, _, _, rows, _ in found.values():
        if identity["kind"] != "craft":
            continue
        totals.pop("padding", None)
        if identity["text"].startswith("square"):
            totals.pop("forwards"), rows.pop("forwards")
        if all(one == "True" for one in rows.get("claimed", ())):
            rows.pop("loss_late", None)
    return found


def records(folder: Path, kind: str) -> list[Record]:
    store = Store(folder)
    some = [record for key in store.present() if (record := store.read(key)) is not None]
    return [record for record in some if record.identity["kind"] == kind]


class Normed(nn.Module):
    """A net with batch norm, so that attacks search on a twin."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.net(x)
        return answer


class Rounded(nn.Module):
    """Its gradient is zero everywhere, as rounding has none; most shards have a correct answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = (4 * x).round().flatten(1)[:, :50].view(len(x), 10, 5).sum(2)
        return answer


CASES: dict[str, dict[str, Any]] = {
    "list and curve": {"attacks": ["fgsm", "pgd(steps=5)"], "curve": "short"},
    "suite": {"suite": SUITE, "threat": "linf:0.06"},
    "smallest": {"attacks": ["minimal(pgd(steps=4))", "fab(steps=4)"], "threat": "linf"},
    "targeted": {"attacks": ["pgd(steps=5)"], "threat": "linf:0.15 targeted:random"},
    "one target": {"attacks": ["pgd(steps=5)"], "threat": "linf:0.15", "target_class": 3},
    "least likely": {"attacks": ["pgd(steps=5)"], "threat": "l2:1 targeted:least-likely"},
    "stochastic": {
        "model": f"{NATURAL}+resize_pad(least=0.75)",
        "suite": ["averaged(apgd(steps=3), 3)", "averaged(square(steps=10), 3)"],
    },
    "labels": {"attacks": ["hopskipjump(steps=2)"], "threat": "l2:1 decision", "queries": 300},
    "transfer": {"attacks": ["pgd(steps=5)"], "substitute": "zoo:digits-pgd-at"},
    "findings": {"model": Rounded(), "attacks": ["pgd(steps=2)"], "threat": "linf:0.02"},
    "twin": {"model": Normed(), "attacks": ["pgd(steps=5)", "apgd(steps=5)"]},
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(n, marks=pytest.mark.slow if n in ("one target", "least likely") else [])
        for n in CASES
    ],
)
def test_records_are_those_of_shards_done_one_by_one(case: str, tmp_path: Path) -> None:
    evaluate(tmp_path / "apart", **CASES[case])
    with together():
        evaluate(tmp_path / "together", **CASES[case])
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "apart")
    for kind in ("craft", "judge"):
        assert all(one.provenance["together"] >= 4 for one in records(tmp_path / "together", kind))
        assert all("together" not in one.provenance for one in records(tmp_path / "apart", kind))


def test_findings_are_about_one_shard(tmp_path: Path) -> None:
    with together():
        evaluate(tmp_path, **CASES["findings"])
    findings = 0
    for record in records(tmp_path, "craft"):
        for one in record.findings:
            findings += 1
            left = record.totals["rows"] - record.totals["claimed"]
            assert one.id == "W11" and f"for {left} of {record.totals['rows']} samples" in one.seen
    assert 1 < findings < 4, "some shards have a sample that is not broken"


@pytest.mark.usefixtures("examined")
def test_guards_of_the_default_attacks_get_the_same_samples(tmp_path: Path) -> None:
    for folder, most in (("apart", 0), ("together", 1000)):
        with together(most):
            evaluate(tmp_path / folder, "zoo:digits-pgd-at", threat="linf:0.15", count=8, shard=4)
    assert any("guard" in one.identity for one in records(tmp_path / "together", "craft"))
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "apart")


def test_an_attack_that_mixes_samples_gets_one_shard_at_a_time(tmp_path: Path) -> None:
    uap = {"attacks": ["uap(steps=2)", "minimal(uap(steps=1), bisections=2)"], "threat": "linf:0.2"}
    evaluate(tmp_path / "apart", **uap)
    with together():
        evaluate(tmp_path / "together", **uap)
    assert content(tmp_path / "together").keys() == content(tmp_path / "apart").keys()
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "apart")


def grouped(folder: Path, **how: Any) -> list[int]:
    """How many tasks each call of an attack had."""
    seen, run = list[int](), Craft.run_together

    def counted(self: Craft, tasks: Any, context: Context) -> Any:
        seen.append(len(tasks))
        return run(self, tasks, context)

    with together(**how), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Craft, "run_together", counted)
        assert evaluate(folder, attacks="fgsm").complete
    return seen


def test_as_many_as_memory_and_a_minute_allow(tmp_path: Path) -> None:
    assert grouped(tmp_path / "all") == [4]
    assert grouped(tmp_path / "two", most=12) == [2, 2]
    assert grouped(tmp_path / "none", most=0) == [1] * 4
    assert grouped(tmp_path / "slow", lost=0.0) == [1] * 4


@pytest.mark.parametrize(
    ("device", "metered", "side", "gigabytes", "most"),
    [
        ("cuda", False, 32, 80, 8192),
        ("cuda", False, 32, 4, 4069),
        ("cuda", False, 224, 80, 167),
        ("cuda", True, 32, 80, 0),
        ("cpu", False, 32, 80, 0),
    ],
)
def test_only_a_gpu_is_filled(
    device: str,
    metered: bool,
    side: int,
    gigabytes: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim = SimpleNamespace(device=torch.device(device), metered=metered)
    around = SimpleNamespace(images=torch.zeros(1, 3, side, side))
    about = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    ours: Any = SimpleNamespace(victim=lambda digest: victim, around=around)
    assert Context.most_together(ours, "digest") == most


def test_seconds_are_shared_by_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)), monotonic=lambda: 0.0)
    monkeypatch.setattr(working, "time", clock)
    with together():
        evaluate(tmp_path, attacks="fgsm")
    for kind in ("craft", "judge"):
        some = records(tmp_path, kind)
        assert sum(one.provenance["seconds"] for one in some) == pytest.approx(1.0)
        each = {one.provenance["seconds"] / one.totals["rows"] for one in some}
        assert max(each) == pytest.approx(min(each))


def killed(patched: Callable[[pytest.MonkeyPatch], None], folder: Path) -> None:
    """An evaluation by groups in another process, which kills itself somewhere."""

    def work() -> None:
        with together(), pytest.MonkeyPatch.context() as patch:
            patched(patch)
            evaluate(folder, suite=SUITE, threat="linf:0.06")

    _, ended = os.waitpid(forked(work), 0)
    assert os.WIFSIGNALED(ended)


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    evaluate(tmp_path / "apart", suite=SUITE, threat="linf:0.06")
    folder, commit, run = tmp_path / "together", Store.commit, Craft.run_together
    stored = Counter[str]()

    def between(self: Store, record: Record, *files: Any) -> None:
        commit(self, record, *files)
        stored[record.identity["kind"]] += 1
        if stored["craft"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self: Craft, tasks: Any, context: Context) -> Any:
        made = run(self, tasks, context)
        if len(tasks) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    killed(lambda patch: patch.setattr(Store, "commit", between), folder)
    assert len(records(folder, "craft")) == 2
    killed(lambda patch: patch.setattr(Craft, "run_together", after), folder)
    assert len(records(folder, "judge")) == 4
    with together():
        assert evaluate(folder, suite=SUITE, threat="linf:0.06").complete
    assert rows_of(folder) == rows_of(tmp_path / "apart")
    journal = Counter(key for keys in finished(folder).values() for key in keys)
    # A process that is killed right after it stored a record has not written it down.
    assert max(journal.values()) == 1 and len(journal) >= len(content(folder)) - 1


@dataclass(frozen=True)
class Picky(Attack):
    """Raises an error for one sample, or for all."""

    every: bool = False

    def run(self, siege: Siege) -> None:
        bright = siege.ball.center.flatten(1).sum(1)
        if self.every or bool((bright > 22).any()):
            raise RuntimeError(f"too bright: {'all' if self.every else float(bright.max()):}")
        siege.offer(siege.ball.center)


@pytest.mark.parametrize(("attack", "failures"), [(Picky(), 1), (Picky(True), 4)])
def test_a_failure_is_that_of_its_shard(attack: Attack, failures: int, tmp_path: Path) -> None:
    evaluate(tmp_path / "apart", attacks=[attack, "fgsm"])
    with together():
        evaluate(tmp_path / "together", attacks=[attack, "fgsm"])
    store = Store(tmp_path / "together")
    assert sum(store.failed(key) for key in store.present()) == failures
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "apart")


def test_tasks_of_other_processes_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(tmp_path / "apart", attacks="fgsm")
    other = records(tmp_path / "apart", "craft")[1].key
    take, refused = Claims.take, list[str]()

    def taken(self: Claims, key: str) -> bool:
        if key == other and len(refused) < 2:
            refused.append(key)
            return False
        return take(self, key)

    monkeypatch.setattr(Claims, "take", taken)
    claims, attempt = tmp_path / "together" / "claims", working.attempt

    def attempted(*given: Any) -> dict[str, working.Ended]:
        ended = attempt(*given)
        assert not list(claims.iterdir()), "every claim is given back at once"
        return ended

    monkeypatch.setattr(runner, "attempt", attempted)
    with together():
        assert evaluate(tmp_path / "together", attacks="fgsm").complete
    counts = Counter(
        one.provenance.get("together") for one in records(tmp_path / "together", "craft")
    )
    assert counts == {3: 3, None: 1}
    assert rows_of(tmp_path / "together") == rows_of(tmp_path / "apart")


def test_progress_counts_all_parts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: 0.0, monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(working, "time", clock)
    events: list[Event] = []
    with together():
        found = evaluate(tmp_path, attacks="pgd(steps=8)", threat="linf:0.06", watch=events.append)
    during = [event for event in events if event.stage is not None]
    correct = round(found.clean.value * found.clean.count)
    shares = [event.stage.share for event in during if event.stage is not None]
    assert shares == sorted(shares) and shares[-1] == 1
    first = next(n for n, event in enumerate(events) if event.text.startswith("pgd"))
    begun = [event.done - events[first - 1].done for event in events[first : first + 8]]
    assert max(begun) > 0.8 * (events[-1].done - events[first - 1].done), "before a shard is over"
    assert all(event.stage is not None and event.stage.before == correct for event in during)
    left = [event.stage.left for event in during if event.stage is not None]
    assert found.robust is not None
    assert left[-1] == round(found.robust.value * found.robust.count)
    assert min(left) >= left[-1], "no sample counts as broken twice"
    assert all(event.done <= event.total for event in events)


@pytest.mark.parametrize(
    ("suite", "count", "compiled"),
    [("quick", 1_000, False), ("standard", 1_000, False), ("standard", 10_000, True)],
)
def test_a_long_plan_pays_for_compiling(
    suite: str, count: int, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve(*requested(NATURAL, "digits", threat="linf:0.1", suite=suite, count=4))
    plan = plan_of(resolved)
    device = SimpleNamespace(type="cuda")
    shard = plan.shards[0].model_copy(update={"count": count})
    many = plan.model_copy(update={"shards": (shard,)})

    def chosen(how: Machine) -> bool | None:
        with monkeypatch.context() as patch:
            estimate = WorkEstimate(many)
            patch.setattr(context, "WorkEstimate", lambda plan: estimate)
            patch.setattr(type(resolved.victim), "device", device)
            patch.setattr(Samples, "to", lambda self, device: self)
            return context.context_of(Store(tmp_path), resolved, plan, how).how.compile

    assert chosen(Machine()) is compiled
    assert [chosen(Machine(compile=one)) for one in (True, False)] == [True, False]
    assert context.context_of(Store(tmp_path), resolved, plan, Machine()).how.compile is None
