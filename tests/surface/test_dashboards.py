"""The dashboard and the alerting rules: they use what `aiolocks.otel` gives, by the names that Prometheus sees."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY

from aiolocks._core.events import Event, Kind, emit
from aiolocks.otel import instrument

EXAMPLES = Path(__file__).parents[2] / "examples"

OF_HISTOGRAMS = {"acquired": "wait_duration_seconds_bucket", "released": "hold_duration_seconds_bucket"}
"""Events of which the seconds are watched, and not the number."""


@pytest.fixture(scope="module")
def exported() -> Iterator[dict[str, dict[str, set[str]]]]:
    """By the name of each metric, as Prometheus would scrape it: its labels, and their values."""
    meters = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    end = instrument(meter_provider=meters)
    for number, kind in enumerate(get_args(Kind), 1):
        emit(Event(kind, *(("", "") if kind == "polling" else ("orders:42", "lock")), 1.0, 7, number))
    found: dict[str, dict[str, set[str]]] = {}
    for sample in (sample for metric in REGISTRY.collect() for sample in metric.samples):
        if sample.name.startswith("aiolocks_"):
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    yield found
    end()
    meters.shutdown()


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    return loaded


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((EXAMPLES / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """Return each expression of both files, with what it is for."""
    of_panels = [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]]
    of_variables = [
        (one["name"], one["definition"].removeprefix("label_values"))
        for one in dashboard()["templating"]["list"]
        if one["type"] == "query"
    ]
    return [(rule["alert"], rule["expr"]) for rule in rules()] + of_panels + of_variables


def words(expression: str) -> set[str]:
    """Return the metrics and labels that it names, without the values of labels."""
    return set(re.findall(r"\baiolocks_\w+|\b(?:job|instance|le)\b", re.sub(r'"[^"]*"', "", expression)))


def test_each_metric_exists_and_has_the_labels_that_it_is_asked_for(exported: dict[str, dict[str, set[str]]]) -> None:
    for where, expression in expressions():
        metrics = words(expression) & set(exported)
        assert metrics, where
        labels = set.intersection(*(set(exported[metric]) for metric in metrics))
        assert words(expression) - metrics <= labels | {"job", "instance"}, where  # which Prometheus itself adds
        for label, value in re.findall(r'(\w+)="([^"]*)"', expression):
            assert all(value in exported[metric][label] for metric in metrics), where


def test_every_event_of_which_the_page_says_what_to_watch_is_in_both(exported: dict[str, dict[str, set[str]]]) -> None:
    page = (EXAMPLES / "OPERATING.md").read_text(encoding="utf-8").partition("\n## What to watch\n")[2]
    table = page.partition("\n\n`aiolocks.events")[0]
    events = set(re.findall(r"event `(\w+)`", table))
    assert len(events) >= 8
    for event in events:
        metric = f"aiolocks_{OF_HISTOGRAMS.get(event, f'{event}_total')}"
        assert metric in exported
        assert any(metric in rule["expr"] for rule in rules()), event
        assert any(metric in target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]), event


def test_every_kind_of_event_is_counted_but_that_a_caller_waits(exported: dict[str, dict[str, set[str]]]) -> None:
    counted = {name.removeprefix("aiolocks_").removesuffix("_total") for name in exported if name.endswith("_total")}
    assert counted == set(get_args(Kind)) - {"waiting"}


def test_a_rule_says_how_bad_it_is_and_what_to_do_by_labels_that_it_keeps() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        kept = set.intersection(*(set(by.split(", ")) for by in re.findall(r"by \(([^)]*)\)", rule["expr"])))
        said = " ".join(rule["annotations"][what] for what in ("summary", "description"))
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= kept, rule["alert"]


def test_a_panel_has_a_place_of_its_own_and_asks_the_chosen_server() -> None:
    board = dashboard()
    known = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) == known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for of in (panel, *panel["targets"]):
            assert of["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in combinations((panel["gridPos"] for panel in board["panels"]), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
