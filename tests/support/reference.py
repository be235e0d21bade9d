"""The Transformer a second time: NumPy, float64, loops, written from the paper alone.

Nothing here is shared with the package. It is slow and plain on purpose: a formula of
the paper is one loop nest that can be read against the page. One sentence at a time
where a batch would only add an axis.

Letters: T target length, S source length, D d_model, H heads, K d_k, W d_v, F d_ff,
V vocabulary. Boolean masks: True = may attend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Weights = dict[str, Any]
PAD = 0


# Section 3.2: attention


def padding_mask(ids: Array) -> Array:
    """Return (S,): which positions hold a token."""
    return np.array([i != PAD for i in ids])


def causal_mask(length: int) -> Array:
    """Return (T, T): position i sees j <= i (section 3.2.3)."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            mask[i, j] = j <= i
    return mask


def window_mask(length: int, window: int) -> Array:
    """Return (T, T): position i sees j where |i - j| <= window (section 4)."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            mask[i, j] = abs(i - j) <= window
    return mask


def softmax(scores: Array, mask: Array) -> Array:
    """Return the softmax of one row over its allowed entries, or zeros without any."""
    weights = np.zeros_like(scores, np.float64)
    allowed = [j for j in range(len(scores)) if mask[j]]
    if allowed:
        largest = max(scores[j] for j in allowed)
        total = sum(math.exp(scores[j] - largest) for j in allowed)
        for j in allowed:
            weights[j] = math.exp(scores[j] - largest) / total
    return weights


def attention(
    q: Array, k: Array, v: Array, mask: Array, scaled: bool = True
) -> tuple[Array, Array]:
    """Equation 1 for one head: q (T, K), k (S, K), v (S, W), mask (T, S).

    Returns (T, W) and the weights (T, S).
    """
    output = np.zeros((len(q), v.shape[1]))
    weights = np.zeros((len(q), len(k)))
    for t in range(len(q)):
        scores = np.zeros(len(k))
        for s in range(len(k)):
            scores[s] = sum(a * b for a, b in zip(q[t], k[s], strict=True))
            if scaled:
                scores[s] /= math.sqrt(q.shape[1])
        weights[t] = softmax(scores, mask[t])
        for s in range(len(k)):
            output[t] += weights[t, s] * v[s]
    return output, weights


def affine(x: Array, kernel: Array, bias: Array | None) -> Array:
    """Return x W + b."""
    return x @ kernel + (0 if bias is None else bias)


def multi_head_attention(
    queries: Array,
    memory: Array,
    mask: Array,
    weights: Weights,
    heads: int,
    scaled: bool = True,
) -> Array:
    """Section 3.2.2: queries (T, D), memory (S, D), mask (T, S) -> (T, D).

    weights: "query", "key" (D, H*K), "value" (D, H*W), "output" (H*W, D), each a pair
    of kernel and bias or None. Head h has the columns h*K to (h+1)*K.
    """
    q = affine(queries, *weights["query"])
    k = affine(memory, *weights["key"])
    v = affine(memory, *weights["value"])
    d_k, d_v = q.shape[1] // heads, v.shape[1] // heads
    results = []
    for h in range(heads):
        at_k, at_v = slice(h * d_k, (h + 1) * d_k), slice(h * d_v, (h + 1) * d_v)
        head, _ = attention(q[:, at_k], k[:, at_k], v[:, at_v], mask, scaled)
        results.append(head)
    return affine(np.concatenate(results, axis=1), *weights["output"])


# Sections 3.1, 3.3, 3.4 and 3.5


def layer_norm(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    """Normalise each row of (T, D) to mean 0 and variance 1, then scale and shift."""
    result = np.zeros_like(x, np.float64)
    for t, row in enumerate(x):
        mean = sum(row) / len(row)
        variance = sum((a - mean) ** 2 for a in row) / len(row)
        result[t] = (row - mean) / math.sqrt(variance + epsilon) * scale + bias
    return result


def feed_forward(x: Array, kernel_1: Array, bias_1: Array, kernel_2: Array, bias_2):
    """Equation 2: max(0, x W1 + b1) W2 + b2."""
    return affine(np.maximum(0, affine(x, kernel_1, bias_1)), kernel_2, bias_2)


def embed(ids: Array, table: Array) -> Array:
    """Section 3.4: the rows of (V, D), times sqrt(D)."""
    return np.stack([table[i] * math.sqrt(table.shape[1]) for i in ids])


def sinusoids(length: int, d_model: int) -> Array:
    """Section 3.5: sine at 2i, cosine at 2i + 1, of pos / 10000^(2i / D)."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table


