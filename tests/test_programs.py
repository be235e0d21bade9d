"""What the compiled programs hold: counts, which no noise of a machine can change."""

import functools
import math
import re
from typing import Any

import pytest
from test_config import experiment

from transformer import bench, config, flops
from transformer.model import make_model

VOCABULARY, ROWS, LENGTH = 3000, 16, 16
BEAMS = 4


def settings(**loss: Any) -> config.Config:
    values = experiment("base")
    values.model.update(
        {"layers": 2, "d_model": 64, "d_ff": 96, "heads": 4, "d_k": 16, "d_v": 16}
    )
    values.tokenizer.vocab_size = VOCABULARY
    values.loss.update(loss)
    return config.resolve(values)


@functools.cache
def train_step(block: int) -> Any:
    c = settings(block=block)
    model = make_model(c.model, VOCABULARY, VOCABULARY)
    ids = bench.ragged_sentences(ROWS, LENGTH, VOCABULARY)
    return bench.Stepper(c, model, {"source": ids, "target": ids}).compiled


def shape(text: str) -> tuple[int, ...]:
    """Read the first shape in a piece of a program, f32[2,3]."""
    found = re.search(r"\w+\[([\d,]*)\]", text)
    assert found, text
    return tuple(int(n) for n in found[1].split(",") if n)


def products(program: str) -> int:
    """Add up the operations of the matrix products in a program's text, 2 a term."""
    total, shapes = 0, {}
    for line in program.splitlines():
        named = re.match(r"\s*(?:ROOT )?%([\w.-]+) = (\w+\[[\d,]*\])", line)
        if not named:
            continue
        shapes[named[1]] = shape(named[2])
        dot = re.search(r" dot\(.*?%([\w.-]+), .*lhs_contracting_dims={([\d,]+)}", line)
        if dot:
            terms = math.prod(shapes[dot[1]][int(axis)] for axis in dot[2].split(","))
            total += 2 * terms * math.prod(shape(named[2]))
    return total


def test_a_compiled_step_multiplies_what_the_formula_says():
    counted = products(train_step(block=ROWS * LENGTH).as_text())
    formula = flops.train_step(settings().model, ROWS, LENGTH, LENGTH, VOCABULARY)
    assert counted == pytest.approx(formula, rel=0.03)


def test_the_loss_holds_one_block_of_logits_at_a_time():
    logits = 4 * ROWS * LENGTH * VOCABULARY  # bytes
    whole, blocked = (
        train_step(block).memory_analysis().temp_size_in_bytes
        for block in (ROWS * LENGTH, ROWS)
    )
    assert whole > logits
    # A block of the 16, once as logits and once as their gradient.
    assert blocked < whole - logits * (1 - 2 / LENGTH)


def test_a_search_never_moves_its_cache():
    c = settings()
    model = make_model(c.model, VOCABULARY, VOCABULARY)
    source = bench.ragged_sentences(ROWS, 2 * LENGTH, VOCABULARY)
    program = bench.Searcher(c, model, source, BEAMS).compiled.as_text()
    assert program
    # Two blocks of 16 positions; products read them one by one, never joined.
    cache = ROWS * c.model.heads * LENGTH * BEAMS * c.model.d_k
    moved = re.compile(r"= (\w+\[[\d,]*\]\S*) (?:transpose|copy|gather|concatenate)\(")
    written = re.findall(r"= (\w+\[[\d,]*\]\S*) dynamic-update-slice\(", program)
    assert [math.prod(shape(x)) for x in written].count(cache) >= 4 * c.model.layers
    # The entry makes the empty caches, once; the loop stands before it.
    for result in moved.findall(program.split("ENTRY")[0]):
        assert math.prod(shape(result)) not in (cache, 2 * cache), result
