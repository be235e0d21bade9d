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
    reads: bool = False  # its value is a file to read
    folder: bool = False  # its value is a folder to write into
    creates: bool = False  # its value is a folder to create

    def parse(self, name: str, text: Any) -> Any:
        """Return the value that was typed.

        Args:
          name: of the flag or argument, as a user knows it.
          text: what was typed, or the default.

        Raises:
          UserError: if it is not an expected one.
        """
        if self.path:  # few shells expand the ~ of --FLAG=~/PATH
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
    """Return the rule for flags that only have an effect with another one."""
    expected = f"with --{flag} only; add that"
    return Rule(names, lambda values: bool(values[flag].value), expected)


def only_with_one_of(flags: Sequence[str], *names: str) -> Rule:
    """Return the rule for flags that only have an effect with one of some others."""
    *others, last = [f"--{flag}" for flag in flags]
    expected = f"with {', '.join(others)} or {last} only; add one of them"
    return Rule(names, lambda values: any(values[x].value for x in flags), expected)


def only_without(flag: str, *names: str) -> Rule:
    """Return the rule for flags that another one makes meaningless."""
    expected = f"without --{flag} only; leave that out"
    return Rule(names, lambda values: not values[flag].value, expected)


def only_for(flag: str, choices: Sequence[str], *names: str) -> Rule:
    """Return the rule for flags that only have an effect with some values of one."""
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
    # Positional arguments; a last one "run..." takes any number of values: a list.
    positional: Mapping[str, Flag] = dataclasses.field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What it does: the first line of its module's docstring."""
        first = (sys.modules[self.run.__module__].__doc__ or "").partition("\n")[0]
        return first[:1].lower() + first[1:].removesuffix(".")

    @property
    def usage(self) -> str:
        """Its positional arguments as in a usage line: `` GOLD [RUN ...]``."""
        names = [
            f"[{name.removesuffix('...')} ...]" if name.endswith("...") else name
            for name in self.positional
        ]
        return "".join(f" {name.upper()}" for name in names)

    def flags(self) -> dict[str, Flag]:
        """Return its flags; those in ``own`` differ from those of other commands."""
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