def sinusoids_concat(length: int, d_model: int) -> Array:
    """As run: all sines, then all cosines, timescales 1 to 10000 in D/2 - 1 steps."""
    half = d_model // 2
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(half):
            angle = position / 10000 ** (i / (half - 1))
            table[position, i] = math.sin(angle)
            table[position, half + i] = math.cos(angle)
    return table


# Section 5: loss, schedule, Adam


def target_distribution(target: int, size: int, smoothing: float, over: str) -> Array:
    """Section 5.4: the target distribution, smoothed over "all" ids or the "others"."""
    wanted = np.zeros(size)
    for i in range(size):
        if over == "all":
            wanted[i] = (1 - smoothing) * (i == target) + smoothing / size
        else:
            wanted[i] = 1 - smoothing if i == target else smoothing / (size - 1)
    return wanted


def log_softmax(row: Array) -> Array:
    """Return the logarithms of the probabilities of one row of logits."""
    largest = max(row)
    return row - largest - math.log(sum(math.exp(a - largest) for a in row))


def smoothed_loss(
    logits: Array, targets: Array, weights: Array, smoothing: float, over: str
) -> tuple[float, float]:
    """Return the weighted sum of cross entropies of (M, V) logits, and the weight."""
    total = 0.0
    for row, target, weight in zip(logits, targets, weights, strict=True):
        wanted = target_distribution(target, len(row), smoothing, over)
        total -= weight * sum(wanted * log_softmax(row))
    return total, float(sum(weights))


def smoothed_loss_gradient(
    logits: Array, targets: Array, weights: Array, smoothing: float, over: str
) -> Array:
    """Return d sum / d logits = weight * (softmax - wanted), since wanted sums to 1."""
    gradient = np.zeros_like(logits, np.float64)
    rows = zip(logits, targets, weights, strict=True)
    for n, (row, target, weight) in enumerate(rows):
        wanted = target_distribution(target, len(row), smoothing, over)
        gradient[n] = weight * (np.exp(log_softmax(row)) - wanted)
    return gradient


def sigmoid(x: Any) -> Any:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + np.exp(-x))


def learning_rate(step: int, d_model: int, warmup: int, scale: float = 1.0) -> float:
    """Equation 3; steps count from 1."""
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def adam(
    parameters: Array,
    gradients: list[Array],
    rate: Callable[[int], float],
    b1: float,
    b2: float,
    epsilon: float,
) -> list[Array]:
    """Return the parameters after each update (Kingma and Ba, algorithm 1)."""
    m = np.zeros_like(parameters, np.float64)
    v = np.zeros_like(parameters, np.float64)
    history = []
    for n, gradient in enumerate(gradients, start=1):
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        corrected = (m / (1 - b1**n)) / (np.sqrt(v / (1 - b2**n)) + epsilon)
        parameters = parameters - rate(n) * corrected
        history.append(parameters)
    return history


# Section 3.1: layers, stacks and the whole


def sublayer(
    x: Array,
    function: Callable[[Array], Array],
    norm: tuple[Array, Array],
    order: str,
    epsilon: float,
) -> Array:
    """Order "post" (the paper): LayerNorm(x + f(x)); "pre": x + f(LayerNorm(x))."""
    if order == "post":
        return layer_norm(x + function(x), *norm, epsilon)
    return x + function(layer_norm(x, *norm, epsilon))


def encoder_layer(
    x: Array,
    mask: Array,
    layer: Weights,
    heads: int,
    order: str = "post",
    epsilon: float = 1e-6,
    scaled: bool = True,
) -> Array:
    """x (S, D), mask (S, S). layer: "self", "feed_forward", "norms" (two)."""
    x = sublayer(
        x,
        lambda y: multi_head_attention(y, y, mask, layer["self"], heads, scaled),
        layer["norms"][0],
        order,
        epsilon,
    )
    return sublayer(
        x,
        lambda y: feed_forward(y, *layer["feed_forward"]),
        layer["norms"][1],
        order,
        epsilon,
    )


def decoder_layer(
    x: Array,
    memory: Array,
    mask: Array,
    memory_mask: Array,
    layer: Weights,
    heads: int,
    order: str = "post",
    epsilon: float = 1e-6,
    scaled: bool = True,
) -> Array:
    """x (T, D), memory (S, D), masks (T, T) and (T, S).

    layer: "self", "cross", "feed_forward", "norms" (three). The memory is not
    normalised again: it is the encoder's output as it is.
    """
    x = sublayer(
        x,
        lambda y: multi_head_attention(y, y, mask, layer["self"], heads, scaled),
        layer["norms"][0],
        order,
        epsilon,
    )
    x = sublayer(
        x,
        lambda y: multi_head_attention(
            y, memory, memory_mask, layer["cross"], heads, scaled
        ),
        layer["norms"][1],
        order,
        epsilon,
    )
    return sublayer(
        x,
        lambda y: feed_forward(y, *layer["feed_forward"]),
        layer["norms"][2],
        order,
        epsilon,
    )


