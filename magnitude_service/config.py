"""Every setting once: flag = MAGNITUDE_* variable = key of the config file. Alone reads the environment.

The layers declare their options (`options.option`); this module finds them, merges what was given
(flag over variable over file over default) and hands each layer its own frozen dataclass. Names of
earlier magnitude versions are accepted where what they do exists, and refused by name where not.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from magnitude_service.errors import ConfigurationError, UnimplementedError
from magnitude_service.options import Options, check_bounds, option

PREFIX = "MAGNITUDE_"


@dataclass(frozen=True, slots=True)
class AppOptions(Options):
    """Which model, where caches and logs go, and how the process ends."""

    model: str = option("", "GGUF file to serve (any shard of a split one).", also=("model-path",))
    model_name: str = option("", "Name by which requests may ask for the model; empty: the file's stem.")
    executor: str = option(
        "native",
        "What computes: native works on the mapped blocks; reference is the slow oracle.",
        choices=("native", "reference"),
    )
    cache_dir: str = option("", "Folder of pulled models and of hashes; empty: $XDG_CACHE_HOME/magnitude.")
    log_format: str = option("text", "Form of log lines.", choices=("text", "json"))
    log_level: str = option(
        "info", "Least severe lines that are logged; info has one line per call.", choices=("info", "warning", "error")
    )
    grace_seconds: float = option(
        30.0,
        "After SIGTERM running requests may finish for so long; then they end as CANCELLED.",
        minimum=0,
        maximum=3600,
    )


LAYERS: tuple[tuple[str, str], ...] = (
    ("magnitude_service.config", "AppOptions"),
    ("magnitude_service.loader.options", "LoaderOptions"),
    ("magnitude_service.engine.options", "EngineOptions"),
    ("magnitude_service.allocator.options", "AllocatorOptions"),
    ("magnitude_service.scheduling.options", "SchedulingOptions"),
    ("magnitude_service.text.options", "TemplateOptions"),
    ("magnitude_service.snapshot.options", "SnapshotOptions"),
    ("magnitude_service.server.options", "ServerOptions"),
)
"""Module and class of every layer's options; each module imports nothing that costs time."""

LEGACY_NAMES: Mapping[str, str] = {
    "max-cpu-threads": "threads",
    "batch-size": "rows-max",
    "max-context-len": "context-tokens",
}
"""Names of earlier magnitude that still work, and what they are called now."""

REFUSED_NAMES: Mapping[str, str] = {
    "uva-enabled": "unified virtual addressing needs the CUDA executor",
    "pinned-memory": "pinned memory needs the CUDA executor",
    "gpu-memory-fraction": "there is no CUDA executor yet",
    "n-gpu-layers": "there is no CUDA executor yet",
    "devices": "layers run on the CPU only",
    "tensor-split-strategy": "layers run on the CPU only",
    "prefetch-window": "weights are not prefetched in Program order yet",
    "disable-prefetch": "weights are not prefetched in Program order yet",
    "prefetch-strategy": "weights are not prefetched in Program order yet",
    "memory-isolation": "tenants are not isolated from each other yet",
    "memory-policy": "there is one memory policy: compute the cost first, refuse what does not fit",
    "unified-memory-limit": "memory is not shared with a GPU yet",
    "unified-limit": "memory is not shared with a GPU yet",
    "cpu-memory-ratio": "memory is not shared with a GPU yet",
    "continue": "the command line has no sessions yet; the client's `session` goes on with one",
    "timeout": "a deadline belongs to a call, as in `magnitude infer --timeout`, not to the server",
}
"""Names of earlier magnitude whose function does not exist (yet), and why: refused, never ignored."""

ENVIRONMENT_ONLY = frozenset(
    {"config", "address", "tls", "ca-file", "client-certificate", "client-key", "client-token-file"}
)
"""MAGNITUDE_* variables that name no setting of the server: the config file, and how commands reach a server."""