def new_folder_flag(help_: str) -> Flag:
    """Return a flag that names a folder to create."""
    return Flag(str, None, help_, _TEXT, path=True, creates=True)


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
    """Return a flag for each field of a dataclass, from its annotation.

    Text in an annotation is the help. The flag of a field without a default has none.
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
        "HOST:PORT of the first of several processes, or auto to detect it from Slurm, "
        "Open MPI, Kubernetes or a TPU pod (default: a single process)"
    ),
    "num_processes": count_flag("number of processes, with --coordinator=HOST:PORT"),
    "process_id": count_flag("index of this process, from 0", least=0),
    "config": path_flag(
        "FILE.py or FILE.py:VARIANT; override a key with --config.KEY=VALUE"
    ),
    "workdir": path_flag("folder of the run"),
    "init_from": path_flag(
        "WORKDIR or WORKDIR:STEP of a run to take the parameters from, averaged if "
        "translate would use the average; optimiser and schedule start from scratch"
    ),
    "split": choice_flag("pairs to evaluate on", ["test", "validation"], "test"),
    "step": count_flag(
        "step of the checkpoint (default: the average, the best or the last, depending "
        "on the run)"
    ),
    "average": count_flag("average the last K checkpoints (default: from the config)"),
    "last": count_flag("average the last K checkpoints (default: from the config)"),
    "device": choice_flag(
        "device to compute on; gpu and tpu fail if there is none",
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
        "data; memory: that of a training step, compiled but not run, for each choice "
        "of parallel.remat and parallel.layers",
        ["train", "loop", "greedy", "beam", "input", "startup", "memory"],
        "train",
    ),
    "shapes": choice_flag(
        "with --target: shapes of training batches to compile (default: largest)",
        ["largest", "all"],
    ),
    "simulate": count_flag(
        "without --target: print what a step costs each of 1 to 512 devices, for "
        "four model sizes and several meshes; for up to this many devices, simulated, "
        "it is compiled, for more a formula is used (default: 8)",
        least=0,
        most=512,
    ),
    "tokens": count_flag(
        "padded tokens per side of a batch (default: from the config)"
    ),
    "length": count_flag("tokens in the longest sentence", 32, least=2),
    "rounds": count_flag("number of measurements; the median is printed", 5),
    "profile": path_flag("folder to write a trace to, for TensorBoard or Perfetto"),
    "scores": switch_flag("write SCORE, a tab, then the translation"),
    "alignments": switch_flag(
        "write the translation, a tab, then the word alignments by cross-attention: "
        "SOURCE-TARGET, counted from 0"
    ),
    "tags": switch_flag(
        "for runs that output trees: input lines are word_TAG word_TAG, and the trees "
        "get these tags"
    ),
    "layer": count_flag("layer to take --alignments from (default: the last but one)"),
    "rows": text_flag(
        "rows of the config file or letters of groups, such as A,B,no_positions"
    ),
    "seeds": count_flag("runs per row, with config.seed = 0, 1, ...", 1, most=1000),
    "jobs": count_flag(
        "number of concurrent runs, which share the cores or accelerators; several may "
        "share a GPU (default: one per accelerator, one on a CPU, all with slurm)"
    ),
    "launcher": choice_flag("where to start the runs", ["local", "slurm"], "local"),
    "slurm.partition": text_flag(
        "Slurm partition; other options of submitit's SlurmExecutor are given in the "
        "same way: --slurm.gpus_per_node=1 --slurm.account=... --slurm.time=MINUTES "
        "(default time: 240; a run that needs more is saved and requeued)"
    ),
    "format": choice_flag(
        "output format; html also has plots", ["markdown", "html", "csv"], "markdown"
    ),
    "results": path_flag(
        "folders of small files written by report --save, separated by commas"
    ),
    "save": path_flag("folder to write the results of the runs to, as small files"),
    "systems": path_flag(
        "runs on the same data, or folders of such runs, separated by commas: the "
        "second half of Table 2, measured here"
    ),
    "parsing": path_flag(
        "runs of parsers, or folders of such runs, separated by commas: Table 4, with "
        "what was measured here"
    ),
    "static": switch_flag(
        "report what needs no training, for the rows of --config (default: "
        "experiments/table3.py)"
    ),
    "timed": switch_flag(
        "with --static: also time the layers of Table 1 (takes a minute)"
    ),
    "dry_run": switch_flag("print the commands of the runs without starting any"),
    "translations": file_flag(
        "file of translations of --input (default: the model's own)"
    ),
    "layers": text_flag("layers, counted from 1, such as 1,3 or 1-3 (default: all)"),
    "heads": text_flag("heads, counted from 1, such as 1,3 or 1-3 (default: all)"),
    "kind": choice_flag(
        "attention to draw; cross: from the decoder to the source (default: all in "
        "HTML, else cross, or encoder with --word if the model has it)",
        ["encoder", "decoder", "cross"],
    ),
    "word": text_flag(
        "draw what this word attends to, as in the paper's Figures 3 to 5"
    ),
    "d_model": text_flag("model widths, separated by commas", "512"),
    "warmup": text_flag("warm-up steps, separated by commas", "4000"),
    "steps": count_flag("last step to draw", 20_000, least=2),
    "smoothing": share_flag("probability taken from the target", 0.1),
    "ids": count_flag("size of the vocabulary drawn", 8, least=2, most=1000),
    "words": text_flag("words to plot, separated by commas"),
    "variant": choice_flag(
        "variant of BLEU, F1 or the error rates (default: the first one of the runs' "
        "measure)",
        list(itertools.chain(*VARIANTS.values())),
    ),
    "method": choice_flag("how to map embeddings to a plane", ["pca", "tsne"], "pca"),
    "side": choice_flag("which embeddings to plot", ["source", "target"], "source"),
    "neighbours": count_flag("nearest pieces to list for each word", 5),
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
