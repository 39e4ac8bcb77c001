"""Events of all locks in this process, for your own metrics, traces and logs. For OpenTelemetry use `aiolocks.otel`."""

from ._core.events import Event, on_event

__all__ = ["Event", "on_event"]
