"""What the compiled programs hold: counts, which no noise of a machine can change."""

import functools
import math
import re
from typing import Any

import pytest
from support.configs import experiment

from transformer import config, models
from transformer.tools import flops, hlo
from transformer.tools.bench.made_up import ragged_sentences
from transformer.tools.bench.searching import Searcher
from transformer.tools.bench.training import Stepper

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
    model = models.make(c, VOCABULARY, VOCABULARY)
    ids = ragged_sentences(ROWS, LENGTH, VOCABULARY)
    return Stepper(c, model, {"source": ids, "target": ids}).compiled


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
    assert hlo.operations(LOOP) == 6 * 2 * 2 * 3 * 5
    # Six times 10 floats reduced for all of 4; 28 floats reduced and scattered over 2;
    # 28 floats and 6 numbers of two bytes sent to the 3 others.
    assert hlo.sent(LOOP) == 6 * 2 * 3 / 4 * 40 + 112 / 2 + 3 * (112 + 12)


def test_groups_of_devices_are_read_in_every_form_or_not_at_all():
    def sent(groups):
        return hlo.sent(
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
    assert hlo.operations(branches.replace("X", call)) == 2 * 2 * 3 * 5
    with pytest.raises(ValueError, match="a loop of known length"):
        hlo.operations(LOOP.replace("known_trip_count", "unknown"))


# What a TPU's compiler writes: tiles, memories (S(1) is the vector memory), loops that
# count themselves, products as convolutions, arrays that are cut where they lie.
TPU = """HloModule jit_step

%cut (table: f32[100,256], row: s32[]) -> f32[1,256] {
  %row = s32[] parameter(1)
  %zero = s32[] constant(0)
  %table = f32[100,256]{1,0:T(8,128)} parameter(0)
  ROOT %part = f32[1,256]{1,0:T(1,128)S(1)} dynamic-slice(%table, %row, %zero), \
dynamic_slice_sizes={1,256}
}

%seen (view: bf16[256,32]) -> bf16[256,32] {
  %view = bf16[256,32]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %same = bf16[256,32]{1,0:T(8,128)(2,1)} bitcast(%view)
}

%replace (sums: f32[6,40,32], new: f32[40,256], matrix: bf16[256,32], at: s32[]) -> \
f32[6,40,32] {
  %sums = f32[6,40,32]{2,1,0:T(8,128)} parameter(0)
  %new = f32[40,256]{1,0:T(8,128)} parameter(1)
  %matrix = bf16[256,32]{1,0:T(8,128)(2,1)} parameter(2)
  %at = s32[] parameter(3)
  %none = s32[] constant(0)
  %inner = bf16[256,32]{1,0:T(8,128)(2,1)} fusion(%matrix), kind=kLoop, calls=%seen
  %convolution.1 = f32[40,32]{1,0:T(8,128)} convolution(%new, %inner), \
dim_labels=bf_io->bf
  %one = f32[1,40,32]{2,1,0:T(8,128)} bitcast(%convolution.1)
  ROOT %all = f32[6,40,32]{2,1,0:T(8,128)} dynamic-update-slice(%sums, %one, %at, \
%none, /*index=4*/%none)
}

%turn (state: (s32[], f32[6,40,32], f32[40,256], bf16[256,32])) -> \
(s32[], f32[6,40,32], f32[40,256], bf16[256,32]) {
  %step = s32[]{:T(128)} constant(1)
  %state = (s32[]{:T(128)}, f32[6,40,32]{2,1,0:T(8,128)}, \
f32[40,256]{1,0:T(8,128)S(1)}, bf16[256,32]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %i.copy = s32[]{:T(128)S(6)} copy(%i)
  %sums.1 = f32[6,40,32]{2,1,0:T(8,128)} get-tuple-element(%state), index=1
  %new.1 = f32[40,256]{1,0:T(8,128)S(1)} get-tuple-element(%state), index=2
  %matrix.1 = bf16[256,32]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=3
  %added = s32[]{:T(128)} add(%i.copy, %step)
  %fusion.2 = f32[6,40,32]{2,1,0:T(8,128)} fusion(%sums.1, %new.1, %matrix.1, \
%i.copy), kind=kOutput, calls=%replace
  ROOT %next = (s32[]{:T(128)}, f32[6,40,32]{2,1,0:T(8,128)}, \
f32[40,256]{1,0:T(8,128)S(1)}, bf16[256,32]{1,0:T(8,128)(2,1)}) \
tuple(%added, %fusion.2, %new.1, %matrix.1)
}

%test (state.1: (s32[], f32[6,40,32], f32[40,256], bf16[256,32])) -> pred[] {
  %end = s32[]{:T(128)} constant(6)
  %state.1 = (s32[]{:T(128)}, f32[6,40,32]{2,1,0:T(8,128)}, \
f32[40,256]{1,0:T(8,128)S(1)}, bf16[256,32]{1,0:T(8,128)(2,1)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %end), direction=LT
}

ENTRY %main (table.1: f32[100,256], row.1: s32[], sums.2: f32[6,40,32], \
matrix.2: bf16[256,32], new.2: f32[40,256], q: bf16[5,3,7,64], k: bf16[5,3,9,64]) -> \
f32[6,40,32] {
  %table.1 = f32[100,256]{1,0:T(8,128)} parameter(0)
  %row.1 = s32[]{:T(128)S(6)} parameter(1)
  %sums.2 = f32[6,40,32]{2,1,0:T(8,128)} parameter(2)
  %matrix.2 = bf16[256,32]{1,0:T(8,128)(2,1)} parameter(3)
  %new.2 = f32[40,256]{1,0:T(8,128)} parameter(4)
  %q = bf16[5,3,7,64]{3,2,1,0:T(8,128)(2,1)S(1)} parameter(5)
  %k = bf16[5,3,9,64]{3,2,1,0:T(8,128)(2,1)S(1)} parameter(6)
  %fusion.1 = f32[1,256]{1,0:T(1,128)S(1)} fusion(%table.1, %row.1), kind=kLoop, \
calls=%cut
  %scores = f32[5,3,7,9]{2,3,1,0:T(8,128)S(1)} convolution(%q, %k), \
window={size=5x3 stride=4x2 lhs_dilate=5x3}, dim_labels=01bf_01oi->01bf
  %copy-start.1 = (f32[40,256]{1,0:T(8,128)S(1)}, f32[40,256]{1,0:T(8,128)}, \
u32[]{:S(2)}) copy-start(%new.2)
  %copy-done.1 = f32[40,256]{1,0:T(8,128)S(1)} copy-done(%copy-start.1)
  %slice-start.1 = ((f32[100,256]{1,0:T(8,128)}), f32[8,256]{1,0:T(8,128)S(1)}, \
s32[]{:S(2)}) slice-start(%table.1), slice={[0:8], [0:256]}
  %copy-start.2 = (f32[5,3,7,9]{2,3,1,0:T(8,128)}, \
f32[5,3,7,9]{2,3,1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%scores)
  %zero.1 = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[6,40,32]{2,1,0:T(8,128)}, \
f32[40,256]{1,0:T(8,128)S(1)}, bf16[256,32]{1,0:T(8,128)(2,1)}) \
tuple(%zero.1, %sums.2, %copy-done.1, %matrix.2)
  %loop = (s32[]{:T(128)}, f32[6,40,32]{2,1,0:T(8,128)}, \
f32[40,256]{1,0:T(8,128)S(1)}, bf16[256,32]{1,0:T(8,128)(2,1)}) while(%start), \
condition=%test, body=%turn
  ROOT %result = f32[6,40,32]{2,1,0:T(8,128)} get-tuple-element(%loop), index=1
}
""".replace("\\\n", "")


def test_products_of_a_tpu_by_hand():
    # 6 turns of 40 x 256 and 256 x 32; scores of 15 heads, 7 x 9 of 64, each made once
    # though the window over them is 5 x 3.
    looped, scores = 2 * 40 * 256 * 32, 2 * 15 * 7 * 9 * 64
    assert hlo.operations(TPU) == 6 * looped + scores


def test_bytes_that_a_tpu_moves_by_hand():
    prefetched = 4 * 40 * 256 + 4 * 8 * 256
    written = 4 * 15 * 16 * 128  # axes 9 and 7, in this order, padded to 16 and 128
    row = 4 * 1 * 256  # of the table, padded in the vector memory only
    matrix, block = 2 * 256 * 128, 4 * 40 * 128  # rows of 32 are padded to 128
    assert hlo.moved(TPU) == prefetched + written + row + 6 * (matrix + block)


def test_a_loop_is_counted_only_if_its_count_is_sure():
    assert hlo.operations(TPU.replace("constant(6)", "constant(2)"))
    for known, unknown in [
        ("direction=LT", "direction=NE"),
        ("constant(6)", "parameter(1)"),
        ("%step = s32[]{:T(128)} constant(1)", "%step = s32[]{:T(128)} constant(2)"),
        ("add(%i.copy, %step)", "multiply(%i.copy, %step)"),
        ("%zero.1 = s32[]{:T(128)} constant(0)", "%zero.1 = s32[]{:T(128)} rng()"),
    ]:
        assert known in TPU
        with pytest.raises(ValueError, match="a loop of known length"):
            hlo.operations(TPU.replace(known, unknown))


# ---- programs of this package --------------------------------------------------------


def test_a_compiled_step_multiplies_what_the_formula_says():
    counted = hlo.operations(train_step(block=ROWS).as_text())
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
    sizes = [math.prod(hlo.dimensions(x)) for x in taken]
    # For the normaliser, which loss and gradient share, and for the gradient.
    assert sizes.count(ROWS * VOCABULARY) == 2


def test_a_loop_that_drops_out_hashes_only_its_own_place():
    program = train_step(block=ROWS).as_text()
    # A hash shifts three times. From the key of the batch, two words each, it is two
    # folds to an embedding and three to a sublayer, then one hash of the element; the
    # masks of both embeddings meet in one loop.
    embedding, sublayer = 3 * (2 * 2 + 1), 3 * (2 * 3 + 1)
    shifts = [x.count(" shift-right-logical(") for x in program.split("\n\n")]
    assert max(shifts) == 2 * embedding
    assert shifts.count(sublayer) >= 2 * (2 + 3)  # in two layers, and for gradients


def test_a_search_never_moves_its_cache():
    c = settings()
    it = config.transformer(c.model)
    model = models.make(c, VOCABULARY, VOCABULARY)
    source = ragged_sentences(ROWS, 2 * LENGTH, VOCABULARY)
    program = Searcher(c, model, source, BEAMS).compiled.as_text()
    assert program
    # Two blocks of 16 positions; products read them one by one, never joined.
    cache = ROWS * it.heads * LENGTH * BEAMS * it.d_k
    moved = re.compile(r"= (\w+\[[\d,]*\]\S*) (?:transpose|copy|gather|concatenate)\(")
    written = re.findall(r"= (\w+\[[\d,]*\]\S*) dynamic-update-slice\(", program)
    sizes = [math.prod(hlo.dimensions(x)) for x in written]
    assert sizes.count(cache) >= 4 * it.layers
    # The entry makes the empty caches, once; the loop stands before it.
    for result in moved.findall(program.split("ENTRY")[0]):
        assert math.prod(hlo.dimensions(result)) not in (cache, 2 * cache), result
