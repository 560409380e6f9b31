"""Alerts, dashboard and scalers: every query is one that Prometheus takes, over metrics that the server has."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from magnitude_service.exporter import MetricsCollector
from magnitude_service.metrics import METRICS, Kind, Metrics
from tests.support.chart import CHART, case, cases, find, manifests

Program = Callable[[str], Path]

TEXTS = sorted(path for path in CHART.rglob("*") if path.suffix in (".yaml", ".json", ".tpl", ".txt"))
SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.COUNTER: ("",), Kind.GAUGE: ("",)}
EXPORTED = {f"{metric.name}{suffix}": metric for metric in METRICS for suffix in SUFFIXES[metric.kind]}
"""Every name under which a sample appears on the exporter's page."""

TARGET_LABELS = {"namespace", "service", "pod", "le"}
"""Labels that Prometheus adds, and the one of buckets."""

GRAFANA = {"$__rate_interval": "5m", "$namespace": "models", "$service": "prod-magnitude-metrics"}


def queries() -> Iterator[tuple[str, str]]:
    """Where each query of the chart stands, and the query."""
    board = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in GRAFANA.items():
                query = query.replace(name, value)
            yield f"dashboard: {panel['title']} {target['refId']}", query
    for rule in rules():
        yield f"rule: {rule.get('alert') or rule['record']}", rule["expr"]
    scaled = find(manifests(case("keda")), "ScaledObject")
    yield "keda", scaled["spec"]["triggers"][0]["metadata"]["query"]


