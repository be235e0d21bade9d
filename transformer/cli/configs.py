"""Config files: loading, overriding, and the names of their rows."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from transformer.cli.flags import FLAGS
from transformer.config import UserError, resolve_saved
from transformer.files import sealed


def define_config(values: flags.FlagValues, arguments: list[str]) -> None:
    """Define ``--config`` and the overrides of its keys."""
    config_flags.DEFINE_config_file(
        "config", None, FLAGS["config"].help, flag_values=values, sys_argv=arguments
    )
    values["config"].parser = _ConfigFile(arguments)


class _ConfigFile(config_flags.ConfigFileFlagParser):
    """Loads a config file; an error in it is reported in one line."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__("config")
        self._arguments = arguments

    def parse(self, path: str) -> ConfigDict:
        file = path.partition(":")[0]
        if not Path(file).is_file():
            what, of = "which does not exist", "one"
            if Path(file).is_dir():
                what = "a folder"
                if (inside := Path(file, "config.json")).is_file():
                    of = f"one, or {inside}"
            raise UserError(
                f"--config: expected a Python file such as experiments/base.py, got "
                f"{file}, {what}; give the path of {of}"
            )
        if not file.endswith((".py", ".json")):
            raise UserError(
                f"--config: expected a file name that ends in .py, got {file}; rename "
                "the file"
            )
        saved = file.endswith(".json")
        if saved and path != file:
            raise UserError(
                f"--config: expected no variant of {file}, which has none, got "
                f"{path.partition(':')[2]!r}; leave it out"
            )
        with _own_errors(path):
            values = _saved(file) if saved else get_config(path)
        if not isinstance(values, ConfigDict):
            raise UserError(
                f"--config: expected get_config() of {file} to return a ConfigDict, "
                f"got {type(values).__name__}; return one"
            )
        self._check_keys(values)
        values.lock()
        return values

    def _check_keys(self, values: ConfigDict) -> None:
        known = list(_flat_keys(values))
        for argument in self._arguments:
            override = re.match(r"--?(?:no)?config\.([^=]+)", argument)
            if override and override[1] not in known:
                nearest = difflib.get_close_matches(override[1], known, n=1)
                hint = (
                    f"did you mean {nearest[0]}?" if nearest else "see the config file"
                )
                raise UserError(
                    f"config: expected a key of the config file, got {override[1]}; "
                    f"{hint}"
                )


def _saved(file: str) -> ConfigDict:
    """Return the values of the config.json that a run wrote."""
    remedy = "give that of a run, or a Python file such as experiments/base.py"
    values = resolve_saved(sealed.read_json(Path(file), remedy))
    return ConfigDict(dataclasses.asdict(values))


def get_config(argument: str) -> Any:
    """Call ``get_config`` of a file, with the variant after a colon if there is one."""
    file, *variant = argument.split(":", 1)
    with _config_module(file) as module:
        if variant and not inspect.signature(module.get_config).parameters:
            raise ValueError(f"expected no variant, got :{variant[0]}; leave it out")
        return module.get_config(*variant)


def row_names(file: str) -> list[str]:
    """Return the names of the rows of a config file."""
    rows = None
    if not file.endswith(".json"):  # a run's config.json has none
        with _own_errors(file), _config_module(file) as module:
            rows = getattr(module, "ROWS", None)
    if not isinstance(rows, dict):
        raise UserError(
            f"--config: expected a file with ROWS, such as experiments/table3.py, got "
            f"{file}, which has none; choose another"
        )
    for row in rows:  # each names a folder and is part of --config's argument
        if not (isinstance(row, str) and re.fullmatch(r"[^\W_.][\w.+-]*", row)):
            raise UserError(
                f"--config: expected names of ROWS such as A_h1, of letters, digits "
                f"and _.+-, got {row!r} in {file}; change it"
            )
    return list(rows)


@contextlib.contextmanager
def _config_module(file: str) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("config_file", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    beside = _Beside(Path(file).resolve().parent)
    # A notebook, for example, may have imported other files of the same names.
    others = beside.taken_out()
    sys.meta_path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.meta_path.remove(beside)
        beside.taken_out()
        sys.modules.update(others)


class _Beside(importlib.abc.MetaPathFinder):
    """Finds modules beside a config file before any others but Python's own.

    Nothing else on the path of a process, such as the folder it was started in, decides
    what ``import base`` is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self._folder])
        return spec if spec and spec.loader else None  # a folder alone is not a module

    def taken_out(self) -> dict[str, Any]:
        """Forget the modules that have the names of files there, and return them."""
        try:
            files = os.listdir(self._folder)
        except OSError:  # nor does an import find anything there
            return {}
        there = {file.partition(".")[0] for file in files} & set(sys.modules)
        there = {name for name in there if self.find_spec(name)}
        names = [name for name in sys.modules if name.partition(".")[0] in there]
        return {name: sys.modules.pop(name) for name in names}


@contextlib.contextmanager
def _own_errors(argument: str) -> Iterator[None]:
    """Report any error of a config file's code in one line."""
    try:
        yield
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:  # SystemExit is not an Exception
        raise UserError(_config_error(argument, error)) from error


def _config_error(argument: str, error: BaseException) -> str:
    file, *variant = argument.split(":", 1)
    if type(error) is ValueError and variant:  # get_config does not know the variant
        return f"--config: {file}: {error}"
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == os.path.abspath(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f"{file}, line {line}" if line else file
    what = error.msg if isinstance(error, SyntaxError) else error
    return f"--config: {where}: {type(error).__name__}: {what}; fix the file"


def ablated_file(flag: flags.Flag) -> tuple[str, list[str]]:
    """Return the config file of an ablation, and the options of all its rows."""
    file, *given = config_flags.get_config_filename(flag).split(":", 1)
    options = given[0].split(",") if given else []
    for option in options:
        if "=" not in option:
            raise UserError(
                f"--config: expected {file}, or {file}:KEY=VALUE,... for all rows, got "
                f":{option}; name rows by --rows"
            )
    return file, options


def override_arguments(flag: flags.Flag) -> list[str]:
    """Return the keys that ``--config.KEY`` overrides, as arguments."""
    given = config_flags.get_override_values(flag)
    return [f"--config.{key}={value}" for key, value in given.items()]


def _flat_keys(values: ConfigDict, prefix: str = "") -> Iterator[str]:
    for key in values:
        if isinstance(values[key], ConfigDict):
            yield from _flat_keys(values[key], f"{prefix}{key}.")
        else:
            yield prefix + key
