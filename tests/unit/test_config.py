"""Settings: every one a flag, a variable and a key; precedence, sources of bad values, earlier names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnitude_service import config
from magnitude_service.cli.flags import flag_parser
from magnitude_service.errors import ConfigurationError, UnimplementedError
from magnitude_service.loader.options import LoaderOptions
from magnitude_service.scheduling.options import SchedulingOptions
from magnitude_service.server.options import ServerOptions

NOTHING: dict[str, str] = {}


def test_defaults_are_those_of_the_layers() -> None:
    configuration = config.load({}, NOTHING)
    assert configuration.layer(ServerOptions) == ServerOptions()
    assert configuration.layer(LoaderOptions) == LoaderOptions()


def test_a_flag_wins_over_a_variable_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "magnitude.toml"
    file.write_text("port = 1\nhost = 'file'\nrows_max = 99\n")
    environment = {"MAGNITUDE_PORT": "2", "MAGNITUDE_HOST": "variable", "MAGNITUDE_CONFIG": str(file)}
    configuration = config.load({"port": "3"}, environment)
    server = configuration.layer(ServerOptions)
    assert (server.port, server.host) == (3, "variable")
    assert configuration.layer(SchedulingOptions).rows_max == 99


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"port": "70000"}, NOTHING, r"--port is 70000; it must lie in 0 … 65535"),
        ({}, {"MAGNITUDE_PORT": "abc"}, r"MAGNITUDE_PORT is 'abc'; it must be a whole number"),
        ({}, {"MAGNITUDE_MLOCK": "maybe"}, r"MAGNITUDE_MLOCK is 'maybe'; it must be true or false"),
        ({"log-format": "xml"}, NOTHING, r"--log-format is 'xml'; it must be one of text, json"),
        ({"grace-seconds": "nan"}, NOTHING, r"--grace-seconds is nan; it must lie in"),
    ],
)
def test_a_bad_value_names_its_source_and_the_bound(
    flags: dict[str, str], environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        config.load(flags, environment)


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "magnitude.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(ConfigurationError, match=r"magnitude.toml: prot is no setting. Did you mean port\?"):
        config.load({}, NOTHING, str(file))


def test_a_config_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "magnitude.toml"
    file.write_text("port: 1")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        config.load({}, NOTHING, str(file))


def test_a_config_file_that_is_absent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        config.load({}, NOTHING, "/no/such/file.toml")


@pytest.mark.parametrize("name", ["uva-enabled", "pinned-memory", "prefetch-window", "disable-prefetch"])
def test_a_variable_of_earlier_magnitude_whose_function_is_missing_is_refused_by_name(name: str) -> None:
    variable = "MAGNITUDE_" + name.upper().replace("-", "_")
    with pytest.raises(UnimplementedError, match=f"{variable} is not implemented"):
        config.load({}, {variable: "1"})


@pytest.mark.parametrize("name", config.REFUSED_NAMES)
@pytest.mark.parametrize("value", [["1"], []])
def test_every_refused_flag_is_refused_by_name(name: str, value: list[str]) -> None:
    with pytest.raises(UnimplementedError, match=f"--{name} is not implemented"):
        flag_parser("serve", "").parse_args([f"--{name}", *value])


def test_every_name_of_earlier_magnitude_is_accepted_or_refused_by_name() -> None:
    variables = (
        "UVA_ENABLED PINNED_MEMORY PREFETCH_WINDOW DISABLE_PREFETCH MAX_CPU_THREADS GPU_MEMORY_FRACTION "
        "MEMORY_ISOLATION UNIFIED_MEMORY_LIMIT CPU_MEMORY_RATIO ALLOW_INVALID_MAGIC"
    )
    flags = (
        "model-path host port threads batch-size max-context-len n-gpu-layers mlock no-mmap devices "
        "tensor-split-strategy prefetch-strategy memory-policy unified-limit continue timeout"
    )
    accepted = {name for setting in config.settings() for name in (*setting.names, f"no-{setting.name}")}
    names = {name.lower().replace("_", "-") for name in variables.split()} | set(flags.split())
    assert names <= accepted | config.REFUSED_NAMES.keys()
    assert not accepted & config.REFUSED_NAMES.keys()


def test_names_of_earlier_magnitude_still_work() -> None:
    environment = {"MAGNITUDE_MAX_CPU_THREADS": "3", "MAGNITUDE_ALLOW_INVALID_MAGIC": "1"}
    flags = flag_parser("serve", "").parse_args(["--batch-size", "64", "--no-mmap", "--model-path", "m.gguf"])
    configuration = config.load(vars(flags), environment)
    assert configuration.values["EngineOptions"]["threads"] == 3
    assert configuration.layer(LoaderOptions) == LoaderOptions(allow_invalid_magic=True, mmap=False)
    assert configuration.values["SchedulingOptions"]["rows_max"] == 64
    assert configuration.layer(config.AppOptions).model == "m.gguf"


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--prot is no setting. Did you mean port\?"):
        flag_parser("serve", "").parse_args(["--prot", "1"])


def test_every_setting_has_a_sentence_and_one_name() -> None:
    names = [name for setting in config.settings() for name in setting.names]
    assert len(names) == len(set(names))
    for setting in config.settings():
        assert re.fullmatch(r"[A-Z0-9].*[.]", str(setting.field.metadata["sentence"])), setting.name


def test_the_cache_folder_follows_the_flag_then_xdg_then_home() -> None:
    assert config.cache_folder("/given", {"XDG_CACHE_HOME": "/xdg"}) == Path("/given")
    assert config.cache_folder("", {"XDG_CACHE_HOME": "/xdg"}) == Path("/xdg/magnitude")
    assert config.cache_folder("", {}) == Path("~/.cache/magnitude").expanduser()


def test_what_kubernetes_puts_into_the_environment_is_nobodys_setting() -> None:
    """Of a Service that is named magnitude."""
    environment = {
        "MAGNITUDE_SERVICE_HOST": "10.0.0.1",
        "MAGNITUDE_SERVICE_PORT": "50051",
        "MAGNITUDE_SERVICE_PORT_GRPC": "50051",
        "MAGNITUDE_PORT": "tcp://10.0.0.1:50051",
        "MAGNITUDE_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "MAGNITUDE_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert config.load({}, environment).values == {}
    with pytest.raises(ConfigurationError, match="MAGNITUDE_PORTS is no setting"):
        config.load({}, {"MAGNITUDE_PORTS": "1"})


def test_only_what_is_on_or_off_has_a_no() -> None:
    assert config.load({}, {"MAGNITUDE_NO_MMAP": "1"}).layer(LoaderOptions).mmap is False
    with pytest.raises(ConfigurationError, match="MAGNITUDE_NO_PORT is no setting"):
        config.load({}, {"MAGNITUDE_NO_PORT": "1"})


def test_settings_of_one_layer_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sequences_max"):
        config.load({"rows-max": "4"}, NOTHING).check()
