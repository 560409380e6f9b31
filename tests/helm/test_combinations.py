"""What can be asked of the chart together, all of it: the objects refer to each other, and to nothing that is not."""

from __future__ import annotations

import tomllib
from pathlib import PurePosixPath
from typing import Any

import pytest

from magnitude_service import config
from tests.support.chart import SWITCHES, Manifest, combinations, find, manifests

MADE = list(combinations())
WORKLOADS = ("Deployment", "StatefulSet")


def test_every_way_is_gone() -> None:
    count = 1
    for switch in SWITCHES:
        count *= len(switch)
    assert len(dict(MADE)) == count > 200


@pytest.mark.parametrize(("name", "values"), MADE, ids=[name for name, _ in MADE])
def test_the_objects_fit_together(name: str, values: dict[str, Any]) -> None:
    found = manifests(values)
    (workload,) = (each for each in found if each["kind"] in WORKLOADS)
    pod = workload["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    check_volumes(workload)
    check_settings(found, pod, ports)
    check_probes(pod, ports)
    check_services(found, workload, ports)
    check_helm_test(found, pod, ports)
    check_policy(found, ports)


def check_volumes(workload: Manifest) -> None:
    """What is mounted is there, and what is there is mounted."""
    spec = workload["spec"]["template"]["spec"]
    claimed = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
    mounted = {
        mount["name"]
        for each in (*spec["containers"], *spec.get("initContainers", ()))
        for mount in each["volumeMounts"]
    }
    assert mounted == {volume["name"] for volume in spec["volumes"]} | claimed


def check_settings(found: list[Manifest], pod: Manifest, ports: dict[str, int]) -> None:
    """The server takes its config file, listens where the pod says, and finds its files in what is mounted."""
    settings = tomllib.loads(find(found, "ConfigMap")["data"]["magnitude.toml"])
    loaded = config.load({key.replace("_", "-"): value for key, value in settings.items()}, environment={})
    loaded.check()
    listens = {"grpc": settings["port"], "metrics": settings["metrics_port"], "health": settings.get("health_port")}
    assert {kind: port for kind, port in listens.items() if port} == ports
    mounts = {PurePosixPath(mount["mountPath"]) for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    names = ("model", "cache_dir", "state_dir", "tls_certificate", "tls_key", "tls_client_ca", "token_file")
    for name in names:
        if name in settings:
            path = PurePosixPath(settings[name])
            assert mounts & {path, *path.parents}, f"{name} = {path} lies in no volume"


def check_probes(pod: Manifest, ports: dict[str, int]) -> None:
    """They ask a port that needs neither TLS nor a token."""
    for kind in ("startup", "readiness", "liveness"):
        asked = pod["spec"]["containers"][0][f"{kind}Probe"]["grpc"]["port"]
        assert asked == ports.get("health", ports["grpc"])


def check_services(found: list[Manifest], workload: Manifest, ports: dict[str, int]) -> None:
    """Services lead to ports of the pod, and everybody else to a Service or a pod of this release."""
    labels = workload["spec"]["template"]["metadata"]["labels"]
    services = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "Service"}
    for service in services.values():
        assert service["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["ports"]} <= ports.keys()
    if workload["kind"] == "StatefulSet":
        assert services[workload["spec"]["serviceName"]]["clusterIP"] == "None"
    for each in found:
        spec, kind = each.get("spec", {}), each["kind"]
        if kind in ("PodDisruptionBudget", "InferencePool"):
            assert spec["selector"]["matchLabels"].items() <= labels.items()
        if kind == "InferencePool":
            assert [port["number"] for port in spec["targetPorts"]] == [ports["grpc"]]
        if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert spec["scaleTargetRef"]["kind"] == workload["kind"]
            assert "replicas" not in workload["spec"]
        if kind in ("GRPCRoute", "HTTPRoute"):
            (backend,) = spec["rules"][0]["backendRefs"]
            assert backend["name"] == find(found, backend.get("kind", "Service"))["metadata"]["name"]


def check_helm_test(found: list[Manifest], pod: Manifest, ports: dict[str, int]) -> None:
    """Its client asks a Service of this release, on a port that lets it in, and is no pod of any Service itself."""
    asking = find(found, "Pod", "prod-magnitude-health")
    command, *flags = asking["spec"]["containers"][0]["args"]
    assert command == "health"
    host, port = flags.pop().removeprefix("--address=").split(":")
    (target,) = (each for each in find(found, "Service", host)["spec"]["ports"] if each["port"] == int(port))
    is_guarded = "health" in ports
    assert (flags, target["targetPort"]) == ((["--probe"], "health") if is_guarded else ([], "grpc"))
    for each in found:
        if each["kind"] == "Service":
            assert not each["spec"]["selector"].items() <= asking["metadata"]["labels"].items()
    assert asking["spec"]["containers"][0]["image"] == pod["spec"]["containers"][0]["image"]


def check_policy(found: list[Manifest], ports: dict[str, int]) -> None:
    """It lets in callers, scrapers and the pod of `helm test`, each to a port that the pod has."""
    for each in found:
        if each["kind"] == "NetworkPolicy":
            rules = each["spec"]["ingress"]
            opened = [[port["port"] for port in rule["ports"]] for rule in rules]
            assert opened == [["grpc"], ["metrics"], ["health" if "health" in ports else "grpc"]]
            asking = find(found, "Pod", "prod-magnitude-health")["metadata"]["labels"]
            assert rules[2]["from"] == [{"podSelector": {"matchLabels": asking}}]
