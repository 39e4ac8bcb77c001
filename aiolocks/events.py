"""What happens to locks in this process, told as it happens: for metrics, traces and logs of your own.

For OpenTelemetry there is `aiolocks.otel`.
"""

from ._core.events import Event, on_event

__all__ = ["Event", "on_event"]
