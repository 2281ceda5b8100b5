"""The service answers with the right status, loses nothing and judges nothing twice."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import documents
import pytest
from cudal1_data import Task, load_suite
from cudal1_data.hashes import digest
from cudal1_env import Archive, CudaOptEnv, CudaOptVectorEnv
from cudal1_env.cli import main
from cudal1_env.errors import MachineError, SettingsError, TaskError
from cudal1_env.judge import JudgeSettings
from cudal1_env.records import Precision, Status
from cudal1_env.remote import RemoteEvaluator
from cudal1_env.service.access import read_tokens
from cudal1_env.service.dispatch import Dispatcher
from cudal1_env.service.metrics import Metrics
from cudal1_env.service.process import Begin, JudgeProcess
from cudal1_env.service.server import listen
from cudal1_env.service.slot import Slot
from cudal1_env.service.store import Store
from cudal1_env.wire import Order, Orders
from doubles.evaluator import evaluation, program, suite, task
from env.services import MODEL, FailingJudge, PreparedJudge, Running, broken_judge, serving

ADD = suite()[0]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with serving() as running:
        yield running


def ask(
    service: Running, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(service.url.rsplit(":", 1)[1]), timeout=30)
    try:
        connection.request(method, path, body, headers or JSON)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def order(source: str, **changes: Any) -> dict[str, Any]:
    return {"task": ADD.id, "reference_sha256": digest(ADD.source), "program": source} | changes


def post(service: Running, *orders: dict[str, Any], wait_s: float = 20.0) -> tuple[int, dict[str, str], Any]:
    body = json.dumps({"jobs": orders, "wait_s": wait_s}).encode()
    status, headers, text = ask(service, "POST", "/v1/verdicts", body)
    return status, headers, json.loads(text)


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_a_remote_evaluator_returns_what_the_judge_says(service: Running) -> None:
    with RemoteEvaluator(service.url) as remote:
        records = remote.evaluate_many([(ADD, program(2.0)), (ADD, "# status CRASH\n"), (suite()[1], program(3.0))])
        assert [record.status for record in records] == [Status.CORRECT, Status.CRASH, Status.CORRECT]
        assert [record.task for record in records] == ["toy/add", "toy/add", "toy/scan"]
        assert remote.device == "cpu"
        assert remote.about.model == MODEL
        assert remote.evaluate(ADD, program(2.0), precision="correct").speedup is None
        with pytest.raises(SettingsError, match="unknown precision 'corect'; did you mean 'correct'"):
            remote.evaluate(ADD, program(2.0), precision=cast("Precision", "corect"))


def test_the_client_of_the_documents_prints_a_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, default = documents.script(documents.ROOT / "docs" / "service.md"), "http://127.0.0.1:8011"
    assert default in script
    monkeypatch.chdir(documents.ROOT)
    with serving(tasks={one.id: one for one in load_suite("starter", device="cpu")}) as service:
        exec(script.replace(default, service.url), {})
    assert "CORRECT" in capsys.readouterr().out


def test_asking_again_draws_again_and_the_record_says_so(service: Running) -> None:
    with RemoteEvaluator(service.url) as first, RemoteEvaluator(service.url, salt="mine") as second:
        source = program(2.0, "drawn again")
        records = [first.evaluate(ADD, source), first.evaluate(ADD, source), second.evaluate(ADD, source)]
    assert len({record.id for record in records}) == 3
    assert [record.ordinal for record in records] == [1, 2, 3]
    assert records[2].salt == "mine/1"
    with RemoteEvaluator(service.url, salt="mine") as same:
        assert same.evaluate(ADD, source).id == records[2].id


def test_text_that_utf8_cannot_hold_is_judged(service: Running) -> None:
    with RemoteEvaluator(service.url) as remote:
        assert remote.evaluate(ADD, program(2.0, "\udcff")).correct


def test_a_task_that_cannot_be_judged_is_the_error_of_a_local_judge(service: Running) -> None:
    with RemoteEvaluator(service.url) as remote, pytest.raises(TaskError, match="as the program asked"):
        remote.evaluate(ADD, program(1.0, "# refuse"))


def test_jobs_beyond_one_request_keep_their_order(service: Running) -> None:
    sources = [program(1.0 + number / 100, "many") for number in range(150)]
    with RemoteEvaluator(service.url) as remote:
        records = remote.evaluate_many([(ADD, source) for source in sources])
    assert [record.source for record in records] == sources


def test_single_requests_become_batches_by_task() -> None:
    with serving() as service, ThreadPoolExecutor(40) as clients, RemoteEvaluator(service.url) as remote:
        held = clients.submit(remote.evaluate, ADD, program(1.0, "# hold"))
        wait_until(lambda: service.dispatcher.slots[0].state == "judging")
        tasks = [suite()[number % 2] for number in range(16)]
        told = [clients.submit(remote.evaluate, one, program(2.0, str(n))) for n, one in enumerate(tasks)]
        wait_until(lambda: service.dispatcher.queued == 16)
        service.gate.set()
        assert held.result().correct
        assert all(one.result().correct for one in told)
        (judge,) = service.judges
        assert judge.batches == [1, 16]
        assert [name for name, _ in judge.jobs[1:]] == ["toy/add"] * 8 + ["toy/scan"] * 8


def test_two_judges_share_the_load() -> None:
    with serving(judges=2) as service, RemoteEvaluator(service.url) as remote:
        sources = [program(1.0, "# hold"), program(1.5, "# hold")]
        with ThreadPoolExecutor(2) as clients:
            held = [clients.submit(remote.evaluate, ADD, source) for source in sources]
            wait_until(lambda: all(slot.state == "judging" for slot in service.dispatcher.slots))
            service.gate.set()
            assert all(one.result().correct for one in held)
        assert [slot.verdicts for slot in service.dispatcher.slots] == [1, 1]


def test_one_job_of_50_clients_is_judged_once() -> None:
    with serving() as service, ThreadPoolExecutor(50) as clients:
        sent = order(program(2.0, "# hold"), salt="same")
        told = [clients.submit(post, service, sent) for _ in range(50)]
        wait_until(lambda: b"cudal1_repeated_jobs_total 49.0" in service.dispatcher.metrics.text())
        service.gate.set()
        ids = {one.result()[2]["outcomes"][0]["record"]["id"] for one in told}
    assert len(ids) == 1
    assert len(service.judges[0].jobs) == 1


def test_a_client_that_disappears_finds_its_verdict_when_it_comes_back() -> None:
    with serving() as service:
        sent = order(program(2.0, "# hold"))
        body = json.dumps({"jobs": [sent], "wait_s": 30.0}).encode()
        gone = socket.create_connection(("127.0.0.1", int(service.url.rsplit(":", 1)[1])))
        head = ["POST /v1/verdicts HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        gone.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        wait_until(lambda: service.dispatcher.slots[0].state == "judging")
        gone.close()
        service.gate.set()
        status, _, reply = post(service, sent)
        assert (status, reply["outcomes"][0]["kind"]) == (200, "verdict")
        assert len(service.judges[0].jobs) == 1


def test_secrets_are_disclosed_to_who_knows_the_commitment(service: Running) -> None:
    service.judges[0].seeds = {"c0ffee": "5eed"}
    with RemoteEvaluator(service.url) as remote:
        remote.evaluate(ADD, program(2.0, "seeds"))
        assert remote.retire() == {}
    wait_until(lambda: service.dispatcher.store.seeds(["c0ffee"]))
    body = json.dumps({"commitments": ["c0ffee", "unknown"]}).encode()
    status, _, text = ask(service, "POST", "/v1/seeds", body)
    assert (status, json.loads(text)) == (200, {"c0ffee": "5eed"})


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b'{"jobs": [', 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b"[" * 100_000, 400, "malformed_json"),
        (b"[]", 422, "invalid"),
        (b'{"jobs": []}', 422, "invalid"),
        (json.dumps({"jobs": [order("x")], "wait_s": 1e9}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("x")], "wait_s": float("nan")}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("x", precision="perfect")]}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("x", more=1)]}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("\ud800")]}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("x")] * 65}).encode(), 422, "invalid"),
        (json.dumps({"jobs": [order("x", task="toy/ad")]}).encode(), 404, "unknown_task"),
        (json.dumps({"jobs": [order("x", reference_sha256="0" * 64)]}).encode(), 409, "other_task"),
        (
            json.dumps({"jobs": [order("x", task="own/task", reference="class Model: pass")]}).encode(),
            404,
            "unknown_task",
        ),
    ],
)
def test_a_bad_body_is_refused_with_a_sentence(service: Running, body: bytes, status: int, error: str) -> None:
    found, _, text = ask(service, "POST", "/v1/verdicts", body)
    reply = json.loads(text)
    assert (found, reply["error"]) == (status, error)
    assert len(reply["message"]) > 15
    assert b'"x' not in body or "at least 1 item" not in reply["message"]


def test_a_commitment_that_utf8_cannot_hold_is_refused_with_a_sentence(service: Running) -> None:
    status, _, text = ask(service, "POST", "/v1/seeds", b'{"commitments": ["\\ud800"]}')
    assert (status, json.loads(text)["error"]) == (422, "invalid")


def test_an_oversized_body_is_refused_before_it_is_read(service: Running) -> None:
    status, _, text = ask(service, "POST", "/v1/verdicts", b"{}", JSON | {"Content-Length": str(1 << 40)})
    assert (status, json.loads(text)["error"]) == (413, "too_large")


def test_an_oversized_body_of_unknown_length_is_refused() -> None:
    with serving(max_body_bytes=4096) as service:
        connection = http.client.HTTPConnection("127.0.0.1", int(service.url.rsplit(":", 1)[1]), timeout=30)
        parts = [b"x" * 3000, b"y" * 3000]
        connection.request("POST", "/v1/verdicts", iter(parts), JSON, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        with RemoteEvaluator(service.url) as remote, pytest.raises(SettingsError, match="--max-body-bytes"):
            remote.evaluate(ADD, "#" * 5000)


def test_other_types_than_json_and_other_hosts_are_refused(service: Running) -> None:
    assert ask(service, "POST", "/v1/verdicts", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask(service, "GET", "/health", None, {"Host": "example.org"})[0] == 403


def test_an_unknown_route_names_the_routes(service: Running) -> None:
    status, _, text = ask(service, "GET", "/verdicts")
    assert status == 404
    assert b"/v1/verdicts" in text


@pytest.mark.parametrize(
    "path", ["/health", "/status", "/metrics", "/v1/seeds", "/v1/verdicts", "/openapi.json", "/no"]
)
def test_every_route_asks_for_the_token(path: str) -> None:
    token = "0123456789abcdef"
    with serving(tokens=("another-token-of-16", token)) as service:
        for headers in ({}, {"Authorization": "Bearer wrong-token-of-16"}, {"Authorization": f"Basic {token}"}):
            assert ask(service, "GET", path, None, headers or {"Accept": "*/*"})[0] == 401
        assert ask(service, "GET", path, None, {"Authorization": f"Bearer {token}"})[0] in (200, 404, 405)


def test_a_token_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tokens=("0123456789abcdef",)) as service:
        with RemoteEvaluator(service.url) as remote, pytest.raises(SettingsError, match="CUDAL1_TOKEN"):
            remote.evaluate(ADD, program())
        monkeypatch.setenv("CUDAL1_TOKEN", "0123456789abcdef")
        with RemoteEvaluator(service.url) as remote:
            assert remote.evaluate(ADD, program()).correct
        with RemoteEvaluator(service.url, token="0123456789abcdef\n") as remote:
            assert remote.evaluate(ADD, program()).correct
        with pytest.raises(SettingsError, match="one line of the token file"):
            RemoteEvaluator(service.url, token="0123456789abcdef\nfedcba9876543210\n")


def test_other_addresses_than_loopback_need_a_token_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--token-file"):
        read_tokens(None, "0.0.0.0")
    assert read_tokens(None, "127.0.0.1") == ()
    tokens = tmp_path / "tokens"
    for text in ("", "short\n"):
        tokens.write_text(text)
        with pytest.raises(SettingsError, match="16 characters"):
            read_tokens(tokens, "0.0.0.0")
    tokens.write_text("0123456789abcdef\n\nfedcba9876543210\n")
    assert read_tokens(tokens, "0.0.0.0") == ("0123456789abcdef", "fedcba9876543210")


def test_own_tasks_are_judged_where_that_is_allowed(service: Running) -> None:
    own = task("own")
    with RemoteEvaluator(service.url) as remote, pytest.raises(SettingsError, match="--allow-tasks"):
        remote.evaluate(own, program())
    with serving(allow_tasks=True) as other, RemoteEvaluator(other.url) as remote:
        record = remote.evaluate(own, program())
        assert record.task_source == own.source
        sent = order("x", task="toy/own", reference="class Model: pass")
        assert post(other, sent)[0] == 422


# --- what breaks ---------------------------------------------------------------------------------------------------


def test_a_full_queue_turns_requests_away_and_the_client_comes_back() -> None:
    with serving(max_queued=2) as service, ThreadPoolExecutor(4) as clients, RemoteEvaluator(service.url) as remote:
        held = clients.submit(remote.evaluate, ADD, program(1.0, "# hold"))
        wait_until(lambda: service.dispatcher.slots[0].state == "judging")
        assert post(service, order("a"), order("b"), wait_s=0)[0] == 202
        status, headers, reply = post(service, order("c"), wait_s=0)
        assert (status, reply["error"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        late = clients.submit(remote.evaluate, ADD, program(2.0, "late"))
        service.gate.set()
        assert held.result().correct
        assert late.result().correct


def test_a_machine_that_breaks_is_never_a_verdict() -> None:
    with serving() as service:
        status, headers, reply = post(service, order(program(1.0, "# broken machine")), order(program(2.0)))
        assert status == 503
        assert "retry-after" in headers
        assert [one["kind"] for one in reply["outcomes"]] == ["broken", "verdict"]
        assert len(service.judges) == 3  # together, alone, and the one that works now
        with RemoteEvaluator(service.url) as remote, pytest.raises(MachineError, match="broke 3 times"):
            remote.evaluate(ADD, program(1.0, "# broken machine"))


def test_a_judge_that_does_not_start_again_goes_out_of_service_and_comes_back() -> None:
    judges = iter([PreparedJudge, broken_judge, broken_judge, broken_judge, PreparedJudge])
    with serving(begins=[lambda: next(judges)()], retry_s=0.3) as service:
        status, _, reply = post(service, order(program(1.0, "# broken machine")))
        assert status == 503
        assert "no judge is in service" in reply["outcomes"][0]["message"]
        status, _, text = ask(service, "GET", "/health")
        assert status == 503
        assert json.loads(text)["state"] == "broken"
        assert "off the bus" in json.loads(text)["messages"][0]
        with RemoteEvaluator(service.url) as remote:
            assert remote.evaluate(ADD, program(2.0)).correct


def test_one_broken_gpu_leaves_the_other_at_work() -> None:
    with serving(begins=[FailingJudge, PreparedJudge]) as service, RemoteEvaluator(service.url) as remote:
        number = 0
        while service.dispatcher.slots[0].state != "out":
            records = remote.evaluate_many([(ADD, program(2.0, f"{number} {one}")) for one in range(8)])
            assert all(record.correct for record in records)
            number += 1
            assert number < 200
        about = json.loads(ask(service, "GET", "/health")[2])
        assert (about["state"], about["judges"]) == ("degraded", 1)


def test_a_stop_finishes_what_is_leased_and_lets_go_of_the_rest() -> None:
    with serving() as service, ThreadPoolExecutor(2) as clients:
        leased = clients.submit(post, service, order(program(1.0, "# hold")))
        wait_until(lambda: service.dispatcher.slots[0].state == "judging")
        waiting = clients.submit(post, service, order(program(2.0)))
        wait_until(lambda: service.dispatcher.queued == 1)
        service.server.handle_exit(15, None)
        status, _, reply = waiting.result()
        assert (status, reply["outcomes"][0]["kind"]) == (503, "broken")
        assert "stopping" in reply["outcomes"][0]["message"]
        service.gate.set()
        assert leased.result()[2]["outcomes"][0]["kind"] == "verdict"
        service.stop()


def test_a_restarted_service_returns_the_same_record(tmp_path: Path) -> None:
    sent = order(program(2.0))
    store = tmp_path / "verdicts.sqlite"
    with serving(store=store) as service:
        first = post(service, sent)[2]
    with serving(store=store) as service:
        assert post(service, sent)[2] == first
        assert post(service, order(program(2.0), salt="new"))[2]["outcomes"][0]["record"]["ordinal"] == 2
        assert len(service.judges[0].jobs) == 1


def test_a_stored_record_that_cannot_be_read_is_judged_again(tmp_path: Path) -> None:
    sent = order(program(2.0))
    with serving(store=tmp_path / "store") as service:
        assert post(service, sent)[0] == 200
        service.dispatcher.store._db.execute("UPDATE verdicts SET record = '{}'")
        status, _, reply = post(service, sent)
        assert (status, reply["outcomes"][0]["record"]["ordinal"]) == (200, 2)
        assert post(service, sent)[2] == reply


def test_a_service_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as service:
        url, port = service.url, int(service.url.rsplit(":", 1)[1])
        service.stop()
    remote = RemoteEvaluator(url, patience_s=0.5)
    with pytest.raises(MachineError, match=r"gave no answer for 0 s: ConnectionRefusedError.*cudal1-env serve"):
        remote.evaluate(ADD, program())
    assert "ConnectionRefusedError" in caplog.text
    assert port


@contextlib.contextmanager
def page(status: int, *, after_health: bytes = b"") -> Iterator[str]:
    """A web server that answers with a page, except for what `/health` may say."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            healthy = after_health and self.path == "/health"
            text = after_health if healthy else b"<html>It works!</html>"
            self.send_response(200 if healthy else status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("healthy", [False, True])
def test_a_page_of_another_server_is_not_taken_for_a_reply(service: Running, status: int, healthy: bool) -> None:
    about = ask(service, "GET", "/health")[2] if healthy else b""
    told = rf"status {status}: <html>It works!</html>; check the address"
    with page(status, after_health=about) as url, pytest.raises(MachineError, match=told):
        RemoteEvaluator(url, patience_s=0.3).evaluate(ADD, program())


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8011", "http://", "http://a:99999", "http://a:port", "http://[::1", "http://a..b", "http://a b"]
)
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingsError, match=r"is not the URL of a service .*; write it as http://HOST:PORT"):
        RemoteEvaluator(url)


