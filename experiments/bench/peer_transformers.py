"""The MarianMTModel of transformers as a worker.

    python experiments/bench/peer_transformers.py search --device=cpu \\
        --size=small --dtype=float32 --sentences=32 --length=32 --beam=4
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import peer_torch
import sizes
import torch
import weights
import worker
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

DISTRIBUTIONS = ("torch", "transformers")


def train(size: str, dtype: str, rows: int, length: int, device: str) -> worker.Work:
    """Make updates on one batch."""
    there = peer_torch.start(device)
    drawn = weights.draw(sizes.SIZES[size], length)
    model = marian(drawn, sizes.inner_dropout(device)).train().to(there)

    def logits(source: Tensor, inputs: Tensor) -> Tensor:
        return model(
            input_ids=source,
            attention_mask=source != sizes.PAD,
            decoder_input_ids=inputs,
            use_cache=False,
        ).logits

    trained = (p for p in model.parameters() if p.requires_grad)
    batch = sizes.training_batch(drawn.size.vocabulary, rows, length)
    step = peer_torch.make_step(logits, trained, batch, dtype, compiled=False)
    return peer_torch.work(step, there, *DISTRIBUTIONS)


def search(
    size: str, dtype: str, sentences: int, length: int, beam: int, device: str
) -> worker.Work:
    """Translate sentences into as many tokens as they have."""
    there = peer_torch.start(device)
    drawn = weights.draw(sizes.SIZES[size], length)
    model = marian(drawn).eval().to(there, getattr(torch, dtype))
    source = sizes.sentences(drawn.size.vocabulary, sentences, length)

    def step() -> None:
        found = _generate(model, source, beam, 1.0, length, length)
        assert found.shape[1] == length

    return peer_torch.work(step, there, *DISTRIBUTIONS)


def translate(folder: Path, dtype: str, beam: int) -> worker.Work:
    """Translate the sentences of an export."""
    there = peer_torch.start("cpu")
    exported, task = weights.load(folder)
    model = marian(exported).eval().to(getattr(torch, dtype))

    def step() -> list[list[int]]:
        found: list[list[int]] = [[] for _ in task.sources]
        for rows in task.groups:
            source = sizes.padded([task.sources[row] for row in rows])
            ids = _generate(model, source, beam, task.alpha, 1, task.limit)
            for row, translation in zip(rows, ids.tolist(), strict=True):
                found[row] = list(_until_end(translation))
        return found

    made = peer_torch.work(step, there, *DISTRIBUTIONS)
    info = {"outputs": step(), "scores": _scores(model, task)}
    return made._replace(info=info | made.info)


def _until_end(ids: list[int]) -> Iterator[int]:
    for token in ids:
        if token == sizes.EOS:
            return
        yield token


@torch.inference_mode()
def _generate(
    model: MarianMTModel,
    source: np.ndarray,
    beam: int,
    alpha: float,
    least: int,
    most: int,
) -> Tensor:
    """Return ids (B, T) without BOS."""
    ids = torch.from_numpy(source).long().to(model.device)
    return model.generate(
        input_ids=ids,
        attention_mask=ids != sizes.PAD,
        num_beams=beam,
        do_sample=False,
        length_penalty=alpha,
        early_stopping=True,  # once as many have finished as the beam is wide, as ours
        min_new_tokens=least,
        max_new_tokens=most,
    )[:, 1:]


@torch.inference_mode()
def _scores(model: MarianMTModel, task: weights.Task) -> list[float]:
    """Return the log-probability of each target of a task."""
    scores = [0.0] * len(task.sources)
    for rows in task.groups:
        source = torch.from_numpy(sizes.padded([task.sources[row] for row in rows]))
        target = sizes.padded([task.targets[row] for row in rows])
        logits = model(
            input_ids=source,
            attention_mask=source != sizes.PAD,
            decoder_input_ids=torch.from_numpy(sizes.shift_right(target)),
        ).logits
        wanted = torch.from_numpy(target)[..., None]
        each = logits.float().log_softmax(-1).gather(-1, wanted)
        sums = each.where(wanted != sizes.PAD, 0.0).sum((1, 2))
        for row, value in zip(rows, sums.tolist(), strict=True):
            scores[row] = value
    return scores


# ---- the model -----------------------------------------------------------------------


def marian(
    given: weights.Weights, inner_dropout: float = sizes.DROPOUT
) -> MarianMTModel:
    """Make the model that has these parameters."""
    size = given.size
    model = MarianMTModel(
        MarianConfig(
            vocab_size=size.vocabulary,
            d_model=size.d_model,
            encoder_layers=size.layers,
            decoder_layers=size.layers,
            encoder_ffn_dim=size.d_ff,
            decoder_ffn_dim=size.d_ff,
            encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads,
            activation_function="relu",
            dropout=sizes.DROPOUT,
            attention_dropout=inner_dropout,
            activation_dropout=inner_dropout,
            max_position_embeddings=len(given.positions),
            scale_embedding=True,
            pad_token_id=sizes.PAD,
            bos_token_id=sizes.BOS,
            eos_token_id=sizes.EOS,
            decoder_start_token_id=sizes.BOS,
            forced_eos_token_id=None,
        )
    )
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = given.epsilon
    _fill(model, _named(given))
    return model


def _fill(model: MarianMTModel, arrays: dict[str, np.ndarray]) -> None:
    """Set every parameter of the model, and no others."""
    parameters = dict(model.named_parameters())
    if set(parameters) != set(arrays):
        raise ValueError(
            f"expected the parameters {sorted(parameters)}, got {sorted(arrays)}"
        )
    for name, array in arrays.items():
        parameters[name].data.copy_(torch.from_numpy(array))


def _named(given: weights.Weights) -> dict[str, np.ndarray]:
    """Return the parameters as MarianMTModel names them, matrices as (O, I)."""
    named = {"model.shared.weight": given.arrays["source_embedding"]}
    for side in ("encoder", "decoder"):
        named[f"model.{side}.embed_positions.weight"] = given.positions
    for name, array in given.arrays.items():
        if name != "source_embedding":
            named[_their_name(name)] = array.T
    return named


def _their_name(name: str) -> str:
    layer, *path = name.split(".")
    side, number = layer.split("_")
    kind = "bias" if path[-1].startswith("bias") else "weight"
    if path[0] == "feed_forward":
        module = f"fc{path[1][-1]}"
    elif path[0].startswith("residual"):
        module = _NORMS[side][int(path[0][-1]) - 1]
    else:
        module = f"{_ATTENTIONS[path[0]]}.{_MATRICES[path[1]]}_proj"
    return f"model.{side}.layers.{number}.{module}.{kind}"


_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_MATRICES = {"query": "q", "key": "k", "value": "v", "output": "out"}
_NORMS = {
    "encoder": ["self_attn_layer_norm", "final_layer_norm"],
    "decoder": [
        "self_attn_layer_norm",
        "encoder_attn_layer_norm",
        "final_layer_norm",
    ],
}


if __name__ == "__main__":
    worker.run(train, search, translate)
