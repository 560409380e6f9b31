"""The chart and a real kube-apiserver, with Helm's own command line: `make check-chart`."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CASES, CHART, Manifest, case, cases, manifests
from tests.support.chart_tools import KUBERNETES, custom_definitions

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

Program = Callable[[str], Path]

SECONDS_MAX = 120


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True)
class Cluster:
    """An API server with nothing behind it: no node, no controller."""

    address: str
    token: str

    def call(self, method: str, path: str, body: object = None) -> Manifest:
        """One request. Raises urllib.error.HTTPError, whose body says why."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else {}

    def create(self, manifest: Manifest) -> Manifest:
        """Creates an object, refusing fields that the server does not know. Fails with the server's words."""
        api, kind = manifest["apiVersion"], manifest["kind"]
        plural = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}.get(kind, f"{kind.lower()}s")
        space = manifest["metadata"].get("namespace")
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        path = f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}"
        try:
            return self.call("POST", f"{path}?fieldValidation=Strict", manifest)
        except urllib.error.HTTPError as error:
            with error:
                words = error.read().decode()
            pytest.fail(f"{kind} {manifest['metadata']['name']}: {words}")


def until(ready: Callable[[], object]) -> None:
    """Waits for another process to answer."""
    end = time.monotonic() + SECONDS_MAX
    while True:
        try:
            ready()
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            assert time.monotonic() < end, f"not within {SECONDS_MAX} s"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """etcd and kube-apiserver on free ports of this machine, in a folder that goes away."""
    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run(["openssl", "genrsa", "-out", folder / "key.pem", "2048"], check=True, capture_output=True)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    store, peer, port = (free_port() for _ in range(3))
    etcd = (program("etcd"), "--data-dir", folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{store}")
    etcd += ("--advertise-client-urls", f"http://127.0.0.1:{store}", "--listen-peer-urls", f"http://127.0.0.1:{peer}")
    etcd += ("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}")
    etcd += ("--initial-cluster", f"default=http://127.0.0.1:{peer}")
    server = (program("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{store}", f"--secure-port={port}")
    server += ("--bind-address=127.0.0.1", f"--cert-dir={folder}", f"--token-auth-file={folder}/tokens.csv")
    server += (f"--service-account-signing-key-file={folder}/key.pem", f"--service-account-key-file={folder}/key.pem")
    server += ("--service-account-issuer=https://127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24")
    server += ("--authorization-mode=RBAC", "--feature-gates=ImageVolume=true")
    with (folder / "log").open("w") as log:
        running = [subprocess.Popen(command, stdout=log, stderr=log) for command in (etcd, server)]
        try:
            found = Cluster(f"https://127.0.0.1:{port}", token)
            until(lambda: found.call("GET", "/readyz"))
            for definition in custom_definitions():
                found.create(definition)
                group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
                version = definition["spec"]["versions"][0]["name"]
                until(lambda path=f"/apis/{group}/{version}/{plural}": found.call("GET", path))
            yield found
        except BaseException:
            print((folder / "log").read_text()[-3000:])
            raise
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(60)


def namespaced(cluster: Cluster, space: str, *accounts: str) -> None:
    """A namespace that takes restricted pods only, with the accounts that a controller would make, or an operator."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": labels}})
    for account in ("default", *accounts):
        metadata = {"name": account, "namespace": space}
        cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def pod_of(workload: Manifest, space: str) -> Manifest:
    """The pod that a controller would make of it."""
    template = workload["spec"]["template"]
    claims = workload["spec"].get("volumeClaimTemplates", ())
    names = [claim["metadata"]["name"] for claim in claims]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-0"}} for name in names]
    spec = template["spec"] | {"volumes": [*template["spec"]["volumes"], *volumes]}
    metadata = template["metadata"] | {"name": "prod-magnitude-0", "namespace": space}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("name", cases())
def test_an_api_server_takes_every_object_and_pods_keep_the_strictest_rules(name: str, cluster: Cluster) -> None:
    space = f"case-{name}"
    namespaced(cluster, space, *(["models"] if name == "claim" else []))
    if name == "claim":
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1}
        cluster.call(
            "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority | {"metadata": {"name": "inference"}}
        )
    for manifest in manifests(case(name), namespace=space):
        cluster.create(manifest)
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            made = cluster.create(pod_of(manifest, space))
            assert made["status"]["qosClass"] == "Guaranteed"


def test_pods_that_are_not_confined_are_refused(cluster: Cluster) -> None:
    namespaced(cluster, "strict")
    body = {"metadata": {"name": "open"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    with pytest.raises(urllib.error.HTTPError) as caught:
        cluster.call("POST", "/api/v1/namespaces/strict/pods", {"apiVersion": "v1", "kind": "Pod", **body})
    with caught.value as refused:
        assert refused.code == 403


def helm(helm3: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm3, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("name", cases())
def test_helm_3_renders_the_same_and_lints_without_a_warning(name: str, program: Program) -> None:
    values = ("--values", str(CASES / f"{name}.yaml"), "--kube-version", KUBERNETES[-1], "--namespace", "models")
    done = helm(program("helm"), "template", "prod", str(CHART), *values)
    assert done.returncode == 0, done.stderr
    assert in_order([each for each in yaml.safe_load_all(done.stdout) if each]) == in_order(manifests(case(name)))
    linted = helm(program("helm"), "lint", "--strict", str(CHART), *values)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "WARNING" not in linted.stdout


def in_order(found: list[Manifest]) -> list[tuple[Any, ...]]:
    return sorted(((each["kind"], each["metadata"]["name"], each) for each in found), key=lambda each: each[:2])


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.28.0", "requires kubeVersion: >=1.29.0-0"),
        ("1.30.4", "model.from is image; it needs Kubernetes 1.31 or newer, and this is v1.30.4"),
    ],
)
def test_a_cluster_that_is_too_old_is_refused_by_name(version: str, words: str, program: Program) -> None:
    values = ("--values", str(CASES / "image-volume.yaml"), "--kube-version", version)
    done = helm(program("helm"), "template", "prod", str(CHART), *values)
    assert done.returncode != 0
    assert words in done.stderr


def test_the_chart_packs_into_one_archive(program: Program, tmp_path: Path) -> None:
    done = helm(program("helm"), "package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["magnitude-0.1.0.tgz"]
