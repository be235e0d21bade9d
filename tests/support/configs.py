"""Configurations: from files of experiments/, and as changes to base.py."""

import dataclasses
import importlib.util
import json
from typing import Any

import pytest
from ml_collections import ConfigDict

from support.paths import EXPERIMENTS
from transformer import config
from transformer.cli import configs
from transformer.config import Config


def experiment(name: str, *arguments: str) -> ConfigDict:
    """Call ``get_config`` of a file of experiments/, as the command line does."""
    return configs.get_config(":".join([str(EXPERIMENTS / f"{name}.py"), *arguments]))


def rows_of(name: str) -> dict[str, dict[str, Any]]:
    """Return ``ROWS`` of a file of experiments/."""
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        spec.loader.exec_module(module)
    return module.ROWS


def base(**changes: object) -> Config:
    """Resolve experiments/base.py with changes such as ``{"model.heads": 4}``."""
    return config.resolve(changed(changes))


def saved_form(settings: Config) -> dict[str, Any]:
    """Return what is left of a configuration once it was written as JSON and read."""
    return json.loads(json.dumps(dataclasses.asdict(settings)))


def changed(changes: dict[str, object]) -> dict:
    """Return the values of experiments/base.py with changes, unchecked."""
    values = experiment("base").to_dict()
    for key, value in changes.items():
        *groups, name = key.split(".")
        place = values
        for group in groups:
            place = place[group]
        place[name] = value
    return values
