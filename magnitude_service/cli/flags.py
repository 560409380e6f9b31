"""Settings as flags: one for each, grouped by layer, with help made of their declarations."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from magnitude_service.config import PREFIX, Setting, by_layer, refuse_unknown, settings
from magnitude_service.errors import ConfigurationError


class _Parser(argparse.ArgumentParser):
    """Its errors are ours: one line, and no usage text of sixty flags above it."""

    def error(self, message: str) -> NoReturn:
        if found := re.fullmatch(r"unrecognized arguments: (.+)", message):
            argument = found[1].split()[0]
            if argument.startswith("--"):
                refuse_unknown(
                    argument[2:].split("=")[0], argument, [name for each in settings() for name in each.names]
                )
            raise ConfigurationError(f"{found[1]!r} is no flag.", remedy=f"See `{self.prog} --help`.")
        raise ConfigurationError(f"{message[0].upper()}{message[1:]}.", remedy=f"See `{self.prog} --help`.")


def flag_parser(program: str, description: str, *, with_help: bool = True) -> argparse.ArgumentParser:
    """A parser with one flag per setting, grouped by layer; only the flags that were given appear in its result.

    `parse_args` raises ConfigurationError, and UnimplementedError for a name of REFUSED_NAMES.
    """
    parser = _Parser(
        prog=program,
        description=f"{description} Each flag --NAME is also a variable {PREFIX}NAME and a key of the config file.",
        usage=f"{program} [--NAME VALUE …]",
        allow_abbrev=False,
        add_help=with_help,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help=f"TOML file of settings. [{PREFIX}CONFIG]")
    for title, members in by_layer():
        group = parser.add_argument_group(title)
        for setting in members:
            _add_flag(group, setting)
    return parser


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    flags = [f"--{name}" for name in setting.names]
    if setting.kind is bool:
        group.add_argument(*flags, action="store_true", help=help_text(setting), dest=setting.name)
        group.add_argument(
            *(f"--no-{name}" for name in setting.names), action="store_false", help=argparse.SUPPRESS, dest=setting.name
        )
    else:
        group.add_argument(*flags, metavar=setting.value_name, help=help_text(setting), dest=setting.name)


def help_text(setting: Setting) -> str:
    """The setting's sentence with its bounds and default."""
    parts = [str(setting.field.metadata["sentence"]), setting.bounds, setting.default_text]
    return " ".join(part for part in parts if part).replace("%", "%%")
