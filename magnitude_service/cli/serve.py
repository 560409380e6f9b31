"""`magnitude serve`: settings in, a running server out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from magnitude_service import config
from magnitude_service.cli.flags import flag_parser
from magnitude_service.errors import ConfigurationError


def serve(arguments: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT. `--validate-config` and `--dry-run` stop before that: the first after the
    settings, the second after the model's header and the memory plan. Returns the exit status."""
    parser = flag_parser("magnitude serve", "Serve a GGUF model over gRPC.")
    parser.add_argument("--validate-config", action="store_true", help="Check the settings, print them, and exit.")
    parser.add_argument(
        "--dry-run", action="store_true", help="Also read the model's header, print what it would cost, and exit."
    )
    given = vars(parser.parse_args(list(arguments)))
    validate_only, dry_run = given.pop("validate_config", False), given.pop("dry_run", False)
    configuration = config.load(given, config_file=given.pop("config", None))
    configuration.check()
    if validate_only:
        print("\n".join(as_toml(configuration)))
        return 0
    if not configuration.layer(config.AppOptions).model:
        raise ConfigurationError(
            "No model is given.", remedy="Name a GGUF file: --model M.gguf or MAGNITUDE_MODEL.", field="model"
        )
    from magnitude_service import app

    if dry_run:
        print(app.describe(configuration))
        return 0
    return app.run(configuration)


def as_toml(configuration: config.Configuration) -> Iterator[str]:
    """Every setting as a line of a config file: those that were given with their source, the others commented out."""
    for title, settings in config.by_layer():
        yield f"# {title}."
        for setting in settings:
            key, source = setting.name.replace("-", "_"), configuration.sources.get(setting.name)
            if source is None:
                default = setting.field.default
                yield f"# {key} = {'…' if default is None else json.dumps(default, ensure_ascii=False)}"
            else:
                value = configuration.values[setting.layer][setting.field.name]
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}  # {source}"
