"""Mistakes in flags: every one is told, and none is ignored."""

from pathlib import Path

import pytest
from support.calls import error, programme
from support.paths import EXPERIMENTS

from transformer.cli import files
from transformer.cli import main as cli
from transformer.cli.flags import Command, file_flag
from transformer.cli.parse import parse
from transformer.config import UserError

pytestmark = pytest.mark.usefixtures("started")
BASE = f"--config={EXPERIMENTS / 'base.py'}"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["train", "--wrokdir=x"], "got --wrokdir; did you mean --workdir?"),
        (["train", BASE], "train: expected --workdir: folder of the run; add it"),
        (["train", "--workdir=x"], "train: expected --config: FILE.py"),
        (["train", "x"], "train: expected flags only, got 'x'"),
        (
            ["train", "--config"],
            "--config: expected a value, got none; write --config=VALUE",
        ),
        (
            ["evaluate", "--split=train"],
            "--split: expected one of test, validation, got 'train'; ch",
        ),
        (
            ["evaluate", "--step=last"],
            "--step: expected a whole number, at least 1, got 'last'",
        ),
        (
            ["translate", "--beam=0"],
            "--beam: expected a whole number, greater than 0, got '0';",
        ),
        (
            ["translate", "--beam=many"],
            "whole number, greater than 0, got 'many'; change it",
        ),
        (
            ["translate", "--length_penalty=lenpen"],
            "--length_penalty: expected one of gnmt, power, got",
        ),
        (
            ["translate", "--top_p=-0.1"],
            "finite number, above 0 and at most 1, got '-0.1'",
        ),
        (
            ["translate", "--scores=perhaps"],
            "--scores: expected true or false, got 'perhaps'; ch",
        ),
        (
            ["average", "--last=0"],
            "--last: expected a whole number, at least 1, got '0'",
        ),
        (["translate", "--alpha=inf"], "--alpha: expected a finite number, 0 or more"),
        (["translate", "--alpha=nan"], "--alpha: expected a finite number, 0 or more"),
        (["translate", "--temperature=1e400"], "--temperature: expected a finite"),
        (["translate", "--step=1e3"], "expected a whole number, at least 1, got '1e3'"),
        (["translate", "--step=2147483648"], "a whole number, at most 2,147,483,647"),
        (["translate", "--workdir="], "--workdir: expected some text, got ''; change"),
        (
            ["translate", "--noscores=1"],
            "--noscores: expected no value, got '1'; leave",
        ),
        (["translate", "--undefok=beem", "--beem=4"], "got --undefok; see transformer"),
        (["translate", "--flagfile=x"], "one of its flags, got --flagfile; see"),
        (
            ["plan", "--simulate=513"],
            "--simulate: expected a whole number, at most 512",
        ),
        (["check"], "expected either --workdir or --config"),
        (["check", BASE, "--workdir=x"], "expected either --workdir or --config"),
        (["params", "--config=none.py"], "got none.py, which does not exist"),
        (["params", f"--config={EXPERIMENTS}"], ", a folder; give the path of one"),
        (["params", f"{BASE}:as_ran"], "expected :as_written or :as_run, got :as_ran"),
        (
            ["params", f"{BASE[:-7]}big.py:x"],
            "big.py: expected no variant, got :x; lea",
        ),
        (["params", BASE, "--config.model.head=4"], "got model.head; did you mean mod"),
        (["params", BASE, "--config.zzz=4"], "got zzz; see the config file"),
        (
            ["params", BASE, "--config.model=4"],
            "expected a key of the config file, got",
        ),
        (["params", BASE, "--noconfig.model.biass"], "got model.biass; did you mean"),
        (
            ["params", BASE, "--config.model.heads=four"],
            "config: model.heads: expected a whole number, got 'four'; change it",
        ),
        (
            ["params", BASE, "--config.model.heads=4.5"],
            "expected a whole number, got '4.5'",
        ),
        (
            ["params", BASE, "--config.model.dropout=x"],
            "model.dropout: expected a number, got 'x'",
        ),
        (
            ["params", BASE, "--config.model.attention_bias=x"],
            "expected true or false, got 'x'",
        ),
        (["params", BASE, "--config.model.heads=-1"], "expected a number greater than"),
        (["params", BASE, "--config.model.d_ff=0"], "expected a number greater than 0"),
        (
            ["params", BASE, "--config.device=gpus"],
            "expected one of any, cpu, gpu, tpu",
        ),
        (["params", "--config.seed=1", BASE], "before a value for --config"),
    ],
)
def test_mistakes_in_flags(capsys, arguments, expected):
    assert expected in error(capsys, *arguments)