def positions(kind: str, length: int, table: Array) -> Array:
    """Return (length, D) of the named kind; the table gives D, or the learned rows."""
    if kind == "sinusoidal":
        return sinusoids(length, table.shape[1])
    if kind == "sinusoidal_concat":
        return sinusoids_concat(length, table.shape[1])
    if kind == "learned":
        return table[:length]
    return np.zeros((length, table.shape[1]))


def encode(
    weights: Weights,
    source: Array,
    heads: int,
    order: str = "post",
    kind: str = "sinusoidal",
    epsilon: float = 1e-6,
    scaled: bool = True,
    window: int = 0,
) -> Array:
    """source (S,) ids -> (S, D).

    weights: "source_table" (V, D), "source_positions" (learned: (max, D)), "encoder"
    (list of layers); "target_space" (D,) or None; "encoder_norm" for order "pre".
    """
    table = weights["source_table"]
    x = embed(source, table)
    if weights["target_space"] is not None:
        x = x + weights["target_space"]
    x = x + positions(
        kind, len(source), weights["source_positions"] if kind == "learned" else table
    )
    mask = np.tile(padding_mask(source), (len(source), 1))
    if window:
        mask = mask & window_mask(len(source), window)
    for layer in weights["encoder"]:
        x = encoder_layer(x, mask, layer, heads, order, epsilon, scaled)
    if order == "pre":
        scale, bias = weights["encoder_norm"]
        x = layer_norm(x, scale, bias, epsilon)
    return x


def transformer(
    weights: Weights,
    source: Array,
    target: Array,
    heads: int,
    order: str = "post",
    kind: str = "sinusoidal",
    epsilon: float = 1e-6,
    scaled: bool = True,
    window: int = 0,
) -> Array:
    """source (S,), decoder input (T,) -> logits (T, V).

    weights: as ``encode``, and "target_table" (V, D), "target_positions", "decoder"
    (list of layers), "decoder_norm", "output" (V, D): logits = x output^T.
    """
    memory = encode(weights, source, heads, order, kind, epsilon, scaled, window)
    table = weights["target_table"]
    x = embed(target, table) + positions(
        kind, len(target), weights["target_positions"] if kind == "learned" else table
    )
    mask = causal_mask(len(target))
    if window:
        mask = mask & window_mask(len(target), window)
    memory_mask = np.tile(padding_mask(source), (len(target), 1))
    for layer in weights["decoder"]:
        x = decoder_layer(
            x, memory, mask, memory_mask, layer, heads, order, epsilon, scaled
        )
    if order == "pre":
        scale, bias = weights["decoder_norm"]
        x = layer_norm(x, scale, bias, epsilon)
    return x @ weights["output"].T


# Comparing


def numerical_gradient(
    function: Callable[[Array], float], x: Array, step: float = 1e-5
) -> Array:
    """Return central differences of a scalar function in float64, entry by entry.

    Their error is about step^2 |f'''| / 6 + 2^-53 |f| / step, 1e-10 for values of 1.
    """
    x = np.array(x, np.float64)
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        kept = x[index]
        x[index] = kept + step
        above = function(x)
        x[index] = kept - step
        below = function(x)
        x[index] = kept
        gradient[index] = (above - below) / (2 * step)
    return gradient


def assert_close(
    actual: Any, expected: Any, roundings: int, bits: int = 24, magnitude: float = 0
) -> None:
    """Assert that two results differ by no more than rounding explains.

    A value made by n operations, each rounded to ``bits`` bits (24 float32, 8
    bfloat16), is off by at most n 2^-bits times the largest value on the way.

    Args:
      actual: what the package computed.
      expected: the float64 result.
      roundings: n, the number of operations in sequence: a sum of m terms has m.
      bits: of the significand, the hidden one included.
      magnitude: the largest value on the way, where the result's is smaller.
    """
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    largest = max(magnitude, np.abs(expected).max(initial=0))
    allowed = roundings * 2.0**-bits * largest
    error = np.abs(actual - expected).max(initial=0)
    assert error <= allowed, f"off by {error:.3g}, rounding explains {allowed:.3g}"
