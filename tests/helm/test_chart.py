"""The chart without a cluster: what it renders, what it computes, and what it refuses by name."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from helm_python import HelmError
from helm_python.chart import lint

from magnitude_service import config
from magnitude_service.metrics import FIRST_TOKEN_SECONDS
from magnitude_service.server.build import SERVICES
from tests.support.chart import (
    ALWAYS,
    CHART,
    DECIDED,
    GOLDEN,
    GUARDED,
    SCHEMA,
    STATE,
    Manifest,
    case,
    cases,
    find,
    manifests,
    rendered,
    schema_text,
)

WORKLOADS = ("Deployment", "StatefulSet")
INFO = 1
"""Helm's severity of what is no warning."""


def pod(values: dict[str, Any]) -> Manifest:
    """The spec of the pods."""
    (workload,) = (each for each in manifests(values) if each["kind"] in WORKLOADS)
    return workload["spec"]["template"]["spec"]


def container(values: dict[str, Any]) -> Manifest:
    """The one that serves."""
    return pod(values)["containers"][0]


def settings(values: dict[str, Any]) -> dict[str, Any]:
    """The server's config file."""
    return tomllib.loads(find(manifests(values), "ConfigMap")["data"]["magnitude.toml"])


@pytest.mark.parametrize("name", cases())
def test_lint_has_nothing_to_say(name: str) -> None:
    report = lint(CHART, case(name), strict=True, kube_version="v1.34.0")
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > INFO] == []


@pytest.mark.parametrize("name", cases())
def test_manifests_are_the_golden_ones(name: str) -> None:
    assert rendered(case(name)) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8"), "see `make chart`"


def test_every_golden_file_has_its_values() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.yaml")) == cases()


