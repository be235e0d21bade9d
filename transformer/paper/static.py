"""The columns of Tables 1 and 3 that need no training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax

from transformer import models
from transformer.config import Config
from transformer.paper import complexity
from transformer.paper.complexity import Sizes
from transformer.paper.rows import TABLE3
from transformer.pictures import plots
from transformer.pictures.tables import Table, scientific
from transformer.tools import flops

LENGTH = 32  # pieces per side of the pairs whose operations are counted

# Section 6.1: days of training on so many P100, at what one was estimated to sustain.
_HOURS = {"base": 12.0, "big": 3.5 * 24}
_DEVICES = 8
_SUSTAINED = 9.5e12  # FLOP/s

# Where Table 1 is shown.
_LENGTHS = (33, 65, 129)
_WIDTH, _REACH = 512, 9  # d, and k = r
_TIMED_LENGTHS = (64, 128, 256, 512, 1024, 2048)
_TIMED_WIDTH = 64

_TABLE1_NOTE = (
    "Laws are least-squares fits, over logarithms, to counts in the traced layers: "
    "matrix products and convolutions, 2 operations per multiply-add. The paper's "
    "n^2 d and r n d leave out attention's four projections, 8 n d^2 operations, which "
    "the full layer includes: they cost more than attention to all positions as long "
    "as n < 2 d. The recurrent layers are those of models/rnn, with the product of all "
    "inputs: 6 n d^2 multiply-adds for a GRU, 8 for an LSTM."
)
_CHAIN_NOTE = (
    "The longest chain of dependent products, whatever their size: scores and sums in "
    "attention; one at each step of a recurrent layer, two in the GRU, as its "
    "candidate needs its reset gate."
)
_PATH_NOTE = (
    "Layers (time steps for the recurrent layer) until every output depends on every "
    "input, by the Jacobians (recurrent layers and convolutions read from left to "
    "right: on every input up to its position). Layer i of the dilated stack has "
    "dilation k^i, i = 0, 1, ...; it takes ceil(log_k n). Half of a neighbourhood of r "
    "is on each side, so each layer reaches (r - 1) / 2 further, and the paper's n/r "
    "is in full 2 (n - 1) / (r - 1), rounded up; n/k is (n - 1) / (k - 1)."
)

_MORE_NOTE = (
    "2 operations per multiply-add. A separable convolution is one per feature, then "
    "one product (section 4). The blocks of ConvS2S and ByteNet are those of the "
    "models: ConvS2S convolves to 2 d features, one half gating the other; ByteNet "
    "narrows to d / 2, convolves, and widens. Attention in blocks is restricted "
    "self-attention as the models compute it: 3 blocks of (r - 1) / 2 keys per query, "
    "n padded to whole blocks, without its projections. Paths are in stacks of the "
    "layer, as above: ConvS2S's encoder reads (k - 1) / 2 positions further each way "
    "with each block; ByteNet's dilations 1, 2, 4, 8, 16 repeat, so its path grows as "
    "log n within 31 (k - 1) positions, and as n beyond."
)


def tables(rows: Mapping[str, Config], timed: bool = False) -> list[Table]:
    """Compare parameters, operations and Table 1 with the paper's.

    Args:
      rows: the rows of Table 3, name to configuration.
      timed: measure seconds by n too, which takes a minute.

    Returns:
      Parameters, training cost, and Table 1 measured.

    Raises:
      UserError: if a configuration does not give the size of its vocabulary.
    """
    found = [_parameter_table(rows), _cost_table(rows)]
    found += [_operations_table(), _chain_table(), _path_table(), _more_table()]
    return [*found, _time_table()] if timed else found


def figures(timed: bool = False) -> list[str]:
    """Draw Table 1: operations by n, and seconds by n if they are measured.

    Args:
      timed: as for ``tables``, whose measurement is used again.

    Returns:
      SVG texts.
    """
    pictures = [_operations_figure()]
    return pictures + [_time_figure()] if timed else pictures


# ---- Table 3 -------------------------------------------------------------------------


def parameters(settings: Config) -> int:
    """Count the parameters of a configuration without making any."""
    size = models.configured_vocabulary(settings)
    return models.parameters(models.make(settings, size, size))


def fitting_vocabulary(settings: Config, millions: int) -> tuple[int, int]:
    """Return the least and the most table rows that give a printed parameter count.

    Args:
      settings: a configuration, whose own vocabulary does not matter.
      millions: of parameters, as printed: without a digit after the point.
    """

    def count(size: int) -> int:
        model = dataclasses.replace(settings.model, vocab_size=size)
        return parameters(dataclasses.replace(settings, model=model))

    few = 10  # and what each row more adds
    each = count(few + 1) - count(few)
    least, end = ((millions + half) * 10**6 - count(few) for half in (-0.5, 0.5))
    return math.ceil(least / each) + few, math.ceil(end / each) + few - 1


def step_operations(settings: Config, length: int = LENGTH) -> int:
    """Count the operations of an update on a full batch of pairs of one length.

    Args:
      settings: a configuration.
      length: S and T in pieces, no more than the configuration lets in.

    Returns:
      Operations by the formula of ``flops.configured_step``, which agrees with the
      count in the traced train step to the last one; tracing large models takes seconds
      per row.
    """
    length = min(length, settings.data.max_length)
    pairs = settings.batch.tokens // length
    vocabulary = models.configured_vocabulary(settings)
    return flops.configured_step(settings, pairs, length, length, vocabulary)


def paper_cost(row: str) -> float | None:
    """Estimate training FLOPs as the paper does, hours x devices x sustained FLOP/s.

    Returns:
      The estimate; None for the rows of Table 3 whose hours it does not name.

    Source: section 6.1, footnote 5, and section 5.2.
    """
    if row not in _HOURS:
        return None
    return _HOURS[row] * 3600 * _DEVICES * _SUSTAINED


def _parameter_table(rows: Mapping[str, Config]) -> Table:
    cells = []
    for row, settings in rows.items():
        count, printed = parameters(settings), TABLE3[row].millions
        agrees = ""
        if printed is not None:
            agrees = _agreement(settings, count, printed)
        shown = "" if printed is None else str(printed)
        size = f"{models.configured_vocabulary(settings):,}"
        cells.append((row, size, f"{count / 1e6:.2f}", shown, agrees))
    return Table(
        "Parameters, millions (Table 3)",
        ("row", "table rows", "ours", "paper", "agree to the printed digit"),
        tuple(cells),
        "With one tied table of 40,960 rows and biases in attention's projections, all "
        "the paper's counts are met except that of the big row: 213 needs 35,296 to "
        "36,272 table rows, while the others together need 40,932 to 41,160.",
    )


def _agreement(settings: Config, count: int, printed: int) -> str:
    if round(count / 1e6) == printed:
        return "yes"
    least, most = fitting_vocabulary(settings, printed)
    return f"no, {least:,} to {most:,} table rows would"


def _cost_table(rows: Mapping[str, Config]) -> Table:
    cells, ratios = [], []
    for row, settings in rows.items():
        step = step_operations(settings)
        run, paper = step * settings.train.steps, paper_cost(row)
        ratios.append(step_operations(settings, settings.data.max_length) / step)
        cells.append(
            (
                row,
                f"{settings.train.steps:,}",
                scientific(step),
                scientific(run),
                scientific(paper, 1),
                "" if paper is None else f"{run / paper:.2f}",
            )
        )
    return Table(
        "Training cost, floating-point operations",
        ("row", "steps", "per step", "the run", "paper's estimate", "ours / paper's"),
        tuple(cells),
        "Ours: matrix products, forward and backward, 2 operations per multiply-add, "
        f"for batches full of pairs of {LENGTH} pieces per side; for the longest, "
        f"{min(ratios):.2f} to {max(ratios):.2f} times as much. The paper's: hours x "
        "8 devices x 9.5e12 FLOP/s, what the devices could have done in that time; it "
        "gives hours for base and big only.",
    )


# ---- Table 1 -------------------------------------------------------------------------


def _operations_table() -> Table:
    sizes = Sizes(_LENGTHS[-1], _WIDTH, _REACH, _REACH)
    cells = [
        (
            name,
            _printed(row.operations),
            str(complexity.operations_law(name)),
            f"{complexity.operations(name, sizes):,}",
            f"{complexity.whole_operations(name, sizes):,}",
        )
        for name, row in complexity.ROWS.items()
    ]
    at = f"n = {sizes.n}, d = {sizes.d}, k = r = {sizes.k}"
    heads = ("layer", "paper", "measured", f"at {at}", "the full layer there")
    note = f"{_TABLE1_NOTE} {_crossing()}"
    return Table("Operations per layer (Table 1)", heads, tuple(cells), note)


def _crossing() -> str:
    """Return up to which length attention takes fewer operations, by the laws."""
    attention = complexity.operations_law("self-attention").constant
    lengths = [
        f"{complexity.operations_law(row).constant / attention:.3g} d ({row})"
        for row in complexity.RECURRENT
    ]
    return (
        "By these laws attention to all positions takes fewer operations than a "
        f"recurrent layer as long as n is below {' and '.join(lengths)}."
    )


def _chain_table() -> Table:
    cells = []
    for name, row in complexity.ROWS.items():
        sizes = [Sizes(n, _REACH) for n in _LENGTHS]
        found = [complexity.sequential_operations(name, each) for each in sizes]
        law = str(complexity.sequential_law(name))
        cells.append((name, _printed(row.sequential), law, *map(str, found)))
    heads = ("layer", "paper", "measured", *(f"n = {n}" for n in _LENGTHS))
    return Table("Sequential operations (Table 1)", heads, tuple(cells), _CHAIN_NOTE)


def _path_table() -> Table:
    cells = []
    for name, path in complexity.PATHS.items():
        sizes = [Sizes(n, 1, _REACH, _REACH) for n in _LENGTHS]
        found = [complexity.path_length(name, each) for each in sizes]
        law = str(complexity.path_law(name))
        cells.append((name, _printed(path.powers), law, *map(str, found)))
    at = [f"n = {n}, k = r = {_REACH}" for n in _LENGTHS]
    heads = ("layer", "paper", "measured", *at)
    return Table("Maximum path length (Table 1)", heads, tuple(cells), _PATH_NOTE)


def _more_table() -> Table:
    sizes = Sizes(_LENGTHS[-1], _WIDTH, _REACH, _REACH)
    cells = [
        (
            name,
            more.formula,
            f"{more.operations(sizes):,}",
            f"{complexity.operations(name, sizes):,}",
            str(complexity.sequential_operations(name, sizes)),
            str(complexity.path_length(name, sizes._replace(d=1))),
        )
        for name, more in complexity.MORE.items()
    ]
    at = f"n = {sizes.n}, d = {sizes.d}, k = r = {sizes.k}"
    counted = f"by it at {at}", "counted there"
    heads = ("layer", "formula", *counted, "sequential", "maximum path length")
    return Table("Layers that Table 1 does not have", heads, tuple(cells), _MORE_NOTE)


def _printed(powers: Mapping[str, float]) -> str:
    """Write a term of Table 1 as the paper does.

    >>> _printed({"n": 2, "d": 1}), _printed({"n": 1, "r": -1}), _printed({"n": 0})
    ('n^2 d', 'n/r', '1')
    """
    above = [x if p == 1 else f"{x}^{p:g}" for x, p in powers.items() if p > 0]
    below = [f"/{x}" for x, p in powers.items() if p < 0]
    return (" ".join(above) or "1") + "".join(below)


def _times() -> dict[str, list[float]]:
    return complexity.seconds(_TIMED_LENGTHS, _TIMED_WIDTH, _REACH, _REACH)


def _time_table() -> Table:
    cells = [
        (name, *(f"{1e3 * seconds:.3g}" for seconds in found))
        for name, found in _times().items()
    ]
    return Table(
        "Time of a layer, milliseconds",
        ("layer", *(f"n = {n}" for n in _TIMED_LENGTHS)),
        tuple(cells),
        f"Measured on this machine ({jax.devices()[0].device_kind}): medians, "
        f"compiled, one sequence, d = {_TIMED_WIDTH}, k = r = {_REACH}, attention "
        "without its projections.",
    )


def _operations_figure() -> str:
    def counts(name: str) -> Sequence[float]:
        sizes = [Sizes(n, _WIDTH, _REACH, _REACH) for n in _TIMED_LENGTHS]
        return [complexity.operations(name, each) for each in sizes]

    lines = {}
    for name, row in complexity.ROWS.items():
        law = complexity.operations_law(name)
        label = f"{name}: {law} (paper {_printed(row.operations)})"
        lines[label] = _TIMED_LENGTHS, counts(name)
    title = f"Operations per layer, d = {_WIDTH}, k = r = {_REACH}"
    return plots.powers(title, "positions n", "operations", lines).svg()


def _time_figure() -> str:
    lines = {
        name: (_TIMED_LENGTHS, [1e3 * second for second in found])
        for name, found in _times().items()
    }
    title = f"Time of a layer, d = {_TIMED_WIDTH}, k = r = {_REACH}"
    return plots.powers(title, "positions n", "milliseconds", lines).svg()
