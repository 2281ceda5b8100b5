"""Judges as Ray actors; Ray starts those again that are killed."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from cudal1_env.errors import SettingsError
from cudal1_env.judge.settings import JudgeSettings
from cudal1_env.service.ray_judges import RayJudges
from cudal1_env.service.slot import JudgeFacts
from doubles.evaluator import evaluation, suite

pytestmark = pytest.mark.slow


class Prepared:
    """An actor that returns prepared records."""

    models = ("H100",)

    def __init__(self, settings: JudgeSettings, audits: list[Any]) -> None:
        self._model = "H100"

    def facts(self) -> JudgeFacts:
        return JudgeFacts("cpu", self._model)

    def judge(self, jobs: list[Any], precision: str) -> Any:
        time.sleep(0.02 * len(jobs))
        return [evaluation(task.id, source, identity=f"{os.getpid()}") for task, source in jobs], {"c0ffee": "5eed"}

    def close(self) -> None:
        pass


class Mixed(Prepared):
    def facts(self) -> JudgeFacts:
        return JudgeFacts("cpu", f"model of {os.getpid()}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs the extra ray: uv run --extra ray")
    import env.services
    from doubles import evaluator
    from ray import cloudpickle  # pyright: ignore[reportMissingImports]
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    for module in (evaluator, env.services, __import__(__name__)):
        cloudpickle.register_pickle_by_value(module)
    two = Cluster()
    for more in ({"include_dashboard": False}, {}):
        # With ports of ours a node need not wait until its agents have chosen theirs, which a busy machine delays.
        ports = ("metrics_agent", "metrics_export", "runtime_env_agent", "dashboard_agent_listen")
        two.add_node(num_cpus=2, **{f"{name}_port": free_port() for name in ports}, **more)
    ray.init(address=two.address, log_to_driver=False)
    yield ray
    ray.shutdown()
    two.shutdown()


def test_killed_actors_lose_nothing_and_count_nothing_twice(cluster: Any) -> None:
    judges = RayJudges(JudgeSettings(device="cpu"), judges=2, actor=Prepared)
    jobs = [(suite()[number % 3], f"# {number}\nclass ModelNew: pass\n") for number in range(500)]
    pids: set[int] = set()
    told: Counter[int] = Counter()
    killed: list[int] = []

    def done(index: int, outcome: Any) -> None:
        told[index] += 1
        assert outcome.source == jobs[index][1]
        pids.add(int(outcome.id))
        if len(told) in (100, 200, 300):
            killed.append(int(outcome.id))
            os.kill(int(outcome.id), signal.SIGKILL)

    judges.evaluate_each(jobs, done)
    assert len(killed) == 3
    assert told == dict.fromkeys(range(500), 1)
    assert len(pids) == 2 + len(set(killed))
    assert judges.take_disclosed() == {"c0ffee": "5eed"}
    judges.close()


def test_models_are_not_mixed(cluster: Any) -> None:
    with pytest.raises(SettingsError, match="one GPU model"):
        RayJudges(JudgeSettings(device="cpu"), judges=2, actor=Mixed)


def test_a_real_judge_in_an_actor(cluster: Any) -> None:
    from cudal1_data import load_suite

    task = load_suite("starter", device="cpu")["matvec_chain"]
    judges = RayJudges(JudgeSettings(device="cpu"), judges=1)
    records = judges.evaluate_many(
        [(task, task.source + "\n\nModelNew = Model\n"), (task, "x = 1")], precision="correct"
    )
    assert [one.status.value for one in records] == ["CORRECT", "NO_CODE"]
    judges.close()


def test_threads_share_the_actors(cluster: Any) -> None:
    judges = RayJudges(JudgeSettings(device="cpu"), judges=2, actor=Prepared)
    found: list[str] = []

    def ask(number: int) -> None:
        found.append(judges.evaluate(suite()[number % 3], f"# {number}\nclass ModelNew: pass\n").source)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(found)) == 16
    judges.close()
