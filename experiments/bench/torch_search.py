"""Searches in torch over the steps of a model, in batches that shrink.

They find what this project's searches find, by the same rules; finished sentences leave
the batch after each step.
"""

from __future__ import annotations

import sizes
import torch
from torch import Tensor
from torch_conv import ConvS2S
from torch_rnn import Memory, Recurrent

Model = Recurrent | ConvS2S

_NEVER = -1e9  # finite, so that sums stay finite
_NONE = -1  # after the end of an output


@torch.inference_mode()
def greedy(model: Model, source: Tensor, limits: Tensor) -> list[list[int]]:
    """Take the most likely token each time.

    Args:
      model: in evaluation mode.
      source: ids (B, S).
      limits: most tokens of each output (B,).

    Returns:
      Ids of each output, without EOS.
    """
    memory, state = model.remember(source)
    outputs = torch.full((len(source), int(limits.max())), _NONE)
    rows, last = torch.arange(len(source)), torch.full((len(source), 1), sizes.BOS)
    for position in range(outputs.shape[1]):
        logits, state = model.next(memory, state, last)
        last = logits.argmax(-1)
        outputs[rows, position] = last[:, 0]
        going = (last[:, 0] != sizes.EOS) & (position + 1 < limits[rows])
        if not going.all():
            kept = going.nonzero()[:, 0]
            rows, last = rows[kept], last[kept]
            memory, state = _of_rows(memory, kept), tuple(x[kept] for x in state)
        if not len(rows):
            break
    return _until_end(outputs)


@torch.inference_mode()
def beam(
    model: Model, source: Tensor, limits: Tensor, beams: int, alpha: float
) -> list[list[int]]:
    """Search with J hypotheses side by side.

    A sentence is done when J hypotheses have ended among the best J of a step, at its
    limit, or when no live hypothesis can still become the best.

    Args:
      model: in evaluation mode.
      source: ids (B, S).
      limits: most tokens of each output (B,).
      beams: J.
      alpha: scores are log-probabilities divided by length^alpha.

    Returns:
      Ids of the best output of each, without EOS.
    """
    memory, state = model.remember(source)
    count, longest = len(source), int(limits.max())
    best = torch.full((count, longest), _NONE)  # of those that have ended
    best_scores, ended = torch.full((count,), _NEVER), torch.zeros(count, dtype=int)
    rows = torch.arange(count)
    state = tuple(x.expand(-1, beams, -1) for x in state)
    ids = torch.full((count, beams, longest), _NONE)  # of those that are live
    totals = torch.full((count, beams), _NEVER)
    totals[:, 0] = 0.0
    last = torch.full((count, beams), sizes.BOS)
    for position in range(longest):
        now = position + 1
        logits, state = model.next(memory, state, last)
        # Twice J: even if the first J all end, J are left to go on.
        longer, parents, tokens = _continuations(totals, logits, 2 * beams)
        ends = tokens == sizes.EOS
        counts = ends[:, :beams] & (longer[:, :beams] > _NEVER / 2)
        scores = (longer[:, :beams] / now**alpha).masked_fill(~counts, _NEVER)
        score, place = scores.max(1)
        better = (score > best_scores[rows]).nonzero()[:, 0]
        if len(better):
            those, whose = rows[better], parents[better, place[better]]
            best[those] = ids[better, whose]
            best[those, position] = sizes.EOS
            best_scores[those] = score[better]
        ended[rows] += counts.sum(1)
        totals, order = longer.masked_fill(ends, _NEVER).topk(beams)
        parents, last = parents.gather(1, order), tokens.gather(1, order)
        highest = totals[:, 0] / limits[rows] ** alpha
        done = (highest <= best_scores[rows]) | (ended[rows] >= beams)
        done |= now >= limits[rows]
        ids = ids.gather(1, parents[..., None].expand_as(ids))
        ids[:, :, position] = last
        unfinished = (done & (best_scores[rows] == _NEVER)).nonzero()[:, 0]
        best[rows[unfinished]] = ids[unfinished, 0]
        kept = (~done).nonzero()[:, 0]
        if not len(kept):
            break
        if len(kept) < len(rows):
            rows, memory = rows[kept], _of_rows(memory, kept)
            ids, totals, last = ids[kept], totals[kept], last[kept]
        # Sentences that go on, and their hypotheses by parents, in one copy.
        state = tuple(x[kept[:, None], parents[kept]] for x in state)
    return _until_end(best)


def _continuations(
    totals: Tensor, logits: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best ``totals[j] + log softmax(logits[j])[v]``, their j and v."""
    logits = logits.float()  # sums of bfloat16 would make many hypotheses equal
    gains, tokens = logits.topk(count)
    gains += (totals - logits.logsumexp(-1))[..., None]
    longer, order = gains.flatten(1).topk(count)
    return longer, order // count, tokens.flatten(1).gather(1, order)


def _of_rows(memory: Memory, kept: Tensor) -> Memory:
    annotations = memory.annotations[kept]
    same = memory.keys is memory.annotations
    keys = annotations if same else memory.keys[kept]
    return Memory(annotations, keys, memory.real[kept])


def _until_end(outputs: Tensor) -> list[list[int]]:
    return [[i for i in row if i not in (sizes.EOS, _NONE)] for row in outputs.tolist()]


def search(
    model: Model, sources: list[list[int]], beams: int, alpha: float, extra: int
) -> list[list[int]]:
    """Search for one batch of sentences, greedily with one hypothesis.

    Args:
      model: in evaluation mode.
      sources: ids of each, with EOS.
      beams: J.
      alpha: of the length penalty.
      extra: an output has at most this many tokens more than its source without EOS.
    """
    source = torch.from_numpy(sizes.padded(sources)).long()
    limits = torch.tensor([len(ids) - 1 + extra for ids in sources])
    if beams == 1:
        return greedy(model, source, limits)
    return beam(model, source, limits, beams, alpha)