KUBERNETES_VARIABLE = re.compile(r"MAGNITUDE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""What Kubernetes puts into a pod's environment when a Service is named `magnitude`: nobody's settings. It also sets
MAGNITUDE_PORT, to an address like tcp://10.0.0.1:50051."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of one layer as a user names it: `--rows-max`, `MAGNITUDE_ROWS_MAX`, `rows_max`."""

    layer: str
    field: dataclasses.Field[Any]

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return str(self.field.metadata["flag"]) or self.field.name.replace("_", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """Every accepted name, the current one first."""
        legacy = tuple(old for old, new in LEGACY_NAMES.items() if new == self.name)
        return (self.name, *self.field.metadata["also"], *legacy)

    @property
    def kind(self) -> type:
        """bool, int, float or str: the annotation without its `| None`."""
        annotation = str(getattr(self.field.type, "__name__", self.field.type)).split("|")[0].strip()
        return {"bool": bool, "int": int, "float": float, "str": str}[annotation]

    @property
    def value_name(self) -> str:
        """What stands for the value in help: the choices, or its type."""
        choices = [choice for choice in self.field.metadata["choices"] if choice]
        return "|".join(choices) or {int: "N", float: "X", str: "TEXT"}[self.kind]

    @property
    def bounds(self) -> str:
        """The allowed span in words, or nothing."""
        low, high = self.field.metadata["minimum"], self.field.metadata["maximum"]
        if low is None and high is None:
            return ""
        if high is None:
            return f"{low} or more."
        return f"{low} … {high}."

    @property
    def default_text(self) -> str:
        """The default in words; nothing where the sentence says what an absent one means."""
        default = self.field.default
        if self.kind is bool:
            return f"Default: on; --no-{self.name} turns it off." if default else ""
        return "" if default in (None, "") else f"Default {default}."

    def convert(self, value: object, source: str) -> object:
        """A value of the right type within its bounds. Raises ConfigurationError, which names `source`."""
        converted = _convert(value, self.kind, source)
        check_bounds(self.field, converted, source)
        return converted


def _convert(value: object, kind: type, source: str) -> object:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        if kind is bool:
            return value if isinstance(value, bool) else words[str(value).strip().lower()]
        if isinstance(value, bool):
            raise ValueError
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return kind(value)
    except (KeyError, ValueError, TypeError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
        raise ConfigurationError(f"{source} is {value!r}; it must be {wanted}.") from None


def settings() -> tuple[Setting, ...]:
    """Every setting there is, in the order of LAYERS."""
    found = []
    for module, layer in LAYERS:
        options = getattr(importlib.import_module(module), layer)
        found += [Setting(layer, field) for field in dataclasses.fields(options) if "sentence" in field.metadata]
    return tuple(found)


def by_layer() -> Iterator[tuple[str, list[Setting]]]:
    """The settings of each layer, under the first sentence of its options' docstring."""
    for module, layer in LAYERS:
        options = getattr(importlib.import_module(module), layer)
        yield str(options.__doc__).split(".")[0], [setting for setting in settings() if setting.layer == layer]


Layer = TypeVar("Layer", bound=Options)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The merged settings: `values[layer][field]`, and where each came from."""

    values: Mapping[str, Mapping[str, object]]
    sources: Mapping[str, str]

    def layer(self, options: type[Layer]) -> Layer:
        """The options of one layer: what was given, and its defaults for the rest."""
        return options(**self.values.get(options.__name__, {}))

    def check(self) -> None:
        """Raises ConfigurationError where settings of one layer contradict each other."""
        for module, layer in LAYERS:
            self.layer(getattr(importlib.import_module(module), layer))


def load(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None, config_file: str | None = None
) -> Configuration:
    """Merges flags (by setting name) over MAGNITUDE_* variables over the TOML config file over defaults.

    Raises: ConfigurationError, which names the source of a bad value or an unknown key; UnimplementedError for a
    name in REFUSED_NAMES.
    """
    environment = os.environ if environment is None else environment
    by_name = {name: setting for setting in settings() for name in setting.names}
    config_file = config_file or environment.get(PREFIX + "CONFIG")
    layers: dict[str, dict[str, object]] = {}
    sources: dict[str, str] = {}
    given = [*_from_file(config_file), *_from_environment(environment), *_from_flags(flags)]
    for name, value, source in given:
        setting = by_name.get(name)
        if setting is None:
            setting = by_name.get(name.removeprefix("no-"))
            if setting is None or setting.kind is not bool:
                refuse_unknown(name, source, by_name)
            value = not _convert(value, bool, source)
        layers.setdefault(setting.layer, {})[setting.field.name] = setting.convert(value, source)
        sources[setting.name] = source
    return Configuration(layers, sources)


def _from_file(path: str | None) -> list[tuple[str, object, str]]:
    if not path:
        return []
    import tomllib  # 16 ms, which most starts need not spend

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The config file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The config file {path} is not TOML: {error}.") from error
    return [(key.replace("_", "-"), value, f"{path}: {key}") for key, value in content.items()]


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, object, str]]:
    found: list[tuple[str, object, str]] = []
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX).lower().replace("_", "-")
        is_kubernetes = KUBERNETES_VARIABLE.fullmatch(variable) or (name == "port" and value.startswith("tcp://"))
        if variable.startswith(PREFIX) and name not in ENVIRONMENT_ONLY and not is_kubernetes:
            found.append((name, value, variable))
    return found


def _from_flags(flags: Mapping[str, object]) -> list[tuple[str, object, str]]:
    return [(name, value, f"--{name}") for name, value in flags.items()]


def refuse_unknown(name: str, source: str, known: Iterable[str]) -> NoReturn:
    """Raises UnimplementedError for a name of REFUSED_NAMES, else ConfigurationError with the nearest known name."""
    import difflib

    if name in REFUSED_NAMES:
        raise UnimplementedError(
            f"{source} is not implemented: {REFUSED_NAMES[name]}.", remedy="Leave it out.", field=name
        )
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"Did you mean {near[0]}?" if near else "`magnitude serve --help` lists the settings."
    raise ConfigurationError(f"{source} is no setting.", remedy=hint, field=name)


def quieten_grpc() -> None:
    """Before grpc is imported: its own log lines off, unless the user set GRPC_VERBOSITY. What matters in them reaches
    us as an error, and is said once."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def cache_folder(given: str, environment: Mapping[str, str] | None = None) -> Path:
    """The folder of pulled models and hashes: as given, else $XDG_CACHE_HOME/magnitude, else ~/.cache/magnitude."""
    environment = os.environ if environment is None else environment
    if given:
        return Path(given).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "magnitude"
