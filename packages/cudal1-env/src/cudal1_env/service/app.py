"""The service's routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cudal1_data import Task
from cudal1_data.hashes import digest
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cudal1_env.errors import MachineError, TaskError
from cudal1_env.records import PROTOCOL_VERSION, Evaluation
from cudal1_env.service.access import Access, refuse
from cudal1_env.service.dispatch import Dispatcher, Job, QueueFullError
from cudal1_env.service.slot import JudgeFacts, SlotStatus
from cudal1_env.service.store import Key
from cudal1_env.wire import About, Commitments, Order, Orders, Outcome, Outcomes

_RETRY_AFTER = {"Retry-After": "5"}


@dataclass(frozen=True)
class AppOptions:
    """What the service accepts."""

    tasks: Mapping[str, Task]
    """Tasks of its suites, by id."""
    allow_tasks: bool = False
    """Whether clients may send their own tasks."""
    tokens: tuple[str, ...] = ()
    """Accepted tokens; if empty, every user of this machine is accepted."""
    settings: str = ""
    """Settings of the judge as text, part of a job's key."""
    max_body_bytes: int = 8 << 20
    """Maximum size of a request's body."""


class Status(BaseModel):
    """Reply to `GET /status`: the queue and the judges."""

    model_config = ConfigDict(frozen=True)

    queued: int
    """Number of jobs that wait for a judge."""
    oldest_s: float
    """How long the oldest of them has waited, in seconds."""
    judges: tuple[SlotStatus, ...]
    """State and lease of each judge."""
    waiting_for: str
    """What the oldest job waits for; empty if none waits."""
    store_fault: str
    """Why verdicts are not stored; empty if they are."""


