"""Flags and commands: what they are, and the flags that several commands share."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from absl import flags

from transformer.config import UTF8, Check, UserError, type_and_checks
from transformer.metrics.measures import VARIANTS
from transformer.search import Search


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag; it means the same in every command that has it."""

    kind: type  # str, int, float or bool
    default: Any
    help: str
    checks: Sequence[Check] = ()
    choices: Sequence[str] = ()
    path: bool = False  # its value is a path, or several
    reads: bool = False  # it is that of a file to read
    folder: bool = False  # it is that of a folder to write into

    def parse(self, name: str, text: Any) -> Any:
        """Return the value that was typed.

        Args:
          name: of the flag or argument, as a user knows it.
          text: what was typed, or the default.

        Raises:
          UserError: if it is none of those expected.
        """
        if self.path:  # few shells put the home folder for the ~ of --FLAG=~/PATH
            text = ",".join(map(os.path.expanduser, text.split(",")))
        try:
            value = _READERS[self.kind](text)
            wrong = [check for check in self.checks if not check.passes(value)]
        except ValueError:
            value, wrong = None, [*self.checks]
        if value is None or wrong:
            more = [check.expected.removeprefix("a number ") for check in wrong[:1]]
            expected = ", ".join([*_KINDS[self.kind], *more])
            raise UserError(f"{name}: expected {expected}, got {text!r}; change it")
        return value