def test_the_matrix_makes_every_kind_of_object() -> None:
    kinds = {each["kind"] for name in cases() for each in manifests(case(name))}
    assert kinds == {
        *("ConfigMap", "Deployment", "StatefulSet", "Service", "ServiceAccount", "Pod", "PodDisruptionBudget"),
        *("HorizontalPodAutoscaler", "ScaledObject", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"),
        *("Ingress", "HTTPRoute", "GRPCRoute", "InferencePool"),
    }


def test_the_schema_says_what_the_code_says() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "see `make chart`"


@pytest.mark.parametrize("name", cases())
def test_the_server_takes_the_config_file(name: str, tmp_path: Any) -> None:
    file = tmp_path / "magnitude.toml"
    file.write_text(find(manifests(case(name)), "ConfigMap")["data"]["magnitude.toml"], encoding="utf-8")
    loaded = config.load({}, environment={}, config_file=str(file))
    loaded.check()
    given = {name.replace("-", "_") for name in loaded.sources}
    assert given & DECIDED == ALWAYS | {"mutual-tls": GUARDED, "state": STATE, "keda": STATE}.get(name, frozenset())


def test_settings_reach_the_server_as_they_are() -> None:
    found = settings(case("claim"))
    assert found["message_bytes_max"] == 67_108_864
    assert found["verify"] is True
    assert found["template_seconds"] == 2.5
    assert found["cache_type"] == "f32"
    assert found["model"] == "/models/qwen/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


def test_memory_counts_the_model_the_cache_and_shared_memory() -> None:
    without = container({"shmSize": "1Mi"})["resources"]["limits"]["memory"]
    with_shared = container({"shmSize": "2Gi"})["resources"]["limits"]["memory"]
    assert int(with_shared[:-2]) - int(without[:-2]) == 2047
    assert without == f"{(98 + 1024 + 384) * 105 // 100 + 1 + 1}Mi"
    shm = next(volume for volume in pod({})["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container({})["volumeMounts"]


@pytest.mark.parametrize("shared", ["64Mi", "2Gi", "1Ti"])
def test_what_the_server_plans_with_leaves_shared_memory_alone(shared: str) -> None:
    values = {"shmSize": shared, "cacheSize": "4Gi", "model": {"size": "8Gi"}}
    mebibytes = int(container(values)["resources"]["limits"]["memory"][:-2])
    planned = settings(values)["memory_fraction"] * mebibytes
    factor = {"Mi": 1, "Gi": 1024, "Ti": 1 << 20}[shared[-2:]]
    assert planned <= 0.95 * (mebibytes - int(shared[:-2]) * factor)
    assert planned + mebibytes / 10_000 >= (8 + 4) * 1024 + 150


def test_a_budget_that_is_given_is_left_alone() -> None:
    assert "memory_fraction" not in settings({"settings": {"budget_bytes": 2_147_483_648}})
    assert settings({"settings": {"memory_fraction": 0.5}})["memory_fraction"] == 0.5


@pytest.mark.parametrize("name", cases())
def test_requests_are_limits_and_processors_are_whole(name: str) -> None:
    spec = pod(case(name))
    for each in [*spec.get("initContainers", ()), *spec["containers"]]:
        assert each["resources"]["requests"] == each["resources"]["limits"]
        assert isinstance(each["resources"]["limits"]["cpu"], int)
    assert "threads" not in settings(case(name)), "the server takes its threads from the quota"


@pytest.mark.parametrize("name", cases())
def test_every_container_is_confined(name: str) -> None:
    for manifest in manifests(case(name)):
        spec = manifest["spec"] if manifest["kind"] == "Pod" else None
        spec = manifest["spec"]["template"]["spec"] if manifest["kind"] in WORKLOADS else spec
        if spec is None:
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for each in [*spec.get("initContainers", ()), *spec["containers"]]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", cases())
def test_probes_ask_for_services_that_the_server_has_and_liveness_not_for_the_model(name: str) -> None:
    found = container(case(name))
    assert found["livenessProbe"]["grpc"].get("service", "") == ""
    for probe in ("startupProbe", "readinessProbe"):
        assert found[probe]["grpc"]["service"] in SERVICES
    assert {found[probe]["grpc"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} <= {
        port["containerPort"] for port in found["ports"]
    }


@pytest.mark.parametrize("values", [{"tls": {"secretName": "a"}}, {"auth": {"secretName": "a"}}], ids=str)
def test_probes_have_a_port_without_tls_and_tokens(values: dict[str, Any]) -> None:
    probes = [container(values)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["grpc"]["port"] for probe in probes} == {settings(values)["health_port"]} == {8086}
    assert "health_port" not in settings({})


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        ({"size": "98Mi"}, 900),  # 15 minutes, whatever the size
        ({"size": "40Gi", "readMiBPerSecond": 50}, 60 + 2 * 40 * 1024 // 50),
        ({"size": "1Ti", "readMiBPerSecond": 200}, 60 + 2 * 1024 * 1024 // 200),
    ],
)
def test_a_start_has_as_long_as_the_file_takes_to_read_twice(model: dict[str, Any], seconds: int) -> None:
    probe = container({"model": model})["startupProbe"]
    budget = probe["failureThreshold"] * probe["periodSeconds"]
    assert seconds <= budget < seconds + probe["periodSeconds"]


def test_a_pod_outlives_its_streams() -> None:
    values = case("state")
    assert container(values)["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "10"]}}
    assert settings(values)["grace_seconds"] == 600
    assert pod(values)["terminationGracePeriodSeconds"] > 10 + 600


def test_a_rollout_takes_no_pod_away_before_another_serves() -> None:
    strategy = find(manifests({}), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert find(manifests({}), "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_another_setting_makes_other_pods() -> None:
    def annotation(values: dict[str, Any]) -> str:
        template = find(manifests(values), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["magnitude.dev/settings"]

    assert annotation({}) != annotation({"settings": {"rows_max": 64}})


def test_bounds_of_the_alert_are_those_of_the_histogram() -> None:
    for seconds in FIRST_TOKEN_SECONDS.buckets:
        alerts = {"enabled": True, "firstTokenSeconds": int(seconds) if seconds == int(seconds) else seconds}
        rules = find(manifests({"alerts": alerts}), "PrometheusRule")
        assert f'le="{seconds}"' in rules["spec"]["groups"][0]["rules"][1]["expr"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 2}, ["replica"]),
        ({"replicas": "2"}, ["replicas", "integer"]),
        ({"cpu": 1.5}, ["cpu", "integer"]),
        ({"shmSize": "2G"}, ["shmSize", "pattern"]),
        ({"model": {"from": "hub"}}, ["model", "from"]),
        ({"model": {"size": "0Mi"}}, ["model", "size"]),
        ({"model": {"from": "claim"}}, ["model", "claim", "name"]),
        ({"model": {"pull": {"sha256": "12"}}}, ["model", "pull", "sha256"]),
        ({"model": {"pull": {"sha256": ""}}}, ["model", "pull", "sha256"]),
        ({"model": {"file": "../../etc/passwd"}}, ["model", "file"]),
        ({"model": {"file": "/M.gguf"}}, ["model", "file"]),
        ({"settings": {"rows-max": 1}}, ["settings", "rows-max"]),
        ({"settings": {"rows_max": 0}}, ["settings", "rows_max"]),
        ({"settings": {"port": 1}}, ["settings", "port"]),
        ({"settings": {"log_level": "loud"}}, ["settings", "log_level"]),
        ({"ports": {"grpc": 80}}, ["ports", "grpc"]),
        ({"image": {"digest": "sha256:12"}}, ["image", "digest"]),
        ({"alerts": {"firstTokenSeconds": 3}}, ["alerts", "firstTokenSeconds"]),
        ({"alerts": {"errorBudget": 0}}, ["alerts", "errorBudget"]),
        ({"ingress": {"enabled": True}}, ["ingress", "hosts"]),
        ({"grpcRoute": {"enabled": True}}, ["grpcRoute", "parents"]),
        ({"probes": {"livenessFailures": 1}}, ["probes", "livenessFailures"]),
        ({"termination": {"graceSeconds": -1}}, ["termination", "graceSeconds"]),
        ({"ports": {"metrics": 50051}}, ["ports.metrics is 50051; ports.grpc is the same"]),
        ({"memory": "1Gi"}, ["memory is 1024Mi; it must hold shmSize (2048Mi) and 384Mi"]),
        ({"tls": {"clientCa": True}}, ["tls.clientCa is true; it needs tls.secretName"]),
        ({"autoscaling": {"enabled": True}, "keda": {"enabled": True}}, ["autoscaling.enabled and keda.enabled"]),
        ({"keda": {"minReplicas": 9}}, ["keda.minReplicas is 9; it must not exceed keda.maxReplicas (4)"]),
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(HelmError) as caught:
        rendered(values)
    for word in words:
        assert word in str(caught.value)
