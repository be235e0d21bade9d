"""Parse arguments into the values of flags, with one line for every mistake."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from transformer import config
from transformer.cli.configs import define_config
from transformer.cli.files import check_output
from transformer.cli.flags import Command, Flag
from transformer.config import Config, UserError

# The flags that name a configuration, in every command.
CONFIGURED = Command(lambda values: 0, ("config",), ("workdir",))


def parse(name: str, command: Command, arguments: list[str]) -> flags.FlagValues:
    """Return the values of a command's flags.

    Args:
      name: of the command.
      command: its flags and arguments.
      arguments: what was typed after the name.

    Raises:
      UserError: for a flag that is unknown, missing, without effect or has a wrong
        value, for missing or extra arguments, and for an output that cannot be written
        or is an input.
    """
    arguments = [_at_home(argument) for argument in arguments]
    values = _defined(command, arguments)
    try:
        _refuse_unlisted(arguments)
        rest = values([f"transformer {name}", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown(name, error.flagname, [*values])) from None
    except (flags.Error, ValueError) as error:
        raise UserError(_flag_error(name, str(error), values)) from None
    _place(name, command, values, rest)
    for flag in command.required:
        if values[flag].value is None:
            help_ = command.flags()[flag].help
            raise UserError(f"{name}: expected --{flag}: {help_}; add it")
    _check_rules(command, values)
    check_output(command, values)
    return values


def _defined(command: Command, arguments: list[str]) -> flags.FlagValues:
    """Define a command's flags; ``Flag.parse`` reads what is typed."""
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    for name, one in command.flags().items():
        if name == "config":
            define_config(values, arguments)
            continue
        define = flags.DEFINE_boolean if one.kind is bool else flags.DEFINE_string
        define(name, None, one.help, values)
        values[name].parser = _Parser(name, one)
        values.set_default(name, one.default)
    if "slurm.partition" in command.optional:
        _define_slurm(values, arguments)
    return values


def _at_home(argument: str) -> str:
    """Expand ~ as ``Flag`` does, for --config and its keys with their own parsers."""
    flag, equals, value = argument.partition("=")
    if re.fullmatch(r"--?config(\..*)?", flag) and value.startswith("~"):
        return flag + equals + os.path.expanduser(value)
    return argument


def _place(
    name: str, command: Command, values: flags.FlagValues, rest: list[str]
) -> None:
    """Store positional arguments as values of flags."""
    last = [one for one in command.positional if one.endswith("...")]
    least = len(command.positional) - len(last)
    if len(rest) < least or len(rest) > least and not last:
        if not command.positional:
            raise UserError(
                f"{name}: expected flags only, got {rest[0]!r}; use --FLAG=VALUE"
            )
        got = " ".join(map(repr, rest)) or "none"
        raise UserError(
            f"{name}: expected{command.usage}, got {got}; see transformer {name} --help"
        )
    for place, (argument, one) in enumerate(command.positional.items()):
        argument = argument.removesuffix("...")
        texts = rest[place:] if place == least else rest[place : place + 1]
        found = [one.parse(argument.upper(), text) for text in texts]
        flags.DEFINE_string(argument, None, one.help, values)
        values[argument].value = found if place == least else found[0]


class _Parser(flags.ArgumentParser):
    def __init__(self, name: str, flag: Flag) -> None:
        self._name, self._flag = name, flag

    def parse(self, text: Any) -> Any:
        return self._flag.parse(f"--{self._name}", text)


def _refuse_unlisted(arguments: Sequence[str]) -> None:
    """Refuse absl's own flags, one of which makes it ignore others."""
    for argument in arguments:
        if own := re.match(r"--?(flagfile|undefok)(=|$)", argument):
            raise flags.UnrecognizedFlagError(own[1])


def _check_rules(command: Command, values: flags.FlagValues) -> None:
    """Refuse flags that were given and have no effect."""
    for rule in command.rules:
        for flag in rule.flags:
            given = values[flag].present and values[flag].value is not False
            if given and not rule.holds(values):
                raise UserError(
                    f"--{flag}: expected {rule.expected} or leave --{flag} out"
                )


def resolved(arguments: Sequence[str]) -> Config:
    """Return the configuration that arguments of ``train`` name."""
    return config.resolve(parse("train", CONFIGURED, list(arguments)).config)


def _define_slurm(values: flags.FlagValues, arguments: list[str]) -> None:
    """Define the Slurm options that were given; submitit knows which exist."""
    given = [re.match(r"--?(slurm\.\w+)", argument) for argument in arguments]
    for name in {match[1] for match in given if match} - set(values):
        flags.DEFINE_string(name, None, "option of Slurm", flag_values=values)


def _unknown(name: str, flag: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(flag, known, n=1)
    hint = (
        f"did you mean --{nearest[0]}?" if nearest else f"see transformer {name} --help"
    )
    return f"{name}: expected one of its flags, got --{flag}; {hint}"


# Types of config keys, by absl's names.
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "some text",
}


def _flag_error(name: str, text: str, values: flags.FlagValues) -> str:
    """Put an error of absl or ml_collections into the form of all others."""
    if wrong := re.match(r"flag --(config\.[^=]+)=(.*?): ", text, re.DOTALL):
        key, kind = wrong[1].removeprefix("config."), values[wrong[1]].flag_type()
        expected = _KINDS.get(kind, f"a value of type {kind}")
        return f"config: {key}: expected {expected}, got {wrong[2]!r}; change it"
    if missing := re.match(r"Missing value for flag -*(.*)", text):
        flag = missing[1]
        return f"--{flag}: expected a value, got none; write --{flag}=VALUE"
    if switch := re.match(r"-*(no[^=]*)=(.*) does not take an argument", text):
        return f"--{switch[1]}: expected no value, got {switch[2]!r}; leave it out"
    return f"{name}: {text}; see transformer {name} --help"
