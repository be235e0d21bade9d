"""Every fact of the packaging stands once, and fits the others."""

import configparser
import importlib
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.paths import ROOT

import transformer

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
CONSTRAINTS = {
    canonicalize_name(line.split("==")[0]): line.split("==")[1]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
}
REQUIREMENTS = [
    Requirement(line)
    for group in (PROJECT["dependencies"], PROJECT["optional-dependencies"]["dev"])
    for line in group
]


def test_no_tool_is_configured_in_both_files():
    in_setup = {section.split(":")[0].split("-")[0] for section in SETUP.sections()}
    assert in_setup == {"mypy", "coverage"}
    assert set(PYPROJECT) == {"build-system", "project", "tool"}
    assert set(PYPROJECT["tool"]) == {"setuptools", "pytest", "ruff"}


def test_no_fact_stands_twice():
    text = (ROOT / "setup.cfg").read_text() + (ROOT / "pyproject.toml").read_text()
    assert text.count("3.11") == 1  # requires-python; ruff and mypy derive it
    assert "version" in PROJECT["dynamic"] and transformer.__version__ not in text


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_dependency_is_bounded_and_its_tested_version_within(requirement):
    assert {s.operator for s in requirement.specifier} == {">=", "<"}
    tested = CONSTRAINTS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(Version(tested))


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines)
    assert lines == sorted(lines, key=lambda line: line.lower())
    assert not {"pip", "setuptools", "wheel"} & set(CONSTRAINTS)


def test_jax_has_one_bound_and_accelerators_as_extras():
    extras = PROJECT["optional-dependencies"]
    for accelerator in ("cuda12", "cuda13", "tpu"):
        assert extras[accelerator] == [f"jax[{accelerator}]"]
    bound = next(r.specifier for r in REQUIREMENTS if r.name == "jax")
    assert all(bound.contains(v) for v in ("0.10.0", "0.11.2", "0.12.0.1"))
    assert not any(bound.contains(v) for v in ("0.9.2", "0.13.0"))


def test_the_package_offers_load_and_nothing_else():
    assert set(dir(transformer)) == {"__version__", "load"}
    assert transformer.load is importlib.import_module("transformer.ensemble").load
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = transformer.nothing
