"""The manifests against the schemas of each version of Kubernetes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import GOLDEN, cases, combinations, rendered
from tests.support.chart_tools import KUBERNETES, SCHEMAS

Program = Callable[[str], Path]

IMAGE_VOLUMES_SINCE = "1.31.0"
LOCATIONS = (
    f"{SCHEMAS}/{{{{ .NormalizedKubernetesVersion }}}}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json",
    f"{SCHEMAS}/custom/{{{{ .Group }}}}-{{{{ .ResourceKind }}}}-{{{{ .ResourceAPIVersion }}}}.json",
)


def conform(kubeconform: Path, version: str, *files: Path) -> dict[str, Any]:
    """What kubeconform finds in the files."""
    places = [part for location in LOCATIONS for part in ("-schema-location", location)]
    options = ("-strict", "-summary", "-output", "json", "-kubernetes-version", version)
    done = subprocess.run([kubeconform, *options, *places, *files], capture_output=True, text=True)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_manifest_is_valid(version: str, program: Program) -> None:
    program(f"schemas/v{version}")
    fitting = [name for name in cases() if name != "image-volume" or version >= IMAGE_VOLUMES_SINCE]
    found = conform(program("kubeconform"), version, *(GOLDEN / f"{name}.yaml" for name in fitting))
    assert found["resources"] == []
    assert found["summary"]["valid"] > 8 * len(fitting)
    assert (found["summary"]["invalid"], found["summary"]["errors"], found["summary"]["skipped"]) == (0, 0, 0)


def test_whatever_is_asked_for_together_is_valid(program: Program, tmp_path: Path) -> None:
    made = list(combinations())
    for name, values in made:
        (tmp_path / f"{name}.yaml").write_text(rendered(values), encoding="utf-8")
    found = conform(program("kubeconform"), KUBERNETES[-1], *sorted(tmp_path.iterdir()))
    assert found["resources"] == []
    assert found["summary"]["valid"] > 8 * len(made)
    assert (found["summary"]["invalid"], found["summary"]["errors"], found["summary"]["skipped"]) == (0, 0, 0)


def test_older_versions_have_no_image_volumes(program: Program) -> None:
    found = conform(program("kubeconform"), "1.29.0", GOLDEN / "image-volume.yaml")
    assert "additional properties 'image' not allowed" in found["resources"][0]["msg"]


def test_a_misspelled_field_is_found(program: Program, tmp_path: Path) -> None:
    for name, right, wrong in (
        ("default", "failureThreshold", "failureTreshold"),
        ("pool", "endpointPickerRef", "endpointPicker"),
        ("scaled", "unhealthyPodEvictionPolicy: AlwaysAllow", "unhealthyPodEvictionPolicy: [AlwaysAllow]"),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text((GOLDEN / f"{name}.yaml").read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
        assert conform(program("kubeconform"), KUBERNETES[-1], file)["summary"]["invalid"] == 1
