"""Sizes that only round differently follow the device."""

import dataclasses

import jax
import numpy as np
import pytest
from support.configs import base, experiment, saved_form

from transformer import config
from transformer.data.batches import in_order
from transformer.nn.hardware import Hardware
from transformer.nn.losses import blocked_cross_entropy
from transformer.parallel import sizes

BASE = base()
GIVEN = base(**{"loss.block": 7, "decode.tokens": 11})
V = 37_000


CPU, GPU = Hardware("cpu"), Hardware("cuda", (9, 0))


def taken(memory: int, settings=BASE, device=GPU, **more) -> tuple[int, int]:
    found = sizes.follow(settings, device, memory, V, **more)
    return found.loss.block, found.decode.tokens


def test_what_is_small_on_a_cpu_and_where_memory_is_not_known():
    for found in (taken(0), taken(10**12, device=CPU)):
        assert found == (512, 4096)


def test_by_hand():
    # Positions in the cache: 16 + 4 (16 + 50) = 280, each of 6 layers x 8 heads x 128
    # numbers; 3 x 4 rows of 37,000 numbers; for each of 4 hypotheses and 4 x 66 slots
    # the mask and 2 weights of 8 heads; for 16 slots.
    cached, logits, weights = 280 * 6 * 8 * 128, 12 * V, 4 * 4 * 66 * (2 + 8 * 8)
    bytes_a_slot = (4 * (cached + logits) + weights) / 16
    assert sizes.bytes_a_slot(BASE, V, 4) == bytes_a_slot == 545_436
    # 105 GB: logits up to 4 GB are 27,027 rows, in steps of 512 26,624; half of the
    # memory is 96,253 slots.
    assert taken(105 * 10**9) == (26_624, 65_536)
    assert taken(105 * 10**9, device=Hardware("tpu")) == taken(105 * 10**9)
    # 16 GB: a sixteenth, 1 GB, is 6,756 rows; half is 14,667 slots.
    assert taken(16 * 10**9) == (6656, 8192)
    # So little that even the least is more than the shares.
    assert taken(23 * 10**8) == (512, 4096)


def test_fewer_sentences_where_a_wide_beam_would_not_fit():
    # 0.1 GB are 183 slots; 24 GB are 252 slots of a beam of 400, 95 MB each.
    for device in (CPU, GPU):
        assert taken(10**8, device=device) == (512, 128)
        assert taken(24 * 10**9, device=device, beam=400)[1] == 128
        # One sentence of the shortest is tried whatever it takes.
        assert taken(10**8, device=device, beam=400)[1] == 16


def test_the_shares_of_memory_are_kept_and_used():
    for memory in (10 * 10**9, 23 * 10**9, 47 * 10**9, 63 * 10**9):
        block, tokens = taken(memory)
        assert 4 * V * block <= memory / 16 < 4 * V * (block + 512)
        need = sizes.bytes_a_slot(BASE, V, 4)
        assert need * tokens <= memory / 2 < need * 2 * tokens
        assert in_order([9] * 10**5, tokens)[0].height == tokens // 16


def test_a_wider_beam_takes_smaller_batches():
    tokens = [taken(63 * 10**9, beam=beam)[1] for beam in (1, 4, 8, 16)]
    assert tokens == [65_536, 32_768, 16_384, 8192]
    assert taken(63 * 10**9, beam=4) == taken(63 * 10**9)


def test_what_was_given_stays():
    found = sizes.follow(GIVEN, GPU, 10**11, V)
    assert found == GIVEN
    one = dataclasses.replace(BASE, loss=GIVEN.loss)
    assert taken(105 * 10**9, one) == (7, 65_536)
    # Nothing but the sizes is another.
    changed = config.difference(BASE, sizes.follow(BASE, GPU, 105 * 10**9, V))
    assert changed == ["loss.block: 0 -> 26624", "decode.tokens: 0 -> 65536"]


def test_what_this_machine_takes():
    found = sizes.here(BASE, V)
    assert sizes.taken(found) == {"loss.block": 512, "decode.tokens": 4096}
    assert sizes.here(found, V) is found
    assert sizes.line(found) == (
        "at a time: 512 rows of logits (loss.block), 4,096 padded source tokens "
        "of a search "
        "(decode.tokens)"
    )


def test_memory_is_that_of_the_least_device(monkeypatch):
    @dataclasses.dataclass
    class Card:
        stats: dict[str, int] | None
        platform: str = "tpu"

        def memory_stats(self):
            if self.stats == {}:
                raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no statistics")
            return self.stats

    def with_cards(*stats):
        monkeypatch.setattr(jax, "local_devices", lambda: [*map(Card, stats)])
        return sizes.here(BASE, V)

    large, small = {"bytes_limit": 105 * 10**9}, {"bytes_limit": 16 * 10**9}
    assert with_cards(large).decode.tokens == 65_536
    assert with_cards(large, small) == sizes.follow(BASE, GPU, 16 * 10**9, V)
    for silent in (None, {}, {"bytes_in_use": 3}):
        assert with_cards(large, silent).decode.tokens == 4096


def test_a_size_that_nobody_put_in_is_refused():
    # Else it would be the smallest there is, and slow without a word.
    with pytest.raises(ValueError, match="decode.tokens: expected 1 or more, got 0"):
        in_order([3, 4], BASE.decode.tokens)
    hidden, ones = np.ones((1, 2, 4), np.float32), np.ones((1, 2))
    with pytest.raises(ValueError, match="loss.block: expected 1 row or more, got 0"):
        blocked_cross_entropy(
            hidden, hidden[0], ones.astype(int), ones, 0.0, "all", 0, "float32"
        )


def test_every_experiment_leaves_them_to_the_device():
    for name in ("base", "big", "en_fr", "multi30k", "number_words", "text"):
        settings = config.resolve(experiment(name))
        assert set(sizes.taken(settings).values()) == {0}, name


def test_a_run_may_go_on_with_others():
    assert config.other_run(BASE, GIVEN) == config.other_run(GIVEN, BASE) == []
    # What was saved by a version that had no 0 goes on too.
    values = saved_form(base(**{"loss.block": 512}))
    assert config.other_run(config.resolve_saved(values), BASE) == []
    other = base(**{"loss.block": 7, "loss.smoothing": 0.0, "decode.beam": 9})
    assert config.other_run(BASE, other) == [
        "loss.smoothing: 0.1 -> 0.0",
        "decode.beam: 4 -> 9",
    ]
