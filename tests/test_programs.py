"""What the compiled programs hold: counts, which no noise of a machine can change."""

import functools
import math
import re
from typing import Any

import pytest
from test_config import experiment

from transformer import bench, config, flops, programs
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


# ---- reading a program ---------------------------------------------------------------

LOOP = """HloModule jit_step, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%multiply (a: bf16[2,3], b: bf16[3,5]) -> f32[2,5] {
  %a = bf16[2,3]{1,0} parameter(0)
  %b = bf16[3,5]{1,0} parameter(1)
  ROOT %dot.1 = f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%body (state: (s32[], f32[2,5])) -> (s32[], f32[2,5]) {
  %state = (s32[], f32[2,5]{1,0}) parameter(0)
  %a.1 = bf16[2,3]{1,0} constant({...})
  %b.1 = bf16[3,5]{1,0} constant({...})
  %product = f32[2,5]{1,0} fusion(%a.1, %b.1), kind=kOutput, calls=%multiply
  %reduced = f32[2,5]{1,0} all-reduce(%product), channel_id=1, \
replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %count = s32[] get-tuple-element(%state), index=0
  ROOT %next = (s32[], f32[2,5]{1,0}) tuple(%count, %reduced)
}

%condition (state.1: (s32[], f32[2,5])) -> pred[] {
  %state.1 = (s32[], f32[2,5]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (p: f32[4,7], q: bf16[6]) -> (s32[], f32[2,5]) {
  %p = f32[4,7]{1,0} parameter(0)
  %q = bf16[6]{0} parameter(1)
  %part = f32[2,7]{1,0} reduce-scatter(%p), channel_id=2, \
replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%add
  %both = (f32[16,7]{1,0}, bf16[24]{0}) all-gather(%p, %q), channel_id=3, \
replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %start = (s32[], f32[2,5]{1,0}) tuple()
  ROOT %loop = (s32[], f32[2,5]{1,0}) while(%start), condition=%condition, \
body=%body, backend_config={"known_trip_count":{"n":"6"}}
}
""".replace("\\\n", "")


def test_products_and_collectives_by_hand():
    # Six turns of a product of 2 x 3 and 3 x 5.
    assert programs.operations(LOOP) == 6 * 2 * 2 * 3 * 5
    # Six times 10 floats reduced for all of 4; 28 floats reduced and scattered over 2;
    # 28 floats and 6 numbers of two bytes sent to the 3 others.
    assert programs.sent(LOOP) == 6 * 2 * 3 / 4 * 40 + 112 / 2 + 3 * (112 + 12)


def test_groups_of_devices_are_read_in_every_form_or_not_at_all():
    def sent(groups):
        return programs.sent(
            LOOP.replace("replica_groups=[4,2]<=[8]", f"replica_groups={groups}")
        )

    alone = sent("{{0},{1}}")
    assert sent("mesh['a'=4,'b'=2] {'b'}") - alone == 112 / 2
    assert sent("mesh['a'=4,'b'=2] {'a','b'}") - alone == 112 * 7 / 8
    assert sent("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}") - alone == 84
    with pytest.raises(ValueError, match="expected groups of devices"):
        sent("{}")


def test_of_branches_the_dearest_counts_and_a_loop_without_end_is_an_error():
    branches = LOOP.replace("while(%start), condition=%condition, body=%body", "X")
    call = "conditional(%start), branch_computations={%body, %multiply}"
    assert programs.operations(branches.replace("X", call)) == 2 * 2 * 3 * 5
    with pytest.raises(ValueError, match="a loop of known length"):
        programs.operations(LOOP.replace("known_trip_count", "unknown"))


# ---- programs of this package --------------------------------------------------------


def test_a_compiled_step_multiplies_what_the_formula_says():
    counted = programs.operations(train_step(block=ROWS).as_text())
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


def test_a_step_takes_the_exponential_of_a_logit_twice():
    program = train_step(block=ROWS).as_text()
    taken = re.findall(r"= (\w+\[[\d,]*\])\S* exponential\(", program)
    sizes = [math.prod(programs.dimensions(x)) for x in taken]
    # For the normaliser, which loss and gradient share, and for the gradient.
    assert sizes.count(ROWS * VOCABULARY) == 2


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
    sizes = [math.prod(programs.dimensions(x)) for x in written]
    assert sizes.count(cache) >= 4 * c.model.layers
    # The entry makes the empty caches, once; the loop stands before it.
    for result in moved.findall(program.split("ENTRY")[0]):
        assert math.prod(programs.dimensions(result)) not in (cache, 2 * cache), result
