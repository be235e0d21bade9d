"""What README and docs tell a reader to type can be typed; what they link is there."""

import ast
import pkgutil
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from transformer import config
from transformer.cli import main as cli
from transformer.cli.parse import parse

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_LINES, MOST_WORDS_A_MINUTE = 120, 350


def code(page: Path) -> list[str]:
    """Return the lines of a page's blocks of code, continued ones joined, and spans."""
    inside, outside, fence = [], [], None
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        elif fence == "```":
            inside.append(line)
        elif fence is None:
            outside.append(line)
    lines = "\n".join(inside).replace("\\\n", " ").splitlines()
    spans = r"`((?:[A-Z_]+=\S+ )*(?:transformer|python) [^`]+)`"
    return lines + re.findall(spans, "\n".join(outside))


def commands(page: Path, program: str) -> list[list[str]]:
    """Return the arguments of each call of a program on a page."""
    found = []
    for line in code(page):
        for part in re.split(r"&&|\||;|--command=\"", line):
            words = shlex.split(
                part.replace('"', "") if part.count('"') % 2 else part, True
            )
            if program in words:
                found.append(words[words.index(program) + 1 :])
    return found


CALLS = [
    pytest.param(arguments, id=f"{page.stem}: {' '.join(arguments)[:60]}")
    for page in PAGES
    for arguments in commands(page, "transformer")
    if arguments[0] != "COMMAND" and len(arguments) > 1
]


@pytest.mark.parametrize("arguments", CALLS)
def test_a_command_can_be_parsed(arguments, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, *rest = arguments
    assert name in cli.COMMANDS
    if "--help" in rest:
        return
    values = parse(name, cli.COMMANDS[name], rest)
    if "config" in values and values.config is not None and name != "ablate":
        config.resolve(values.config)


def test_there_are_commands_to_parse():
    assert len(CALLS) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_program_takes_the_flags_that_it_is_shown_with(page, monkeypatch, capsys):
    for program, *rest in commands(page, "python"):
        if program == "-m":
            assert rest[0] in ("pytest", "transformer", "transformer.tools.strips")
            files = [word for word in rest if word.endswith(".py")]
            assert all((ROOT / file).is_file() for file in files)
            continue
        assert (ROOT / program).is_file(), program
        if not rest:
            continue
        monkeypatch.setattr(sys, "argv", [program, "--help"])
        monkeypatch.syspath_prepend(str((ROOT / program).parent))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / program), run_name="__main__")
        assert end.value.code == 0
        text = capsys.readouterr().out
        for flag in (word.split("=")[0] for word in rest if word.startswith("--")):
            assert flag in text, f"{program} has no {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_is_there(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme():
    text = PAGES[0].read_text()
    for page in PAGES[1:]:
        assert f"({page.relative_to(ROOT)})" in text, page


def test_the_readme_is_read_in_two_minutes():
    text = PAGES[0].read_text()
    assert len(text.splitlines()) <= MOST_LINES
    prose = re.sub(r"```.*?```|\]\(.*?\)", "", text, flags=re.DOTALL)
    assert len(re.findall(r"[A-Za-z]{2,}", prose)) <= 2 * MOST_WORDS_A_MINUTE


def test_the_readme_shows_every_command():
    shown = set(re.findall(r"`transformer (\w+)`", PAGES[0].read_text()))
    assert shown == set(cli.COMMANDS)


def test_the_paper_s_equations_are_where_the_readme_says():
    section = README.read_text().split("## The paper in the code")[1].split("## ")[0]
    names = re.findall(r"`((?:nn|models|decode|run|paper)[.][\w.]+)`", section)
    assert len(names) > 12
    for name in names:
        found = pkgutil.resolve_name(f"transformer.{name}")
        assert found.__doc__, name


# ---- the tree of docs/architecture.md ------------------------------------------------

ARCHITECTURE = ROOT / "docs" / "architecture.md"
TREE = re.compile(r"(?<=^```tree\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def tree() -> str:
    """Return a line for each module: its path and the first line of its docstring."""
    lines = []
    for path in sorted((ROOT / "transformer").rglob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        name = path.relative_to(ROOT).as_posix()
        lines.append(f"{name:42}  {said.splitlines()[0] if said else ''}".rstrip())
    return "\n".join(lines) + "\n"


def test_the_tree_is_that_of_the_modules():
    assert TREE.search(ARCHITECTURE.read_text())[0] == tree()  # type: ignore[index]


@pytest.mark.parametrize("path", sorted((ROOT / "transformer").rglob("*.py")), ids=str)
def test_every_module_says_what_it_is(path):
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said and said.splitlines()[0].endswith("."), path


if __name__ == "__main__":
    page = ARCHITECTURE.read_text()
    ARCHITECTURE.write_text(TREE.sub(lambda _: tree(), page))