def _finite(text: Any) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _bool(text: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if (word := str(text).lower()) not in known:
        raise ValueError(text)
    return known[word]


_READERS: dict[type, Callable[[Any], Any]] = {
    int: int,
    float: _finite,
    bool: _bool,
    str: str,
}
_KINDS = {
    int: ["a whole number"],
    float: ["a finite number"],
    bool: ["true or false"],
    str: [],
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Flags that have an effect only under a condition, and are refused without it."""

    flags: Sequence[str]
    holds: Callable[[Any], bool]  # of the values of all flags
    expected: str  # the condition in words, and how to meet it


def only_with(flag: str, *names: str) -> Rule:
    """Return the rule for flags that say more of another one."""
    expected = f"with --{flag} only; add that"
    return Rule(names, lambda values: bool(values[flag].value), expected)


def only_with_one_of(flags: Sequence[str], *names: str) -> Rule:
    """Return the rule for flags that say more of any of several others."""
    *others, last = [f"--{flag}" for flag in flags]
    expected = f"with {', '.join(others)} or {last} only; add one of them"
    return Rule(names, lambda values: any(values[x].value for x in flags), expected)


def only_without(flag: str, *names: str) -> Rule:
    """Return the rule for flags that another one makes meaningless."""
    expected = f"without --{flag} only; leave that out"
    return Rule(names, lambda values: not values[flag].value, expected)


def only_for(flag: str, choices: Sequence[str], *names: str) -> Rule:
    """Return the rule for flags that belong to some values of another one."""
    expected = f"with --{flag}={' or '.join(choices)} only; change that"
    return Rule(names, lambda values: values[flag].value in choices, expected)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its function is given the parsed flags and returns an exit code."""

    run: Callable[[flags.FlagValues], int]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    own: dict[str, Flag] = dataclasses.field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    # Arguments by place; of a last one "run..." there may be none or more: a list.
    positional: Mapping[str, Flag] = dataclasses.field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What it does: the first line of the file of its function."""
        first = (sys.modules[self.run.__module__].__doc__ or "").partition("\n")[0]
        return first[:1].lower() + first[1:].removesuffix(".")

    @property
    def usage(self) -> str:
        """Its arguments by place as a line of help shows them: `` GOLD [RUN ...]``."""
        names = [
            f"[{name.removesuffix('...')} ...]" if name.endswith("...") else name
            for name in self.positional
        ]
        return "".join(f" {name.upper()}" for name in names)

    def flags(self) -> dict[str, Flag]:
        """Return its flags; those in ``own`` mean something else than elsewhere."""
        return {
            name: (FLAGS | self.own)[name] for name in self.required + self.optional
        }


_TEXT = [Check(lambda x: x and "\0" not in x, "some text"), UTF8]


def text_flag(help_: str, default: str | None = None) -> Flag:
    """Return a flag of text."""
    return Flag(str, default, help_, _TEXT)


def path_flag(help_: str) -> Flag:
    """Return a flag that names a file or a folder, or several."""
    return Flag(str, None, help_, _TEXT, path=True)


def file_flag(help_: str) -> Flag:
    """Return a flag that names a file to read."""
    return Flag(str, None, help_, _TEXT, path=True, reads=True)


def folder_flag(help_: str) -> Flag:
    """Return a flag that names a folder to write into."""
    return Flag(str, None, help_, _TEXT, path=True, folder=True)


def count_flag(
    help_: str, default: int | None = None, least: int = 1, most: int = 2**31 - 1
) -> Flag:
    """Return a flag of whole numbers, from ``least`` to ``most``."""
    checks = (
        Check(lambda x: x >= least, f"at least {least}"),
        Check(lambda x: x <= most, f"at most {most:,}"),
    )
    return Flag(int, default, help_, checks)


def share_flag(help_: str, default: float) -> Flag:
    """Return a flag of numbers from 0 to 1."""
    check = Check(lambda x: 0 <= x <= 1, "at least 0 and at most 1")
    return Flag(float, default, help_, [check])


def choice_flag(help_: str, values: Sequence[str], default: str | None = None) -> Flag:
    """Return a flag of one of some values."""
    check = Check(lambda x: x in values, f"one of {', '.join(values)}")
    return Flag(str, default, help_, [check], values)


def switch_flag(help_: str) -> Flag:
    """Return a flag that is on or off."""
    return Flag(bool, False, help_)


def flags_of(cls: type) -> dict[str, Flag]:
    """Return a flag for each field of a dataclass, as its annotation says.

    A text in an annotation is the help. A field without a value has a flag without one.
    """
    found = {}
    for field in dataclasses.fields(cls):
        hint = typing.get_type_hints(cls, include_extras=True)[field.name]
        default = None if field.default is dataclasses.MISSING else field.default
        help_ = " ".join(note for note in hint.__metadata__ if isinstance(note, str))
        kind, checks = type_and_checks(hint)
        is_choice = typing.get_origin(hint.__origin__) is Literal
        choices = typing.get_args(hint.__origin__) if is_choice else ()
        found[field.name] = Flag(kind, default, help_, checks, choices)
    return found


def given(values: flags.FlagValues, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of some flags by name, as arguments of a function."""
    return {name: values[name].value for name in names}


FLAGS = {
    "coordinator": text_flag(
        "HOST:PORT of the first of several processes, or auto to ask Slurm, "
        "Open MPI, Kubernetes or a TPU pod (default: one process alone)"
    ),
    "num_processes": count_flag("processes of the run, with --coordinator=HOST:PORT"),
    "process_id": count_flag("which of them this is, from 0", least=0),
    "config": path_flag(
        "FILE.py or FILE.py:VARIANT; change a key by --config.KEY=VALUE"
    ),
    "workdir": path_flag("folder of the run"),
    "init_from": path_flag(
        "WORKDIR or WORKDIR:STEP of a run to start from: its parameters, averaged "
        "where translate would take the average; optimiser and schedule begin anew"
    ),
    "split": choice_flag("pairs to evaluate on", ["test", "validation"], "test"),
    "step": count_flag(
        "checkpoint to use (default: the average, the best or the last, as the run has)"
    ),
    "average": count_flag("average the last K checkpoints (default: the config's)"),
    "last": count_flag("average the last K checkpoints (default: the config's)"),
    "device": choice_flag(
        "where to compute; gpu and tpu stop where absent",
        ["any", "cpu", "gpu", "tpu"],
        "any",
    ),
    "input": file_flag(
        "file to translate, one sentence per line (default: standard input)"
    ),
    "output": path_flag("file to write (default: standard output)"),
    "source": file_flag("file of source sentences, one per line"),
    "target": file_flag("file of their translations"),
    **flags_of(Search),
    "constrained": dataclasses.replace(flags_of(Search)["constrained"], default=None),
    "what": choice_flag(
        "what to measure; loop: the training loop with its input, on the config's own "
        "data; memory: of a training step, compiled in each way of parallel.remat and "
        "parallel.layers, none made",
        ["train", "loop", "greedy", "beam", "input", "startup", "memory"],
        "train",
    ),
    "shapes": choice_flag(
        "with --target: which shapes of training batches to compile (default: largest)",
        ["largest", "all"],
    ),
    "simulate": count_flag(
        "without --target, print what a step costs each of 1 to 512 devices, for four "
        "sizes of model and each way to spread them: for up to so many, simulated, it "
        "is compiled, for more the formula serves (default: 8)",
        least=0,
        most=512,
    ),
    "tokens": count_flag("padded tokens per side of a batch (default: the config's)"),
    "length": count_flag("tokens of the longest sentence", 32, least=2),
    "rounds": count_flag("measurements, of which the median is printed", 5),
    "profile": path_flag("folder for a trace, for TensorBoard or Perfetto"),
    "scores": switch_flag("write SCORE, a tab, then the translation"),
    "alignments": switch_flag(
        "write the translation, a tab, then SOURCE-TARGET numbers of the words that "
        "cross-attention aligns, from 0"
    ),
    "tags": switch_flag(
        "of a run that writes trees: the lines are word_TAG word_TAG, and trees have "
        "these tags"
    ),
    "layer": count_flag("whose cross-attention aligns (default: the last but one)"),
    "rows": text_flag(
        "rows of the config file, or letters of groups: A,B,no_positions"
    ),
    "seeds": count_flag("runs of each row, with config.seed = 0, 1, ...", 1, most=1000),
    "jobs": count_flag(
        "runs at a time, which share the cores or the accelerators, a GPU also among "
        "several (default: one per accelerator, one on a CPU, all of them with slurm)"
    ),
    "launcher": choice_flag("where the runs are started", ["local", "slurm"], "local"),
    "slurm.partition": text_flag(
        "for Slurm; other options of submitit's SlurmExecutor likewise, "
        "--slurm.gpus_per_node=1 --slurm.time=MINUTES --slurm.account=... (default of "
        "the time: 240; a run that needs more is saved and queued again)"
    ),
    "format": choice_flag(
        "html holds plots too", ["markdown", "html", "csv"], "markdown"
    ),
    "results": path_flag(
        "folders of small files that --save wrote, a comma between two"
    ),
    "save": path_flag("folder for the results of the runs as small files"),
    "systems": path_flag(
        "runs on the same data, or folders of such, separated by commas: the "
        "second half of Table 2, measured here"
    ),
    "parsing": path_flag(
        "runs of parsers, or folders of such, separated by commas: Table 4, and what "
        "was measured here"
    ),
    "static": switch_flag(
        "columns that need no training, for the rows of --config (default: "
        "experiments/table3.py)"
    ),
    "timed": switch_flag("--static with the time of the layers of Table 1, a minute"),
    "dry_run": switch_flag("print the commands of the runs, start none"),
    "translations": file_flag(
        "file of the translations of --input (default: the model's)"
    ),
    "layers": text_flag("numbers from 1, such as 1,3 or 1-3 (default: all)"),
    "heads": text_flag("numbers from 1, such as 1,3 or 1-3 (default: all)"),
    "kind": choice_flag(
        "whose attention; cross: the decoder's to the source (default: all in HTML, "
        "else cross, or encoder with --word where the model has it)",
        ["encoder", "decoder", "cross"],
    ),
    "word": text_flag("draw what this word attends to, as the paper's Figures 3 to 5"),
    "d_model": text_flag("widths D, separated by commas", "512"),
    "warmup": text_flag("steps of warm-up, separated by commas", "4000"),
    "steps": count_flag("where the schedule ends", 20_000, least=2),
    "smoothing": share_flag("share taken from the target", 0.1),
    "ids": count_flag("ids of the vocabulary that is drawn", 8, least=2, most=1000),
    "words": text_flag("words to place, separated by commas"),
    "variant": choice_flag(
        "of BLEU, F1 or the error rates (default: the first of the runs' measure)",
        list(itertools.chain(*VARIANTS.values())),
    ),
    "method": choice_flag("how to place words in a plane", ["pca", "tsne"], "pca"),
    "side": choice_flag("whose embeddings", ["source", "target"], "source"),
    "neighbours": count_flag("pieces to name beside each word", 5),
    "statistics": switch_flag("measure what each head attends to, over a file"),
}


HOSTS = ("coordinator", "num_processes", "process_id")
PROCESSES = (
    only_with("coordinator", "num_processes", "process_id"),
    Rule(
        ("process_id",),
        lambda values: (
            values.num_processes is None or values.process_id < values.num_processes
        ),
        "a number below --num_processes; change it",
    ),
)
SEARCH = tuple(flags_of(Search))
