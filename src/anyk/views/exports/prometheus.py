"""The state of a running training for Prometheus, served over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Annotated, Any

from msgspec import Meta

from anyk.base import BadInput, as_bad_input, needing, typed, values_of
from anyk.runs.api import Callback, EvaluationInfo, LostInfo, RunInfo, StepInfo

Port = Annotated[int, Meta(ge=0, le=65535)]


class Metrics(Callback, AbstractContextManager["Metrics"]):
    """Serves steps, seconds, loss, residual, staleness, and the share of steps that used each worker.

    A callback for :func:`anyk.train` and others. ``port``: 0 takes a free port (see :attr:`url`); ``host``: the address
    to listen at, by default of this machine only. In a race the numbers describe the current run. The server runs in a
    thread until :meth:`close`, as by ``with``; the run itself only counts.

    Raises :class:`~anyk.BadInput` if the port is in use or not allowed, and
    :class:`~anyk.base.errors.MissingPackage` without prometheus_client (``anyk[metrics]``).

    >>> import anyk, urllib.request
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=4")
    >>> with Metrics(0) as metrics:
    ...     run = anyk.train(problem, "uncoded", "simulated", workers=2, steps=3, callbacks=[metrics])
    ...     page = urllib.request.urlopen(metrics.url).read().decode()
    >>> [line for line in page.splitlines() if line.startswith("anyk_steps")]
    ['anyk_steps_total{model="model",strategy="uncoded"} 3.0']
    """

    @typed
    def __init__(self, port: Port, host: str = "127.0.0.1") -> None:
        with needing("prometheus_client", "metrics", "serving metrics"):
            from prometheus_client import CollectorRegistry, start_http_server
        self._info: RunInfo | None = None
        self._steps: dict[str, StepInfo] = {}
        self._evaluated: dict[str, tuple[int, float | None, float | None]] = {}
        self._taken: Counter[str] = Counter()
        self._used: Counter[int] = Counter()
        self._lost: Counter[int] = Counter()
        registry = CollectorRegistry()
        registry.register(self)
        with as_bad_input(f"metrics cannot be served at {host}:{port}; choose another port"):
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ------------------------------------------------------------------------------------------- events

    def on_begin(self, info: RunInfo) -> None:
        for counters in (self._steps, self._evaluated, self._taken, self._used, self._lost):
            counters.clear()
        self._info = info

    def on_step(self, info: StepInfo) -> None:
        self._taken[info.slot] += 1
        self._used.update(info.record.used_by)
        self._steps[info.slot] = info

    def on_evaluation(self, info: EvaluationInfo) -> None:
        if info.step >= self._evaluated.get(info.slot, (0,))[0]:
            self._evaluated[info.slot] = info.step, info.loss, info.metric

    def on_worker_lost(self, info: LostInfo) -> None:
        self._lost[info.worker] += 1

    # ------------------------------------------------------------------------------------------- metrics

    def collect(self) -> Iterator[Any]:
        """Yield the current metrics, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        info = self._info
        if info is None:
            return
        strategy = info.strategy
        of_model = [
            ("steps", CounterMetricFamily, "Steps taken since the run began or was resumed."),
            ("version", GaugeMetricFamily, "Newest version of the model."),
            ("seconds", GaugeMetricFamily, "Time of the newest step on the run's clock."),
            ("workers_used", GaugeMetricFamily, "Workers whose messages the newest step used."),
            ("residual", GaugeMetricFamily, "Residual of the newest step."),
            ("staleness", GaugeMetricFamily, "Mean staleness of its messages, in versions."),
            ("loss", GaugeMetricFamily, "Loss of the newest version that was evaluated."),
            ("metric", GaugeMetricFamily, f"Its metric, {info.metric}."),
        ]
        values = {slot: self._of(slot, step) for slot, step in list(self._steps.items())}
        for name, family, help_text in of_model:
            metric = family(f"anyk_{name}", help_text, labels=("model", "strategy"))
            for slot, current in values.items():
                if current[name] is not None:
                    metric.add_metric((slot, strategy), current[name])
            yield metric
        total = sum(self._taken.values())
        on_time = GaugeMetricFamily(
            "anyk_worker_on_time_share", "Share of the steps that used the worker.", labels=("strategy", "worker")
        )
        lost = CounterMetricFamily(
            "anyk_worker_losses", "How often the worker was lost.", labels=("strategy", "worker")
        )
        for worker in range(info.config.workers.most):
            if total:
                on_time.add_metric((strategy, str(worker)), self._used[worker] / total)
            lost.add_metric((strategy, str(worker)), self._lost[worker])
        yield on_time
        yield lost
        about = InfoMetricFamily("anyk_run", "What runs.")
        about.add_metric((), {name: value for name, value in info.settings.items() if name.isidentifier()})
        yield about

    def _of(self, slot: str, step: StepInfo) -> dict[str, float | None]:
        _, loss, metric = self._evaluated.get(slot, (0, step.loss, step.metric))
        return {
            **values_of(step, "seconds", "residual", "staleness"),
            "steps": self._taken[slot],
            "version": step.step,
            "workers_used": step.workers,
            "loss": loss,
            "metric": metric,
        }


def address(text: str) -> tuple[int, str]:
    """Return port and host of ``PORT`` or ``HOST:PORT``; raise :class:`~anyk.BadInput` for anything else.

    >>> address("9100"), address("0.0.0.0:9100")
    ((9100, '127.0.0.1'), (9100, '0.0.0.0'))
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        raise BadInput(f"--metrics takes PORT or HOST:PORT, as in 9100, got '{text}'")
    return int(port), host or "127.0.0.1"
