"""Flags and commands: what they are, and the flags that several commands share."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from absl import flags

from transformer.config import Check, type_and_checks
from transformer.search import Search


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag; it means the same in every command that has it."""

    define: Callable[..., Any]
    default: Any
    help: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    checks: Sequence[Check] = ()


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its function is given the parsed flags and returns an exit code."""

    run: Callable[[flags.FlagValues], int]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    own: dict[str, Flag] = dataclasses.field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What it does: the first line of the file of its function."""
        first = (sys.modules[self.run.__module__].__doc__ or "").partition("\n")[0]
        return first[:1].lower() + first[1:].removesuffix(".")

    def flags(self) -> dict[str, Flag]:
        """Return its flags; those in ``own`` mean something else than elsewhere."""
        return {
            name: (FLAGS | self.own)[name] for name in self.required + self.optional
        }


def text_flag(help_: str, default: str | None = None) -> Flag:
    """Return a flag of text."""
    return Flag(flags.DEFINE_string, default, help_)


def count_flag(help_: str, default: int | None = None, least: int = 1) -> Flag:
    """Return a flag of whole numbers, at least ``least``."""
    return Flag(flags.DEFINE_integer, default, help_, {"lower_bound": least})


def number_flag(help_: str, default: float | None = None, **bounds: float) -> Flag:
    """Return a flag of numbers."""
    return Flag(flags.DEFINE_float, default, help_, bounds)


def choice_flag(help_: str, values: Sequence[str], default: str | None = None) -> Flag:
    """Return a flag of one of some values."""
    return Flag(flags.DEFINE_enum, default, help_, {"enum_values": list(values)})


def switch_flag(help_: str) -> Flag:
    """Return a flag that is on or off."""
    return Flag(flags.DEFINE_boolean, False, help_)


def flags_of(cls: type) -> dict[str, Flag]:
    """Return a flag for each field of a dataclass, as its annotation says.

    A text in an annotation is the help. A field without a value has a flag without one.
    """
    found = {}
    for field in dataclasses.fields(cls):
        hint = typing.get_type_hints(cls, include_extras=True)[field.name]
        default = None if field.default is dataclasses.MISSING else field.default
        help_ = " ".join(note for note in hint.__metadata__ if isinstance(note, str))
        found[field.name] = _flag(hint, help_, default)
    return found


def _flag(hint: Any, help_: str, default: Any) -> Flag:
    kind, checks = type_and_checks(hint)
    if typing.get_origin(hint.__origin__) is Literal:
        return choice_flag(help_, typing.get_args(hint.__origin__), default)
    if kind is bool:
        return switch_flag(help_)
    define: Any = {int: flags.DEFINE_integer, float: flags.DEFINE_float}[kind]
    return Flag(define, default, help_, checks=checks)


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
    "config": text_flag(
        "FILE.py or FILE.py:VARIANT; change a key by --config.KEY=VALUE"
    ),
    "workdir": text_flag("folder of the run"),
    "split": choice_flag("pairs to evaluate on", ["test", "validation"], "test"),
    "step": count_flag("checkpoint to use (default: the last)"),
    "average": count_flag("average the last K checkpoints (default: the config's)"),
    "last": count_flag("average the last K checkpoints (default: the config's)"),
    "device": choice_flag(
        "where to compute; gpu and tpu stop where absent",
        ["any", "cpu", "gpu", "tpu"],
        "any",
    ),
    "input": text_flag(
        "file to translate, one sentence per line (default: standard input)"
    ),
    "output": text_flag("file to write (default: standard output)"),
    "source": text_flag("file of source sentences, one per line"),
    "target": text_flag("file of their translations"),
    **flags_of(Search),
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
    ),
    "tokens": count_flag("padded tokens per side of a batch (default: the config's)"),
    "length": count_flag("tokens of the longest sentence", 32, least=2),
    "rounds": count_flag("measurements, of which the median is printed", 5),
    "profile": text_flag("folder for a trace, for TensorBoard or Perfetto"),
    "scores": switch_flag("write SCORE, a tab, then the translation"),
    "alignments": switch_flag(
        "write the translation, a tab, then SOURCE-TARGET numbers of the words that "
        "cross-attention aligns, from 0"
    ),
    "layer": count_flag("whose cross-attention aligns (default: the last but one)"),
    "rows": text_flag(
        "rows of the config file, or letters of groups: A,B,no_positions"
    ),
    "seeds": count_flag("runs of each row, with config.seed = 0, 1, ...", 1),
    "jobs": count_flag(
        "runs at a time, which share the accelerators or the cores (default: one per "
        "accelerator, one on a CPU, all of them with slurm)"
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
    "static": switch_flag(
        "columns that need no training, for the rows of --config (default: "
        "experiments/table3.py)"
    ),
    "timed": switch_flag("--static with the time of the layers of Table 1, a minute"),
    "dry_run": switch_flag("print the commands of the runs, start none"),
    "translations": text_flag(
        "file of the translations of --input (default: the model's)"
    ),
    "layers": text_flag("numbers from 1, such as 1,3 or 1-3 (default: all)"),
    "heads": text_flag("numbers from 1, such as 1,3 or 1-3 (default: all)"),
    "kind": choice_flag(
        "whose attention; cross: the decoder's to the source (default: all in HTML, "
        "else cross, or encoder with --word)",
        ["encoder", "decoder", "cross"],
    ),
    "word": text_flag("draw what this word attends to, as the paper's Figures 3 to 5"),
    "d_model": text_flag("widths D, separated by commas", "512"),
    "warmup": text_flag("steps of warm-up, separated by commas", "4000"),
    "steps": count_flag("where the schedule ends", 20_000, least=2),
    "smoothing": number_flag(
        "share taken from the target", 0.1, lower_bound=0, upper_bound=1
    ),
    "ids": count_flag("ids of the vocabulary that is drawn", 8, least=2),
    "words": text_flag("words to place, separated by commas"),
    "method": choice_flag("how to place words in a plane", ["pca", "tsne"], "pca"),
    "side": choice_flag("whose embeddings", ["source", "target"], "source"),
    "neighbours": count_flag("pieces to name beside each word", 5),
    "statistics": switch_flag("measure what each head attends to, over a file"),
}


HOSTS = ("coordinator", "num_processes", "process_id")
SEARCH = tuple(flags_of(Search))