def rules() -> list[dict[str, Any]]:
    """The rules of every group."""
    groups = find(manifests(case("scaled")), "PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(promtool: Path, folder: Path, groups: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """What promtool says about a file of rules."""
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    return subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(CHART)))
def test_every_metric_that_the_chart_names_exists(path: Path) -> None:
    named = set(re.findall(r"\bmagnitude_[a-z_]+\b", path.read_text(encoding="utf-8")))
    assert named - EXPORTED.keys() == set()


def test_every_metric_is_on_the_dashboard() -> None:
    text = (CHART / "files" / "dashboard.json").read_text(encoding="utf-8")
    shown = {EXPORTED[name] for name in re.findall(r"\bmagnitude_[a-z_]+\b", text) if name in EXPORTED}
    left_out = {
        # said by others that are shown: pages by their ratio, calls by their number
        *("magnitude_key_value_pages", "magnitude_key_value_pages_used", "magnitude_key_value_page_size_tokens"),
        *("magnitude_key_value_pages_idle", "magnitude_key_value_cache_info"),
        *("magnitude_calls_running", "magnitude_request_duration_seconds"),
        "magnitude_prompt_length_tokens",
        # 0 until something proposes drafts
        *("magnitude_draft_proposed_tokens_total", "magnitude_draft_accepted_tokens_total"),
    }
    assert {metric.name for metric in set(METRICS) - shown} == left_out


def test_labels_in_queries_are_those_of_the_metrics() -> None:
    for where, query in queries():
        for name, labels in re.findall(r"\b(magnitude_[a-z_]+)\{([^}]*)\}", query):
            asked = set(re.findall(r"(\w+)\s*=", labels))
            assert asked <= TARGET_LABELS | set(EXPORTED[name].labels), where


def test_prometheus_takes_every_query(program: Program, tmp_path: Path) -> None:
    recorded = [{"record": f"q:{number}", "expr": query} for number, (_, query) in enumerate(queries())]
    done = check(program("promtool"), tmp_path, [{"name": "queries", "rules": recorded}])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(recorded)} rules found" in done.stdout


def test_prometheus_takes_no_broken_query(program: Program, tmp_path: Path) -> None:
    broken = [{"record": "q:0", "expr": "sum(rate(magnitude_calls_total[5m])"}]
    assert check(program("promtool"), tmp_path, [{"name": "queries", "rules": broken}]).returncode != 0


def linted(promtool: Path, page: str) -> subprocess.CompletedProcess[str]:
    """What promtool says about a page that a scraper reads."""
    return subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True)


def test_prometheus_finds_nothing_odd_about_names_types_and_units(program: Program) -> None:
    metrics, registry = Metrics(), CollectorRegistry()
    for metric in METRICS:
        (metrics.observe if metric.kind is Kind.HISTOGRAM else metrics.add)(metric, 1, *("x" for _ in metric.labels))
    registry.register(MetricsCollector(metrics, lambda: None))
    page = generate_latest(registry).decode()
    done = linted(program("promtool"), page)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    odd = page.replace("magnitude_queue_seconds", "magnitude_queue_milliseconds")
    assert "magnitude_queue_milliseconds" in linted(program("promtool"), odd).stderr


def series(errors: int, late: int, minutes: int) -> list[Mapping[str, str]]:
    """A hundred calls a minute, of which `errors` fail by our fault and `late` begin too late; nothing waits."""
    target = 'namespace="models",service="prod-magnitude-metrics",pod="a"'
    counts = {
        f'magnitude_calls_total{{{target},method="InferenceService/Infer",code="OK"}}': 100 - errors,
        f'magnitude_calls_total{{{target},method="InferenceService/Infer",code="INTERNAL"}}': errors,
        f'magnitude_time_to_first_token_seconds_bucket{{{target},model="m",le="2.5"}}': 100 - late,
        f'magnitude_time_to_first_token_seconds_count{{{target},model="m"}}': 100,
    }
    gauges = {
        f'magnitude_model_info{{{target},model="m"}}': 1,
        f'magnitude_requests_waiting{{{target},model="m"}}': 0,
        f'magnitude_key_value_usage_ratio{{{target},model="m"}}': 0.5,
    }
    return [
        *({"series": name, "values": f"0+{step}x{minutes}"} for name, step in counts.items()),
        *({"series": name, "values": f"{value}+0x{minutes}"} for name, value in gauges.items()),
    ]


@pytest.mark.parametrize(
    ("errors", "late", "minute", "firing"),
    [
        (0, 0, 120, set()),
        (0, 4, 120, set()),  # within the budget of 5 %
        (8, 0, 10, {("MagnitudeErrorBudgetBurns", "critical", "1h")}),  # 16 times what the budget allows
        (2, 0, 10, set()),  # 4 times: no alert within minutes
        (0, 80, 10, {("MagnitudeFirstTokenBudgetBurns", "critical", "1h")}),  # 16 times
        (0, 35, 30, {("MagnitudeFirstTokenBudgetBurns", "critical", "6h")}),  # 7 times
        (0, 10, 90, {("MagnitudeFirstTokenBudgetBurns", "warning", "3d")}),  # twice
    ],
)
def test_alerts_fire_when_a_budget_burns_and_not_before(
    errors: int, late: int, minute: int, firing: set[tuple[str, str, str]], program: Program, tmp_path: Path
) -> None:
    groups = find(manifests(case("scaled")), "PrometheusRule")["spec"]["groups"]
    assert check(program("promtool"), tmp_path, groups).returncode == 0
    names = ("MagnitudeErrorBudgetBurns", "MagnitudeFirstTokenBudgetBurns")
    common = {"namespace": "models", "service": "prod-magnitude-metrics"}
    annotations = {
        (rule["alert"], rule["labels"]["window"]): rule["annotations"] for rule in rules() if rule.get("alert") in names
    }
    wanted = {"MagnitudeErrorBudgetBurns": errors, "MagnitudeFirstTokenBudgetBurns": late}
    expected = [
        {
            "eval_time": f"{minute}m",
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": common | {"severity": severity, "window": window},
                    "exp_annotations": {
                        part: text.replace("{{ $value | humanizePercentage }}", f"{wanted[name]}%")
                        for part, text in annotations[name, window].items()
                    },
                }
                for alert, severity, window in firing
                if alert == name
            ],
        }
        for name in names
    ]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [{"interval": "1m", "input_series": series(errors, late, minute + 1), "alert_rule_test": expected}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    memory = {"TMPDIR": "/dev/shm"} if os.path.isdir("/dev/shm") else {}  # it syncs a database that nobody keeps
    command = [program("promtool"), "test", "rules", file]
    done = subprocess.run(command, env=os.environ | memory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scalers_look_at_requests_that_wait() -> None:
    scaler = find(manifests(case("scaled")), "HorizontalPodAutoscaler")["spec"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == "magnitude_requests_waiting"
    assert scaler["scaleTargetRef"]["name"] == "prod-magnitude"
    for name in cases():
        scaled = [each for each in manifests(case(name)) if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
        workload = next(each for each in manifests(case(name)) if each["kind"] in ("Deployment", "StatefulSet"))
        assert ("replicas" in workload["spec"]) == (not scaled), "a scaler's replicas are its own"
        for each in scaled:
            assert each["spec"]["scaleTargetRef"]["kind"] == workload["kind"]
