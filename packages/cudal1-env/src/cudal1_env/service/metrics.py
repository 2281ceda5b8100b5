"""Metrics of the service, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """Metrics of one service, in their own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        at = self._registry
        self.verdicts = Counter("cudal1_verdicts", "Verdicts that were made.", ["status"], registry=at)
        self.refused = Counter("cudal1_refused_tasks", "Jobs whose task cannot be judged.", registry=at)
        self.repeated = Counter("cudal1_repeated_jobs", "Jobs that were posted before.", registry=at)
        self.faults = Counter("cudal1_judge_faults", "How often a judge broke.", ["judge"], registry=at)
        self.turned_away = Counter("cudal1_turned_away_requests", "Requests for which the queue was full.", registry=at)
        self.queued = Gauge("cudal1_queued_jobs", "Jobs that wait for a judge.", registry=at)
        self.leased = Gauge("cudal1_leased_jobs", "Jobs that judges have taken.", registry=at)
        self.judges = Gauge("cudal1_judges_in_service", "Judges that work.", registry=at)
        self.wait_s = Histogram("cudal1_wait_seconds", "From post to lease.", buckets=_SECONDS, registry=at)
        self.lease_s = Histogram("cudal1_lease_seconds", "From lease to verdict.", buckets=_SECONDS, registry=at)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