# ---- arguments by place --------------------------------------------------------------

PLACES = {"first": file_flag("one file"), "more...": file_flag("other files")}


@pytest.mark.parametrize(
    "arguments, first, more",
    [(["a"], "a", []), (["a", "--output=o", "b", "--", "-c"], "a", ["b", "-c"])],
)
def test_arguments_by_place(arguments, first, more):
    command = Command(lambda values: 0, (), ("output",), positional=PLACES)
    assert command.usage == " FIRST [MORE ...]"
    values = parse("some", command, arguments)
    assert (values.first, values.more) == (first, more)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ([], "some: expected FIRST [MORE ...], got none; see transformer some --help"),
        (["--first=a"], "some: expected one of its flags, got --first; see"),
        ([""], "FIRST: expected some text, got ''; change it"),
        (["a", "b", "--output=b"], "--output: expected a file other than MORE, got b"),
    ],
)
def test_mistakes_in_arguments_by_place(arguments, expected):
    command = Command(lambda values: 0, (), ("output",), positional=PLACES)
    with pytest.raises(UserError) as refused:
        parse("some", command, arguments)
    assert expected in str(refused.value)


# ---- flags without effect ------------------------------------------------------------

SEARCH = ["translate", "--workdir=x"]
HEADS = ["visualize", "--workdir=x", "--source=a"]
MEANS = ["visualize", "--workdir=x", "--statistics"]


def plot(what):
    return ["plot", f"--what={what}", "--output=a.png"]


@pytest.mark.parametrize(
    "call, flag, wanted",
    [
        (SEARCH, "--temperature=2", "with --sample only; add that"),
        (SEARCH, "--temperature=1.0", "with --sample only; add that"),
        (SEARCH, "--top_k=3", "with --sample only"),
        (SEARCH, "--top_p=0.5", "with --sample only"),
        (SEARCH, "--seed=1", "with --sample only"),
        ([*SEARCH, "--nosample"], "--seed=1", "with --sample only"),
        ([*SEARCH, "--sample"], "--beam=2", "without --sample only; leave that out"),
        ([*SEARCH, "--sample"], "--alpha=2", "without --sample, or with --scores or"),
        ([*SEARCH, "--sample"], "--length_penalty=power", "without --sample, or with"),
        (SEARCH, "--layer=1", "with --alignments only; add that"),
        (SEARCH, "--process_id=1", "with --coordinator only"),
        (MEANS, "--layers=1", "without --statistics only"),
        (MEANS, "--heads=1", "without --statistics only"),
        (MEANS, "--kind=cross", "without --statistics only"),
        (MEANS, "--word=a", "without --statistics only"),
        (MEANS, "--target=a", "without --statistics only"),
        (MEANS, "--beam", "without --statistics only"),
        (MEANS, "--alpha=1", "with --beam only"),
        (HEADS, "--width=2", "with --beam only"),
        (HEADS, "--length_penalty=power", "with --beam only"),
        (HEADS, "--input=a", "with --statistics only"),
        (HEADS, "--translations=a", "with --statistics only"),
        ([*HEADS, "--beam"], "--layers=1", "without --beam only"),
        ([*HEADS, "--beam"], "--target=a", "without --beam only"),
        ([*HEADS, "--tree"], "--word=a", "without --tree only"),
        (plot("curves"), "--warmup=3", "with --what=schedule only; change that"),
        (plot("smoothing"), "--steps=3", "with --what=schedule only"),
        (plot("curves"), "--d_model=4", "with --what=schedule or positions only"),
        (plot("schedule"), "--smoothing=0.2", "with --what=smoothing only"),
        (plot("positions"), "--ids=4", "with --what=smoothing only"),
        (plot("schedule"), "--length=4", "with --what=positions only"),
        (plot("schedule"), "--workdir=x", "with --what=curves or length or positions"),
        (plot("curves"), "--edges=5", "with --what=length only"),
        (plot("curves"), "--variant=13a", "with --what=length only"),
        (plot("curves"), "--step=4", "with --what=positions or embeddings only"),
        (plot("positions"), "--step=4", "with --workdir only"),
        (plot("positions"), "--words=a", "with --what=embeddings only"),
        (plot("positions"), "--input=a", "with --what=embeddings only"),
        (plot("positions"), "--method=tsne", "with --what=embeddings only"),
        (plot("positions"), "--side=target", "with --what=embeddings only"),
        (plot("positions"), "--neighbours=1", "with --what=embeddings only"),
        (["bench", BASE, "--what=loop"], "--tokens=64", "with --what=train or greedy"),
        (
            ["bench", BASE, "--what=startup"],
            "--length=8",
            "with --what=train or greedy",
        ),
        (["bench", BASE, "--what=memory"], "--rounds=2", "with --what=train or loop"),
        (["bench", BASE, "--what=input"], "--profile=x", "with --what=train or greedy"),
        (["plan", BASE], "--what=train", "with --target only"),
        (["plan", BASE], "--shapes=all", "with --target only"),
        (["plan", BASE, "--target=cuda"], "--simulate=1", "without --target only"),
        (
            ["plan", BASE, "--target=cuda", "--what=search"],
            "--shapes=all",
            "with --what",
        ),
        (["report", "--workdir=x"], "--timed", "with --static only"),
        (["report", "--workdir=x"], "--variant=13a", "with --systems only"),
        (["report", "--workdir=x"], BASE, "with --static only"),
    ],
)
def test_a_flag_without_effect_is_refused(capsys, started, call, flag, wanted):
    name = flag.partition("=")[0]
    text = error(capsys, *call, flag)
    assert text.startswith(f"{name}: expected {wanted}")
    assert text.endswith(f" or leave {name} out") and not started