class _Refused(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def create_app(dispatcher: Dispatcher, facts: JudgeFacts, options: AppOptions) -> FastAPI:
    """Return the service's ASGI application.

    Args:
        dispatcher: A started dispatcher; the application stops it when it ends.
        facts: What `Dispatcher.start` returned.
        options: What the service accepts.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await run_in_threadpool(dispatcher.stop)

    app = FastAPI(title="cudal1-env", docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.post("/v1/verdicts", response_model=Outcomes)
    async def verdicts(orders: Orders, request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        owner: str = request.state.owner
        try:
            jobs = [_job(order, owner, facts, options) for order in orders.jobs]
            futures = await run_in_threadpool(dispatcher.submit, jobs)
        except _Refused as refused:
            return refused.response
        except QueueFullError as full:
            message = f"the queue is full ({dispatcher.max_queued} jobs); post these again in {full.retry_after_s} s"
            return refuse(429, "queue_full", message, **{"Retry-After": str(full.retry_after_s)})
        except MachineError as error:
            return refuse(503, "machine", str(error), **_RETRY_AFTER)
        await _finished(futures, orders.wait_s)
        return _reply([_outcome(future) for future in futures])

    @app.post("/v1/seeds")
    async def seeds(asked: Commitments) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return await run_in_threadpool(dispatcher.store.seeds, asked.commitments)

    @app.get("/health", response_model=About)
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction]
        about = _about(dispatcher, facts, options)
        status = 200 if about.state in ("ok", "degraded") else 503
        return Response(about.model_dump_json(), status, media_type="application/json")

    @app.get("/status")
    async def status() -> Status:  # pyright: ignore[reportUnusedFunction]
        return _status(dispatcher)

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(dispatcher.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        faults = list(error.errors())
        if any(fault["type"] == "json_invalid" for fault in faults):
            return refuse(400, "malformed_json", "the body is not valid JSON")
        return refuse(422, "invalid", f"the body does not fit the schema in /openapi.json: {_places(faults)}")

    async def http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:  # a parse error other than incorrect syntax
            return refuse(400, "malformed_json", "the body is not valid JSON")
        routes = "the routes are /v1/verdicts, /v1/seeds, /health, /status, /metrics and /openapi.json"
        return refuse(error.status_code, "http", f"{error.detail}; {routes}")

    async def machine_error(_: Request, error: Exception) -> Response:
        return refuse(503, "machine", str(error), **_RETRY_AFTER)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(MachineError, machine_error)
    app.add_middleware(Access, tokens=options.tokens, max_body_bytes=options.max_body_bytes)
    return app


def _places(faults: Sequence[Any]) -> str:
    """Return the first faults of a body as text; if an item is faulty, pydantic also calls its list too short."""
    around = {fault["loc"][:size] for fault in faults for size in range(len(fault["loc"]))}
    told = [fault for fault in faults if fault["loc"] not in around]
    return "; ".join(f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}" for fault in told[:3])


def _job(order: Order, owner: str, facts: JudgeFacts, options: AppOptions) -> Job:
    key = Key.of(order, owner=owner, settings=options.settings, model=facts.model)
    return Job(key, _task(order, options), order.program, order.precision, order.salt)


def _task(order: Order, options: AppOptions) -> Task:
    """Return an order's task: the service's, or the client's if that is allowed.

    Raises:
        _Refused: It is neither.
    """
    own = options.tasks.get(order.task)
    if own is not None and digest(own.source) == order.reference_sha256:
        return own
    if options.allow_tasks and order.reference is not None:
        if digest(order.reference) != order.reference_sha256:
            raise _Refused(refuse(422, "invalid", f"{order.task!r}: reference_sha256 is not the hash of the reference"))
        return Task(id=order.task, source=order.reference, name=order.task, level=1, origin="client")
    if own is not None:
        message = (
            f"{order.task} has another text or size here than on the client; load the same suite on the same device"
        )
        raise _Refused(refuse(409, "other_task", f"{message}, or serve with --allow-tasks"))
    message = f"unknown task {order.task!r}; serve with the --suite that holds it, or with --allow-tasks"
    raise _Refused(refuse(404, "unknown_task", message))


async def _finished(futures: Sequence[Future[Evaluation]], wait_s: float) -> None:
    """Wait until all futures are done, or for `wait_s`."""
    waited = [asyncio.wrap_future(future) for future in futures if not future.done()] if wait_s > 0 else []
    for one in waited:
        one.add_done_callback(_seen)
    if waited:
        await asyncio.wait(waited, timeout=wait_s)


def _seen(future: asyncio.Future[Evaluation]) -> None:
    """Retrieve the exception, or asyncio warns; `_outcome` reads it from the concurrent future."""
    if not future.cancelled():
        future.exception()


def _outcome(future: Future[Evaluation]) -> Outcome:
    if not future.done():
        return Outcome(kind="pending")
    error = future.exception()
    if error is None:
        return Outcome(kind="verdict", record=future.result())
    return Outcome(kind="refused" if isinstance(error, TaskError) else "broken", message=str(error))


def _reply(outcomes: Sequence[Outcome]) -> Response:
    kinds = {one.kind for one in outcomes}
    status = 503 if "broken" in kinds else 202 if "pending" in kinds else 200
    body = Outcomes(outcomes=tuple(outcomes)).model_dump_json(ensure_ascii=True)
    return Response(body, status, media_type="application/json", headers=_RETRY_AFTER if status == 503 else {})


def _about(dispatcher: Dispatcher, facts: JudgeFacts, options: AppOptions) -> About:
    serving = sum(slot.serving for slot in dispatcher.slots)
    messages = [f"{slot.name}: {slot.message}" for slot in dispatcher.slots if slot.message]
    messages += [dispatcher.store.fault] if dispatcher.store.fault else []
    whole = serving == len(dispatcher.slots) and not dispatcher.store.fault
    return About(
        state="stopping" if dispatcher.stopping else "broken" if not serving else "ok" if whole else "degraded",
        messages=tuple(messages),
        protocol=PROTOCOL_VERSION,
        device=facts.device,
        model=facts.model,
        judges=serving,
        allow_tasks=options.allow_tasks,
        max_body_bytes=options.max_body_bytes,
    )


def _status(dispatcher: Dispatcher) -> Status:
    judges = tuple(slot.status() for slot in dispatcher.slots)
    waiting = ""
    if dispatcher.queued:
        busy = [
            f"{one.name} to finish {one.jobs} programs of {', '.join(one.tasks)} (since {one.age_s:.0f} s)"
            for one in judges
            if one.state == "judging"
        ]
        starting = [f"the judge on {one.name} to start" for one in judges if one.state == "starting"]
        waiting = " or ".join([*busy, *starting])
    return Status(
        queued=dispatcher.queued,
        oldest_s=round(dispatcher.oldest_s, 3),
        judges=judges,
        waiting_for=waiting,
        store_fault=dispatcher.store.fault,
    )
