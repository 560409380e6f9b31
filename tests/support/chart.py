"""The chart as tests see it: rendered by Helm's own engine, without a cluster.

`make chart` (`python -m tests.support.chart`) writes what follows from the code: the settings and the bounds of buckets
in values.schema.json, then the golden manifests. Tests compare.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from magnitude_service import config
from magnitude_service.metrics import FIRST_TOKEN_SECONDS

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "magnitude"
SCHEMA = CHART / "values.schema.json"
CASES = ROOT / "tests" / "helm" / "values"
GOLDEN = ROOT / "tests" / "helm" / "golden"

ALWAYS = frozenset({"model", "model_name", "cache_dir", "host", "port", "metrics_port", "grace_seconds"})
GUARDED = frozenset({"tls_certificate", "tls_key", "tls_client_ca", "token_file", "health_port"})
STATE = frozenset({"state_dir"})
DECIDED = ALWAYS | GUARDED | STATE
"""Settings that the chart takes from values of its own: not among `settings`."""

Manifest = dict[str, Any]


def cases() -> list[str]:
    """Names of the values files that the chart is rendered with."""
    return sorted(path.stem for path in CASES.glob("*.yaml"))


def case(name: str) -> dict[str, Any]:
    """The values of one case."""
    return yaml.safe_load((CASES / f"{name}.yaml").read_text(encoding="utf-8")) or {}


def rendered(values: Mapping[str, Any], namespace: str = "models") -> str:
    """All manifests as one text, in the order of their templates. Raises helm_python's errors for what is refused."""
    found = Chart.load(CHART).render(dict(values), name="prod", namespace=namespace)
    texts = ((path, text.strip()) for path, text in sorted(found.items()) if path.endswith(".yaml"))
    return "".join(f"---\n# {path}\n{text.removeprefix('---').lstrip()}\n" for path, text in texts if text)


def manifests(values: Mapping[str, Any], namespace: str = "models") -> list[Manifest]:
    """The same as objects."""
    return [found for found in yaml.load_all(rendered(values, namespace), yaml.CSafeLoader) if found]


Switch = Mapping[str, Mapping[str, Any]]
"""Ways in which one thing may be had, by name: the values that ask for each."""

SWITCHES: tuple[Switch, ...] = (
    {
        "plain": {},
        "tls": {"tls": {"secretName": "server-tls"}},
        "mutual-tls": {"tls": {"secretName": "server-tls", "clientCa": True}},
    },
    {"open": {}, "tokens": {"auth": {"secretName": "callers"}}},
    {"stateless": {}, "state": {"state": {"enabled": True}, "headlessService": False}},
    {"fixed": {}, "autoscaling": {"autoscaling": {"enabled": True}}, "keda": {"keda": {"enabled": True}}},
    {
        "pull": {},
        "claim": {"model": {"from": "claim", "claim": {"name": "models"}}},
        "image": {"model": {"from": "image", "image": {"reference": "registry.example/models:1"}}},
    },
    {
        "bare": {"headlessService": False, "podDisruptionBudget": {"enabled": False}},
        "surrounded": {
            **{name: {"enabled": True} for name in ("inferencePool", "networkPolicy", "serviceMonitor", "alerts")},
            **{name: {"enabled": True, "parents": [{"name": "gateway"}]} for name in ("grpcRoute", "httpRoute")},
            "ingress": {"enabled": True, "hosts": ["llm.example.com"]},
            "dashboard": {"enabled": True},
        },
    },
)


def combinations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way through SWITCHES: its names, and its values."""
    for names in itertools.product(*SWITCHES):
        chosen = (switch[name] for switch, name in zip(SWITCHES, names, strict=True))
        yield "-".join(names), {key: value for values in chosen for key, value in values.items()}


def find(found: list[Manifest], kind: str, name: str = "prod-magnitude") -> Manifest:
    """The one manifest of this kind and name."""
    (manifest,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"] == name)
    return manifest


def setting_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Key of the config file and JSON schema of every setting that the chart leaves to `settings`."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    for setting in config.settings():
        key, bounds = setting.name.replace("-", "_"), setting.field.metadata
        if key in DECIDED:
            continue
        schema: dict[str, Any] = {"description": bounds["sentence"], "type": kinds[setting.kind]}
        if bounds["choices"]:
            schema = {"description": bounds["sentence"], "enum": list(bounds["choices"])}
        for name in ("minimum", "maximum"):
            if bounds[name] is not None:
                schema[name] = bounds[name]
        yield key, schema


def schema_text() -> str:
    """values.schema.json with those parts as the code has them."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    values = schema["properties"]
    values["settings"]["properties"] = dict(setting_schemas())
    bounds = [int(bound) if bound == int(bound) else bound for bound in FIRST_TOKEN_SECONDS.buckets]
    values["alerts"]["properties"]["firstTokenSeconds"] = {"enum": bounds}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes the schema and the golden manifests."""
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    for name in cases():
        (GOLDEN / f"{name}.yaml").write_text(rendered(case(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
