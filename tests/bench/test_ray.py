"""The engine ``ray``: two nodes on this machine, which share no disk with the run folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench.records import content, finished

from besiege.bench.engines import ENGINES
from besiege.bench.engines.ray_cluster import RayCluster
from besiege.bench.request import requested
from besiege.bench.single import measure
from besiege.bench.spec import Machine
from besiege.bench.store import Store
from besiege.bench.work_estimate import Event
from besiege.core.errors import BesiegeError, InputError
from besiege.core.owner import this


def siege(folder: Path, **more: Any) -> Any:
    how: dict[str, Any] = {"count": 16, "shard": 4, "examine": "none"}
    attacks: dict[str, dict[str, Any]] = {
        "linf:0.1": {"suite": ["fgsm", "pgd(steps=5)"]},
        "l2:0.5": {"attacks": "bim"},
    }
    requests = [
        requested("zoo:digits-natural", "digits", threat=threat, **how, **chosen)
        for threat, chosen in attacks.items()
    ]
    return measure(requests, out=folder, **more)


def test_without_ray_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'besiege\[ray\]'"):
        siege(tmp_path / "run", ray="auto")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    yield made.address
    made.shutdown()


def pids(engine: RayCluster) -> list[int]:
    return [engine._ray.get(actor.pid.remote()) for actor in engine._actors.values()]


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_gives_the_same_records_though_a_worker_is_killed(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siege(tmp_path / "alone")
    engines: list[RayCluster] = []
    workers: list[int] = []
    killed: list[int] = []

    def start(*given: Any, **options: Any) -> RayCluster:
        engines.append(RayCluster(*given, **options))
        workers.extend(pids(engines[0]))
        return engines[0]

    def kill(event: Event) -> None:
        if not killed and event.done > 0.3 * event.total:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    monkeypatch.setitem(ENGINES._known, "ray", start)
    found = siege(tmp_path / "run", ray=cluster, watch=kill)
    assert len(workers) == 2 and killed and all(one.complete for one in found)
    assert content(tmp_path / "run") == content(tmp_path / "alone")
    done = finished(tmp_path / "run")
    assert list(done) == [str(this())], "only the driver writes"
    assert set(Counter(done[str(this())]).values()) == {1}
    assert not list((tmp_path / "run" / "claims").iterdir())


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_a_killed_driver_resumes(cluster: str, tmp_path: Path) -> None:
    siege(tmp_path / "alone")
    folder = tmp_path / "run"
    code = f"import sys; from pathlib import Path; sys.path[:] = {sys.path!r}; "
    code += f"from {__name__} import siege; siege(Path({str(folder)!r}), ray={cluster!r})"
    driver = subprocess.Popen([sys.executable, "-c", code])  # Ray does not survive a fork
    while len(list(folder.glob("records/*"))) < 4:
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    assert all(one.complete for one in siege(folder, ray=cluster))
    assert content(folder) == content(tmp_path / "alone")
    keys = Counter(key for keys in finished(folder).values() for key in keys)
    assert set(keys.values()) == {1} and not list(folder.rglob(".partial*"))


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_workers_that_the_cluster_has_no_place_for_get_no_task(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: set[int] = set()
    submit = RayCluster.submit

    def submitted(engine: RayCluster, slot: int, job: Any) -> None:
        assert slot in engine.slots
        took.add(slot)
        submit(engine, slot, job)

    monkeypatch.setattr(RayCluster, "submit", submitted)
    found = siege(tmp_path / "run", ray=cluster, workers=5)
    assert all(one.complete for one in found) and len(took) == 2


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_without_a_place_for_any_worker_is_an_error(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("besiege.bench.engines.ray_cluster.PLACING", 2.0)
    with pytest.raises(InputError, match=r"a worker needs 2 CPUs of one node.* fewer threads"):
        siege(tmp_path / "run", ray=cluster, how=Machine(threads=2))


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_workers_that_cannot_start_on_the_cluster_are_an_error(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __init__(self, *given: Any) -> None:
            raise RuntimeError("no torch here")

        def pid(self) -> int:
            return 0

    monkeypatch.setattr("besiege.bench.engines.ray_cluster._Remote", Broken)
    engine = RayCluster(Store(tmp_path / "run"), Machine(), cluster, 1)
    try:
        with pytest.raises(BesiegeError, match=r"(?s)cannot be started.*no torch here"):
            while True:
                engine.completed(1.0)
    finally:
        engine.close()


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_progress_inside_a_task_is_reported(cluster: str, tmp_path: Path) -> None:
    events: list[Event] = []
    attack: dict[str, Any] = {
        "attacks": "pgd(steps=3000, loss=margin)",
        "curve": "none",
        "examine": "none",
    }
    request = requested(
        "zoo:digits-natural", "digits", threat="linf:0.001", count=16, shard=16, **attack
    )
    measure([request], out=tmp_path / "run", ray=cluster, workers=1, watch=events.append)
    shares = [event.stage.share for event in events if event.stage is not None]
    assert any(0 < share < 1 for share in shares), shares


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="no Ray cluster at"):
        siege(tmp_path / "run", ray="127.0.0.1:1")
