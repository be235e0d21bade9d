"""From arguments to the values of flags, one line for every mistake."""

from __future__ import annotations

import re
from collections.abc import Sequence

from absl import flags

from transformer import config
from transformer.cli.configs import define_config
from transformer.cli.flags import Command
from transformer.config import Config, UserError

# What a configuration is named by, whatever is done with it.
CONFIGURED = Command(lambda values: 0, ("config",), ("workdir",))


def parse(name: str, command: Command, arguments: list[str]) -> flags.FlagValues:
    """Return the values of a command's flags.

    Args:
      name: of the command.
      command: its flags.
      arguments: what was typed behind the name.

    Raises:
      UserError: for a flag that is unknown, missing or of a wrong value.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    for flag, one in command.flags().items():
        if flag == "config":
            define_config(values, arguments)
        else:
            one.define(
                name=flag,
                default=one.default,
                help=one.help,
                flag_values=values,
                **one.options,
            )
        for check in one.checks:
            flags.register_validator(
                flag,
                lambda value, check=check: value is None or check.passes(value),
                f"expected {check.expected}",
                values,
            )
    if "slurm.partition" in command.optional:
        _define_slurm(values, arguments)
    try:
        rest = values([f"transformer {name}", *arguments])[1:]
    except flags.Error as error:
        raise UserError(_flag_error(name, str(error), values)) from None
    if rest:
        raise UserError(
            f"{name}: expected flags only, got {rest[0]!r}; use --FLAG=VALUE"
        )
    for flag in command.required:
        if values[flag].value is None:
            help_ = command.flags()[flag].help
            raise UserError(f"{name}: expected --{flag}: {help_}; add it")
    return values


def resolved(arguments: Sequence[str]) -> Config:
    """Return the configuration that arguments of ``train`` name."""
    return config.resolve(parse("train", CONFIGURED, list(arguments)).config)


def _define_slurm(values: flags.FlagValues, arguments: list[str]) -> None:
    """Define the options of Slurm that were given; submitit knows which there are."""
    given = [re.match(r"--?(slurm\.\w+)", argument) for argument in arguments]
    for name in {match[1] for match in given if match} - set(values):
        flags.DEFINE_string(name, None, "option of Slurm", flag_values=values)


def _flag_error(name: str, text: str, values: flags.FlagValues) -> str:
    wrong = re.match(r"flag --(config\.[^=]+)=(.*?): ", text, re.DOTALL)
    if wrong:
        key, kind = wrong[1].removeprefix("config."), values[wrong[1]].flag_type()
        return (
            f"config: {key}: expected a value of type {kind}, got {wrong[2]!r}; change "
            "it"
        )
    return f"{name}: {text}; see transformer {name} --help"
