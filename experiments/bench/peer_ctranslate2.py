"""CTranslate2 as a worker.

    python experiments/bench/peer_ctranslate2.py search \\
        --size=small --dtype=int8 --sentences=32 --beam=4
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import sizes
import weights
import worker
from ctranslate2.specs import TransformerSpec, common_spec

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # the tokens of ids 0 to 3


def search(size: str, dtype: str, sentences: int, beam: int) -> worker.Work:
    """Translate sentences into as many tokens as they have."""
    drawn = weights.draw(sizes.SIZES[size])
    translator = open_translator(drawn, dtype)
    ids = sizes.sentences(drawn.size.vocabulary, sentences, sizes.LENGTH)
    tokens = _tokens(ids.tolist())

    def step() -> None:
        found = translator.translate_batch(
            tokens,
            beam_size=beam,
            min_decoding_length=sizes.LENGTH,
            max_decoding_length=sizes.LENGTH,
        )
        assert all(len(one.hypotheses[0]) == sizes.LENGTH for one in found)

    return worker.Work(step, _info(translator))


def translate(folder: Path, dtype: str, beam: int) -> worker.Work:
    """Translate the sentences of an export."""
    exported, task = weights.load(folder)
    translator = open_translator(exported, dtype)
    sources = _tokens(task.sources)

    def step() -> list[list[str]]:
        found: list[list[str]] = [[] for _ in sources]
        for rows in task.groups:
            translations = translator.translate_batch(
                [sources[row] for row in rows],
                beam_size=beam,
                length_penalty=task.alpha,
                max_decoding_length=task.limit,
                return_end_token=True,  # so that it counts in a hypothesis' length
            )
            for row, one in zip(rows, translations, strict=True):
                found[row] = one.hypotheses[0]
        return found

    outputs = [[int(t) for t in tokens if t != "</s>"] for tokens in step()]
    info = {"outputs": outputs, "scores": _scores(translator, task)}
    return worker.Work(step, info | _info(translator))


def _scores(translator: ctranslate2.Translator, task: weights.Task) -> list[float]:
    """Return the log-probability of each target of a task."""
    results = translator.score_batch(
        _tokens(task.sources),
        _tokens([ids[:-1] for ids in task.targets]),  # EOS is added there
        max_batch_size=len(task.groups[0]),
    )
    return [sum(result.log_probs) for result in results]


def _info(translator: ctranslate2.Translator) -> dict[str, Any]:
    versions = worker.versions("ctranslate2")
    return {"versions": versions, "compute_type": translator.compute_type}


def _tokens(sequences: list[list[int]]) -> list[list[str]]:
    """Write ids as tokens: the number itself, or the name of a special one."""
    return [[_token(i) for i in ids] for ids in sequences]


def _token(number: int) -> str:
    return SPECIAL[number] if number < len(SPECIAL) else str(number)


# ---- the model -----------------------------------------------------------------------


def open_translator(given: weights.Weights, dtype: str) -> ctranslate2.Translator:
    """Return a translator with these parameters.

    Args:
      given: parameters.
      dtype: a compute type of CTranslate2.
    """
    with tempfile.TemporaryDirectory() as folder:
        specification(given).save(folder)
        return ctranslate2.Translator(
            folder,
            compute_type=dtype,
            inter_threads=1,
            intra_threads=sizes.cores(),
        )


def specification(given: weights.Weights) -> TransformerSpec:
    """Describe a model with these parameters to CTranslate2."""
    size = given.size
    spec = TransformerSpec.from_config(
        (size.layers, size.layers),
        size.heads,
        pre_norm=False,
        activation=common_spec.Activation.RELU,
    )
    table = given.arrays["source_embedding"]
    spec.encoder.embeddings[0].weight = table
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = given.positions
        for number, layer in enumerate(stack.layer):
            _Layer(given.arrays, f"{side}_{number}").fill(layer)
    tokens = [_token(i) for i in range(size.vocabulary)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.layer_norm_epsilon = given.epsilon
    spec.validate()
    spec.optimize()
    return spec


class _Layer:
    """Copies the parameters of one layer."""

    def __init__(self, arrays: dict[str, np.ndarray], name: str) -> None:
        self._arrays, self._name = arrays, name

    def fill(self, layer: Any) -> None:
        """Set every parameter of a layer's specification."""
        self._linear(layer.self_attention.linear[0], "self_attention", "qkv")
        self._linear(layer.self_attention.linear[1], "self_attention", "o")
        norms = [layer.self_attention.layer_norm]
        if self._name.startswith("decoder"):
            self._linear(layer.attention.linear[0], "cross_attention", "q")
            self._linear(layer.attention.linear[1], "cross_attention", "kv")
            self._linear(layer.attention.linear[2], "cross_attention", "o")
            norms.append(layer.attention.layer_norm)
        for number, linear in enumerate((layer.ffn.linear_0, layer.ffn.linear_1), 1):
            linear.weight = self._get(f"feed_forward.kernel_{number}").T.copy()
            linear.bias = self._get(f"feed_forward.bias_{number}")
        for number, norm in enumerate([*norms, layer.ffn.layer_norm], 1):
            norm.gamma = self._get(f"residual_{number}.norm.scale")
            norm.beta = self._get(f"residual_{number}.norm.bias")

    def _linear(self, linear: Any, attention: str, letters: str) -> None:
        """Set matrices that are one there: each is (O, I), stacked by rows."""
        parts = [f"{attention}.{_MATRICES[letter]}" for letter in letters]
        kernels = [self._get(f"{part}.kernel").T for part in parts]
        linear.weight = np.concatenate(kernels)
        linear.bias = np.concatenate([self._get(f"{part}.bias") for part in parts])

    def _get(self, name: str) -> np.ndarray:
        return self._arrays[f"{self._name}.{name}"]


_MATRICES = {"q": "query", "k": "key", "v": "value", "o": "output"}


if __name__ == "__main__":
    worker.run(search, translate)