@pytest.mark.parametrize(
    "more",
    [
        ["--sample", "--alpha=2", "--scores"],
        ["--sample", "--length_penalty=power", "--n_best=2"],
        ["--noscores", "--noalignments"],
        ["--alignments", "--layer=1"],
    ],
)
def test_a_flag_with_an_effect_is_taken(monkeypatch, trained, more):
    asked = []
    programme(
        monkeypatch, "stream", translate_stream=lambda *_, **how: asked.append(how)
    )
    (trained / "in").write_text("a\n")
    call = ["translate", f"--workdir={trained}", f"--input={trained / 'in'}"]
    assert cli.main([*call, *more]) == 0 and len(asked) == 1


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_rules_are_about_flags_of_the_command(name):
    command = cli.COMMANDS[name]
    for rule in command.rules:
        assert rule.flags and set(rule.flags) <= set(command.optional)


def test_folders_may_be_many(monkeypatch, tmp_path):
    """More than a file's name may have letters."""
    monkeypatch.chdir(tmp_path)
    names = [f"multi30k_seed_{seed}" for seed in range(40)]
    assert files.folders(",".join(names), "workdir") == [*map(Path, names)]
    (tmp_path / "one,two").mkdir()
    assert files.folders("one,two", "workdir") == [Path("one,two")]


def test_a_path_may_begin_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    command = cli.COMMANDS["train"]
    of_run = ["--workdir=~/runs/one", "--init_from=~/old:3", "--config.data.dir=~/text"]
    values = parse("train", command, [BASE, *of_run, "--config.data.name=a~/b"])
    assert values.workdir == f"{tmp_path}/runs/one"
    assert values.init_from == f"{tmp_path}/old:3"
    assert values.config.data.dir == f"{tmp_path}/text"
    assert values.config.data.name == "a~/b"
    (tmp_path / "in").touch()
    several = ["--workdir", "~/a,~/b", "--input=~/in"]
    values = parse("translate", cli.COMMANDS["translate"], several)
    assert values.workdir == f"{tmp_path}/a,{tmp_path}/b"
    # What is drawn is no path.
    asked = ["--workdir=x", "--source=~/a", "--output=~/a.png"]
    drawn = parse("visualize", cli.COMMANDS["visualize"], asked)
    assert drawn.source == "~/a" and drawn.output == f"{tmp_path}/a.png"