def test_a_url_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="holds no name or password; put its token into CUDAL1_TOKEN") as error:
        RemoteEvaluator("http://me:hidden@127.0.0.1:8011")
    assert "hidden" not in str(error.value)


def test_verdicts_are_told_when_the_store_is_full(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as other:
        other.dispatcher.store._db.execute("PRAGMA max_page_count = 1")
        sent = order(program(2.0, "x" * 50_000))
        status, _, reply = post(other, sent)
        assert (status, reply["outcomes"][0]["kind"]) == (200, "verdict")
        assert post(other, sent)[2] == reply
        assert "full" in json.loads(ask(other, "GET", "/health")[2])["messages"][0]
        assert json.loads(ask(other, "GET", "/health")[2])["state"] == "degraded"


def test_a_store_that_was_full_gets_all_once_there_is_room(small_disk: Path) -> None:
    path, filler = small_disk / "store", small_disk / "filler"
    with serving(store=path) as service:
        post(service, order(program(2.0, "first")))
        filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
        sent = [order(program(2.0, f"{number} {'x' * 9000}")) for number in range(4)]
        told = [post(service, one)[2]["outcomes"][0]["record"] for one in sent]
        service.dispatcher.store.disclose({"c0ffee": "5eed"})
        assert post(service, order(sent[0]["program"], salt="again"))[0] == 200
        assert "full" in json.loads(ask(service, "GET", "/health")[2])["messages"][0]
        filler.unlink()
        post(service, order(program(2.0, "last")))
        assert json.loads(ask(service, "GET", "/health")[2])["state"] == "ok"
    with serving(store=path) as service:
        again = [post(service, one)[2]["outcomes"][0]["record"] for one in sent]
        assert [one["id"] for one in again] == [one["id"] for one in told]
        assert service.dispatcher.store.seeds(["c0ffee"]) == {"c0ffee": "5eed"}
        drawn = post(service, order(sent[0]["program"], salt="third"))[2]["outcomes"][0]["record"]
        assert (drawn["ordinal"], len(service.judges[0].jobs)) == (3, 1)


def test_the_store_drops_its_oldest_verdicts(tmp_path: Path) -> None:
    with serving(store=tmp_path / "store") as service:
        service.dispatcher.store._max_records = 3
        for number in range(5):
            post(service, order(program(2.0, str(number))))
        rows = service.dispatcher.store._db.execute("SELECT count(*) FROM verdicts").fetchall()
    assert rows == [(3,)]


def test_judges_of_different_models_are_refused() -> None:
    models = iter(["H100", "H200"])
    slots = [Slot(f"gpu{number}", lambda: PreparedJudge(model=next(models))) for number in range(2)]
    with pytest.raises(SettingsError, match="one GPU model"):
        Dispatcher(slots, Store(), Metrics()).start()


def test_a_service_without_a_judge_does_not_start() -> None:
    with pytest.raises(MachineError, match="off the bus"):
        Dispatcher([Slot("gpu0", broken_judge)], Store(), Metrics()).start()


@pytest.mark.slow
def test_a_judge_in_a_process_that_fails_says_why() -> None:
    begin = Begin(JudgeSettings(device="cpu"), ())
    with (
        contextlib.closing(JudgeProcess(begin, gpu=None, deadline_s=60.0)) as judge,
        pytest.raises(MachineError, match="the judge failed with AttributeError"),
    ):
        judge.evaluate_each([(Task.model_construct(id="file/nothing"), "")], lambda *_: None)


# --- what it says of itself ----------------------------------------------------------------------------------------


def test_status_says_who_holds_the_lease_and_what_is_waited_for() -> None:
    with serving() as service:
        assert post(service, order(program(1.0, "# hold")), wait_s=0)[0] == 202
        wait_until(lambda: service.dispatcher.slots[0].state == "judging")
        post(service, order(program(2.0)), wait_s=0)
        found = json.loads(ask(service, "GET", "/status")[2])
        assert found["queued"] == 1
        (judge,) = found["judges"]
        assert (judge["state"], judge["tasks"], judge["jobs"]) == ("judging", ["toy/add"], 1)
        assert judge["age_s"] >= 0
        assert "gpu0 to finish 1 programs of toy/add" in found["waiting_for"]


def test_metrics_are_in_prometheus_text_format(service: Running) -> None:
    post(service, order(program(2.0, "metrics")))
    status, headers, text = ask(service, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'cudal1_verdicts_total{status="CORRECT"}' in text
    assert b"cudal1_judges_in_service 1.0" in text


def test_64_clients_lose_nothing() -> None:
    """What `benchmarks/serve.py` does at length."""
    with serving(judges=2) as service:
        barrier = threading.Barrier(64)

        def client(number: int) -> list[str]:
            with RemoteEvaluator(service.url) as remote:
                barrier.wait()
                sources = [program(2.0, f"{number} {one}") for one in range(4)]
                return [remote.evaluate(suite()[one % 3], source).source for one, source in enumerate(sources)]

        with ThreadPoolExecutor(64) as clients:
            found = Counter(source for sources in clients.map(client, range(64)) for source in sources)
        assert len(found) == 256
        assert sum(len(judge.jobs) for judge in service.judges) == 256


# --- who takes a URL -----------------------------------------------------------------------------------------------


def test_environments_take_a_url(service: Running) -> None:
    with contextlib.closing(CudaOptEnv(suite(), evaluator=service.url)) as env:
        env.reset(seed=0)
        _, reward, _, _, info = env.step(program(2.0))
        assert reward > 1.5
        assert info["evaluation"].ordinal == 1
        assert env.device == "cpu"
    with contextlib.closing(CudaOptVectorEnv(3, suite(), evaluator=service.url)) as env:
        env.reset(seed=0)
        assert (env.step([program(2.0, "vector")] * 3)[1] > 1.5).all()
    with pytest.raises(SettingsError, match="judges on cpu"):
        CudaOptEnv(suite(), evaluator=service.url, device="cuda")


def test_a_program_and_its_seed_reach_the_archive(service: Running, tmp_path: Path) -> None:
    seed = "cd" * 16
    commitment = hashlib.sha256(bytes.fromhex(seed)).hexdigest()
    service.judges[0].commitment = commitment
    env = CudaOptEnv(suite(), evaluator=service.url, archive=tmp_path / "archive.sqlite")
    env.reset(seed=0)
    env.step(program(2.0, "archived"))
    service.judges[0].seeds = {commitment: seed}
    with RemoteEvaluator(service.url) as remote:
        remote.evaluate(ADD, program(2.0, "another batch, after which the pool has retired"))
    wait_until(lambda: service.dispatcher.store.seeds([commitment]))
    env.close()
    with Archive(tmp_path / "archive.sqlite") as archive:
        assert archive.evaluations()[0].seed == seed


def test_campaigns_take_a_url(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.jsonl"
    sources = [program(2.0, "of a sweep"), "# status CRASH\nclass ModelNew: pass"]
    file.write_text("\n".join(evaluation(ADD.id, source).model_dump_json() for source in sources))
    with serving(allow_tasks=True) as open_service:
        command = ["cudal1-env", "sweep", str(file), "--url", open_service.url, "--out", str(tmp_path / "out.jsonl")]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert "CRASH" in capsys.readouterr().err
        monkeypatch.setattr("sys.argv", [*command, "--baselines", "compile"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "--url exclude each other" in capsys.readouterr().err
        monkeypatch.setattr("sys.argv", ["cudal1-env", "redteam", "--url", open_service.url, "--only", "h16", "--json"])
        with pytest.raises(SystemExit):
            main()
        assert json.loads(capsys.readouterr().out)["summary"]["attacks"] == 1


# --- processes -----------------------------------------------------------------------------------------------------

SERVE_SLOWLY = """
import sys, time
from pathlib import Path
from env.services import SlowJudge, serving

with serving(begins=[SlowJudge], store=Path(sys.argv[1]), port=int(sys.argv[2])) as running:
    print(running.url, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_service_that_is_killed_in_the_middle_loses_nothing(repository: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(repository / "tests")}

    def start(port: int) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", SERVE_SLOWLY, str(tmp_path / "store"), str(port)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    first, url = start(0)
    sources = [program(2.0, str(number)) for number in range(60)]
    with ThreadPoolExecutor(1) as client, RemoteEvaluator(url, salt="same") as remote:
        told = client.submit(remote.evaluate_many, [(ADD, source) for source in sources])
        time.sleep(1.0)
        first.kill()
        first.communicate()
        second, _ = start(int(url.rsplit(":", 1)[1]))
        try:
            records = told.result(120)
            assert [record.source for record in records] == sources
            assert {record.ordinal for record in records} == {1}
            again = RemoteEvaluator(url, salt="same")
            assert [one.id for one in again.evaluate_many([(ADD, source) for source in sources])] == [
                record.id for record in records
            ]
            again.close()
        finally:
            second.kill()
            second.communicate()


def serve(*arguments: str) -> subprocess.Popen[str]:
    """The command in a process, on the CPU and a free port."""
    command = [sys.executable, "-c", "from cudal1_env.cli import main; main()", "serve", "--device", "cpu"]
    return subprocess.Popen([*command, "--port", "0", *arguments], stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[str]:
    """Pids of a process's children."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [one for thread in threads for one in (thread / "children").read_text().split()]


@pytest.mark.slow
def test_the_command_warns_of_readable_tokens_and_ends_at_ctrl_c_while_its_judge_starts(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    tokens.chmod(0o644)
    process = serve("--token-file", str(tokens))
    try:
        wait_until(lambda: children(process.pid), 60)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert f"chmod 600 {tokens}" in errors
        assert "interrupted" in errors
        assert process.returncode == 130
    finally:
        process.kill()


@pytest.mark.slow
def test_a_second_stop_signal_loses_no_verdict(tmp_path: Path) -> None:
    process = serve("--store", str(tmp_path / "store"))
    try:
        assert process.stderr is not None
        url = next(part for part in process.stderr.readline().split() if part.startswith("http://"))
        task = load_suite("starter", device="cpu")["matvec_chain"]
        one = Order(task=task.id, reference_sha256=digest(task.source), program=f"{task.source}\n\nModelNew = Model\n")
        with contextlib.closing(RemoteEvaluator(url)) as remote:
            remote._post(Orders(jobs=(one,)))
            wait_until(lambda: b"judging" in remote._once("GET", "/status", None, 10.0)[2])
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert "stopped after the jobs" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
    with contextlib.closing(sqlite3.connect(tmp_path / "store")) as db:
        assert db.execute("SELECT count(*) FROM verdicts").fetchall() == [(1,)]


@pytest.mark.slow
def test_the_command_serves_real_verdicts_and_ends_clean() -> None:
    suite = load_suite("starter", device="cpu")
    process = serve()
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving" in line, line
        url = next(part for part in line.split() if part.startswith("http://"))
        task = suite["matvec_chain"]
        with RemoteEvaluator(url) as remote:
            right, wrong = remote.evaluate_many(
                [(task, f"{task.source}\n\nModelNew = Model\n"), (task, "ModelNew = None")], precision="correct"
            )
        assert (right.status, right.machine and right.machine.name) == (Status.CORRECT, remote.about.model)
        assert not wrong.correct
        assert right.seed is None
        assert right.seed_commitment is not None
        judges = children(process.pid)
        assert len(judges) == 1
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "stopped after the jobs" in errors
    assert not Path(f"/proc/{judges[0]}").exists()


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="the port is 99999; choose a --port from 0 to 65535"):
        listen("127.0.0.1", 99999)
