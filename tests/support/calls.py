"""Calls of the command line, in this process."""

import sys
import types

from transformer.cli import main as cli


def error(capsys, *arguments):
    """Return the one line that a mistaken call prints."""
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("transformer: error: ")
    assert captured.err.count("\n") == 1 and captured.err.endswith("\n")
    return captured.err.removeprefix("transformer: error: ").rstrip("\n")


def programme(monkeypatch, name, **functions):
    """Replace a module that a command runs with these functions."""
    monkeypatch.setitem(
        sys.modules, f"transformer.{name}", types.SimpleNamespace(**functions)
    )
