"""Client of a service: an `Evaluator` that sends programs to `cudal1-env serve`, with the standard library's HTTP."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import logging
import os
import random
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar, get_args

from cudal1_data import Task
from cudal1_data.hashes import digest
from pydantic import TypeAdapter, ValidationError

from cudal1_env.errors import MachineError, SettingsError, TaskError, check_choice
from cudal1_env.evaluator import ByEach
from cudal1_env.records import PROTOCOL_VERSION, Device, Evaluation, Precision
from cudal1_env.wire import MAX_JOBS, About, Order, Orders, Outcome, Outcomes, Refusal

TOKEN = "CUDAL1_TOKEN"
"""Environment variable that holds the token."""
_POLL_S = 20.0
_MARGIN_S = 30.0
"""Time for a reply beyond the wait that the request allows."""
_TRIES = 3
"""How often a job whose judge broke is posted."""
_MAX_PAUSE_S = 30.0
_FIRST_S = 30.0
"""How long the first request is repeated: the service may be starting, or the address may be wrong."""
_log = logging.getLogger(__name__)

_Reply = TypeVar("_Reply")
_ABOUT = TypeAdapter(About)
_OUTCOMES = TypeAdapter(Outcomes)
_SEEDS = TypeAdapter(dict[str, str])


class RemoteEvaluator(ByEach):
    """An `Evaluator` whose judges are behind a URL.

    A call waits as long as the service reports its verdicts as pending. Each evaluation of the same program is a new
    draw, as with a local judge; the record's `ordinal` counts them. A job that the network or the service loses is
    posted again, without a new draw.

    Args:
        url: URL of the service, such as `http://127.0.0.1:8011`.
        token: Token from its token file; None takes the environment variable `CUDAL1_TOKEN`, if it is set.
        salt: Part of each job's key; None takes a new one. With an earlier evaluator's salt, the same calls return the
            same records.
        patience_s: How long the service may be unreachable or failing; for the first request, at most 30 s.

    Raises:
        SettingsError: The URL or the token is invalid.
    """

    def __init__(
        self, url: str, *, token: str | None = None, salt: str | None = None, patience_s: float = 600.0
    ) -> None:
        self.url = url.rstrip("/")
        self._parts = _parts(url)
        self._token = (os.environ.get(TOKEN, "") if token is None else token).strip()
        if not (self._token.isascii() and self._token.isprintable()):
            raise SettingsError(
                f"the token is not one line of ASCII text; set {TOKEN}, or token=, to one line of the token file"
            )
        self._salt = uuid.uuid4().hex if salt is None else salt
        self._patience_s = patience_s
        self._drawn: Counter[tuple[str, str, str, str]] = Counter()
        self._commitments: set[str] = set()
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        """Open connections that are not in use."""
        self._known: About | None = None

    @property
    def about(self) -> About:
        """The service's description of itself, requested once.

        Raises:
            MachineError: The service cannot be reached, or fails.
            SettingsError: The service has another protocol version, or refuses the token.
        """
        if self._known is None:
            about = self._ask("GET", "/health", None, 0.0, _ABOUT, min(self._patience_s, _FIRST_S))
            if about.protocol != PROTOCOL_VERSION:
                raise SettingsError(
                    f"{self.url} uses protocol {about.protocol} and this client {PROTOCOL_VERSION}; their "
                    "records are never compared: install the same version of cudal1-env on both sides"
                )
            self._known = about
        return self._known

    @property
    def device(self) -> Device:
        """Kind of device on which the service judges."""
        return self.about.device

    def evaluate_each(
        self,
        jobs: Sequence[tuple[Task, str]],
        done: Callable[[int, Evaluation | TaskError], None],
        *,
        precision: Precision = "training",
    ) -> None:
        """Judge many candidates and report each outcome; see `EachEvaluator`.

        Raises:
            MachineError: The service is unreachable or fails for longer than `patience_s`, or judges broke on a job
                three times.
            SettingsError: The service refuses these jobs, or the token.
        """
        orders = [self._order(task, source, precision) for task, source in jobs]
        parts = list(self._parts_of(orders))
        faults: Counter[int] = Counter()
        # All are posted before any wait: a judge forms its batch from the jobs in the queue.
        wait_s = 0.0 if len(parts) > 1 else _POLL_S
        while parts:
            left: list[list[int]] = []
            for number, part in enumerate(parts):
                reply = self._post(Orders(jobs=tuple(orders[index] for index in part), wait_s=wait_s))
                pending: list[int] = []
                for index, outcome in zip(part, reply.outcomes, strict=True):
                    if outcome.kind in ("pending", "broken"):
                        pending.append(index)
                    if outcome.kind == "broken":
                        faults[index] += 1
                        self._check_tries(faults[index], outcome)
                    elif outcome.kind == "refused":
                        done(index, TaskError(outcome.message))
                    elif outcome.record is not None:
                        done(index, self._received(outcome.record))
                if any(faults[index] for index in pending):
                    time.sleep(_pause_s(max(faults[index] for index in pending)))
                left += [pending] if pending else []
                if pending and wait_s:
                    left += parts[number + 1 :]
                    break
            parts, wait_s = left, _POLL_S

    def compare(self, task: Task, evaluation: Evaluation) -> Evaluation:
        """Return the record unchanged: the service's settings decide which baselines it measures."""
        return evaluation

    def retire(self) -> dict[str, str]:
        """Return the seeds (hex) of this evaluator's verdicts that the service has disclosed, by commitment.

        This retires no seed, because other clients use the service's seeds.
        """
        with self._lock:
            asked = sorted(self._commitments)
        found: dict[str, str] = {}
        for start in range(0, len(asked), 1024):
            body = json.dumps({"commitments": asked[start : start + 1024]}).encode()
            found |= self._ask("POST", "/v1/seeds", body, 0.0, _SEEDS)
        return found

    def close(self) -> None:
        """Close the connections; the service keeps running."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- jobs --------------------------------------------------------------------------------------------------

    def _order(self, task: Task, source: str, precision: Precision) -> Order:
        check_choice("precision", precision, get_args(Precision))
        program = source.encode("utf-8", "replace").decode()  # UTF-8 cannot encode lone surrogates
        reference_sha256 = digest(task.source)
        with self._lock:
            asked = task.id, reference_sha256, digest(program), precision
            self._drawn[asked] += 1
            salt = f"{self._salt}/{self._drawn[asked]}"
        return Order(
            task=task.id,
            reference_sha256=reference_sha256,
            reference=task.source if self.about.allow_tasks else None,
            program=program,
            precision=precision,
            salt=salt,
        )

    def _parts_of(self, orders: Sequence[Order]) -> Iterator[list[int]]:
        """Divide jobs into requests of at most `MAX_JOBS` jobs and the service's body size."""
        limit = self.about.max_body_bytes - 1024
        part: list[int] = []
        size = 0
        for index, order in enumerate(orders):
            own = len(order.model_dump_json()) * 4  # at most 4 bytes a character
            own = own if own <= limit else len(order.model_dump_json().encode())
            if own > limit:
                raise SettingsError(
                    f"{order.task}: a job of {own} bytes is longer than {self.url} accepts ({limit}); send shorter "
                    "programs, or serve with a larger --max-body-bytes"
                )
            if part and (len(part) == MAX_JOBS or size + own > limit):
                yield part
                part, size = [], 0
            part.append(index)
            size += own + 1
        if part:
            yield part

    def _received(self, record: Evaluation) -> Evaluation:
        model = self.about.model
        if record.machine is not None and record.machine.name != model:
            raise SettingsError(
                f"{self.url} judged on {record.machine.name} and before on {model}; verdicts of different models are "
                "never compared: start a new run"
            )
        if record.seed_commitment is not None:
            with self._lock:
                self._commitments.add(record.seed_commitment)
        return self._limited_by_audits(record)

    def _check_tries(self, faults: int, outcome: Outcome) -> None:
        if faults >= _TRIES:
            raise MachineError(f"{self.url} broke {faults} times while it judged one program: {outcome.message}")

    def _post(self, orders: Orders) -> Outcomes:
        body = orders.model_dump_json(exclude_none=True).encode()
        return self._ask("POST", "/v1/verdicts", body, orders.wait_s, _OUTCOMES)

    # --- HTTP --------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        wait_s: float,
        form: TypeAdapter[_Reply],
        patience_s: float | None = None,
    ) -> _Reply:
        """Return a reply; repeat the request while the service is unreachable, failing or busy.

        What answers 200 in another form, such as a proxy's page, is not the service: it counts as unreachable.

        Raises:
            MachineError: The service fails for longer than `patience_s` (default: the evaluator's).
            SettingsError: The service refuses the request.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        asked_since = time.monotonic()
        for attempt in itertools.count(1):
            pause_s = _pause_s(attempt)
            try:
                status, retry_after, text = self._once(method, path, body, wait_s + _MARGIN_S)
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status in (200, 202) or (status == 503 and form is _OUTCOMES):
                    with contextlib.suppress(ValidationError):
                        return form.validate_json(text)
                message = _message(text)
                if status < 500 and status not in (200, 202, 408, 429):
                    raise SettingsError(f"{self.url} refuses (status {status}): {message}{self._hint(status)}")
                problem = f"status {status}: {message}"
                pause_s = max(pause_s, retry_after) if status == 429 else pause_s
                if status == 429:  # the service works; its queue is full
                    asked_since = time.monotonic()
            if time.monotonic() + pause_s - asked_since > patience_s:
                raise MachineError(
                    f"{self.url} gave no answer for {patience_s:.0f} s: {problem}; check the address, or start the "
                    "service with: cudal1-env serve"
                )
            if attempt == 1:
                _log.warning("%s: %s; asking again for %.0f s", self.url, problem, patience_s)
            time.sleep(pause_s)
        raise AssertionError("the count does not end")

    def _once(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, float, bytes]:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._connection()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            reply = connection.getresponse()
            text = reply.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        retry_after = reply.headers.get("Retry-After", "0")
        return reply.status, float(retry_after) if retry_after.isdecimal() else 0.0, text

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port)

    def _hint(self, status: int) -> str:
        return f"; set the environment variable {TOKEN}, or give token=" if status == 401 else ""


def _pause_s(attempt: int) -> float:
    """Return the pause before the next try: exponential backoff with jitter."""
    return min(_MAX_PAUSE_S, 0.25 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)


def _parts(url: str) -> urllib.parse.SplitResult:
    """Return the parts of a service's URL.

    Raises:
        SettingsError: It is not a URL that HTTP can reach.
    """
    if "@" in url.partition("://")[2].partition("/")[0]:  # messages and logs show the URL
        raise SettingsError(f"the URL of a service holds no name or password; put its token into {TOKEN}")
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it lacks http:// or the host")
        parts.hostname.encode("idna")  # so do sockets
        http.client.HTTPConnection(parts.hostname, parts.port)  # opens no connection
    except (ValueError, http.client.InvalidURL) as error:
        raise SettingsError(f"{url!r} is not the URL of a service ({error}); write it as http://HOST:PORT") from error
    return parts


def _message(text: bytes) -> str:
    try:
        return Refusal.model_validate_json(text).message
    except ValidationError:
        return text[:200].decode("utf-8", "replace")
