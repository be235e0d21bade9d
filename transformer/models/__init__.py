"""Architectures: a file and a line in ``MODELS`` for each kind of model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from transformer import config
from transformer.config import Config
from transformer.data.tokenizers.utf8 import Bytes
from transformer.decode import ensemble
from transformer.ids import EOS
from transformer.models import bytenet, convs2s, rnn, stacks, transformer
from transformer.models.ensembles import Ensemble
from transformer.nn import dropout
from transformer.nn.hardware import Hardware, arranged
from transformer.parallel import Rules
from transformer.parallel.partition import name_of

MODELS: dict[str, Any] = {
    "transformer": transformer,
    "rnn": rnn,
    "convs2s": convs2s,
    "bytenet": bytenet,
}


class Model(Protocol):
    """What training, search and tools need from the ``Model`` of a file in this room.

    It is a Flax module: the functions below call its methods. ``config``,
    ``source_size`` and ``target_size`` (rows of the embedding tables), ``remat`` and
    ``hardware`` are its attributes; a dropout key of None means evaluation.
    ``attention_weights`` reads what it sows in the collection "attention".
    """

    config: Any
    source_size: int
    target_size: int
    partition: ClassVar[Rules]  # how its parameters are sharded
    stacks: ClassVar[tuple[str, ...]]  # names of the stacks whose layers may be scanned

    def __hash__(self) -> int: ...

    @property
    def kind(self) -> Hardware:
        """The hardware that programs are traced for."""

    @property
    def operands(self) -> str:
        """The dtype of the operands of products with parameters."""

    @property
    def apply(self) -> Callable[..., Any]:
        """Call a method with variables, as in Flax."""

    @property
    def init(self) -> Callable[..., Any]:
        """Draw variables, as in Flax."""

    def with_one_layer(self) -> tuple[Model, dict[str, int]]:
        """Return it with one layer in some stacks, and how many they have here."""

    def search_variables(self, params: Any) -> Any:
        """Return variables for ``start`` and ``step``, in the form a search reads."""

    def encode(self, source: jax.Array, key: Any = None) -> Any:
        """Read a source (B, S); the first result is its states (B, S, .).

        A source of vectors is (B, S, 1 + F), see ``ids.marks``; ``source_size`` is F.
        """

    def features(
        self, source: jax.Array, inputs: jax.Array, key: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """Return hidden (B, T, D) and table (V, D): logits are hidden table^T."""

    def start(self, source: jax.Array, beams: int, length: int) -> Any:
        """Return the cache of a search; its leaves are (B, ...) or scalars."""

    def step(
        self, cache: Any, ids: jax.Array, parents: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Take tokens and parents (B, J); return logits (B, J, V) and the cache."""


def make(
    settings: Config,
    source_size: int,
    target_size: int,
    hardware: Hardware | None = None,
) -> Model:
    """Make the model of a configuration.

    Args:
      settings: ``model.vocab_size`` is the number of rows of an embedding table, 0 for
        as many as the vocabulary has ids.
      source_size: number of ids in the source vocabulary.
      target_size: number of ids in the target vocabulary.
      hardware: what its programs are traced for, None = this process's first device.

    Raises:
      UserError: if a vocabulary has more ids than the tables have rows.
    """
    rows = settings.model.vocab_size
    if rows and max(source_size, target_size) > rows:
        raise config.UserError(
            f"model.vocab_size: expected at least the vocabulary's "
            f"{max(source_size, target_size)}, got {rows}; raise it or set it to 0"
        )
    return MODELS[settings.model.kind].Model(
        settings.model,
        rows or source_size,
        rows or target_size,
        settings.parallel.remat,
        arranged(hardware, settings.parallel.tensor),
    )


def init(model: Model, key: jax.Array) -> Any:
    """Draw the initial parameters with a jax.random key."""
    ids = jnp.ones((1, 2), jnp.int32)
    return model.init(key, ids, ids, method="features")["params"]


def abstract(model: Model) -> Any:
    """Return the tree of parameter shapes and dtypes without making any parameter."""
    return jax.tree.map(lambda leaf: leaf, _abstract(model))  # the caller's own tree


def parameters(model: Model) -> int:
    """Count the parameters without making any."""
    return sum(leaf.size for leaf in jax.tree.leaves(_abstract(model)))


@functools.lru_cache(maxsize=32)
def _abstract(model: Model) -> Any:
    one, stacks = model.with_one_layer()  # tracing all takes that many times as long
    params = dict(jax.eval_shape(lambda: init(one, jax.random.key(0))))
    for name, count in stacks.items():
        layer = params[f"{name}_0"]
        params |= {f"{name}_{i}": layer for i in range(count)}
    return params


def by_name(params: Any) -> dict[str, Any]:
    """Return parameters by the names that ``transformer params`` prints."""
    return {name_of(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def map_by_name(function: Callable[[str, Any], Any], params: Any) -> Any:
    """Map a function of name and parameter over a tree."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: function(name_of(path), x), params
    )


def encode(model: Model, params: Any, source: jax.Array) -> jax.Array:
    """Return the encoder's states (B, S, .) of source ids (B, S)."""
    return model.apply({"params": params}, source, method="encode")[0]


def features(
    model: Model,
    params: Any,
    source: jax.Array,
    inputs: jax.Array,
    key: dropout.Key | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return hidden (B, T, D) of decoder inputs (B, T), and the table (V, D)."""
    return model.apply({"params": params}, source, inputs, key, method="features")


def attention_weights(
    model: Model, params: Any, source: jax.Array, inputs: jax.Array
) -> dict[str, jax.Array]:
    """Return the attention weights of pairs, (B, N, H, queries, keys) for each kind.

    Args:
      model: sows them under "encoder", "decoder" or "cross", in N layers.
      params: its parameters, with layers not stacked.
      source: ids (B, S).
      inputs: decoder inputs (B, T).
    """
    _, sown = model.apply(
        {"params": params}, source, inputs, method="features", mutable=["attention"]
    )
    kinds: dict[str, list[tuple[list[int], jax.Array]]] = {}
    found = jax.tree_util.tree_leaves_with_path(sown.get("attention", {}))
    for path, weights in found:
        names = [entry.key for entry in path if hasattr(entry, "key")]
        numbers = [int(n) for name in names for n in name.split("_") if n.isdigit()]
        kinds.setdefault(names[-1], []).append((numbers, weights))
    return {
        kind: jnp.stack([w for _, w in sorted(layers, key=lambda x: x[0])], axis=1)
        for kind, layers in kinds.items()
    }


def search_variables(model: Model, params: Any) -> Any:
    """Return the variables for ``start``, stored in the form a search reads."""
    return model.search_variables(params)


def start(
    model: Model | Ensemble,
    variables: Any,
    source: jax.Array,
    beams: int,
    length: int,
) -> tuple[Callable[..., tuple[jax.Array, Any]], Any]:
    """Return the step function and the first cache of a search (``decode``).

    Args:
      model: the model, or several as one.
      variables: its parameters from ``search_variables``, or plain; a tuple for several
        models.
      source: ids (B, S).
      beams: J.
      length: maximum number of tokens of an output.
    """
    if isinstance(model, Ensemble):
        starts = [
            start(one, values, source, beams, length)
            for one, values in zip(model.members, variables, strict=True)
        ]
        return ensemble([step for step, _ in starts]), tuple(x for _, x in starts)
    cache: Any = model.apply(variables, source, beams, length, method="start")
    step: Any = functools.partial(model.apply, variables, method="step")
    return step, cache


def scans_layers(settings: Config, model: Model) -> bool:
    """Return whether the layers of the model's stacks are scanned.

    ``parallel.layers`` "auto" scans on accelerators, where compiling takes long, but
    not if parameters are frozen, as all or none of a stack's would be, nor with an
    optimiser that treats each array as a whole; ``resolve`` refuses "scanned" there.

    Raises:
      UserError: if it asks for what the model does not have.
    """
    wanted = settings.parallel.layers
    if wanted == "scanned" and not model.stacks:
        raise config.UserError(
            f"parallel.layers: expected auto or unrolled for model.kind = "
            f"{settings.model.kind}, got scanned; change it"
        )
    if settings.optimizer.frozen or settings.optimizer.name not in config.ELEMENTWISE:
        return False
    return bool(model.stacks) and stacks.scanned(wanted, model.kind)


def configured_vocabulary(settings: Config) -> int:
    """Return the rows of an embedding table, as far as the configuration says.

    Raises:
      UserError: if the size is only known once the data are prepared, or leaves no id
        for tokens other than the special ones.
    """
    size = settings.model.vocab_size or settings.tokenizer.vocab_size
    if settings.tokenizer.kind == "bytes" and not size:
        return Bytes.size
    if size <= EOS + 1:
        raise config.UserError(
            f"expected model.vocab_size or tokenizer.vocab_size above {EOS + 1}, the "
            f"special ids, got {size}; set --config.model.vocab_size=ROWS"
        )
    return size


def configured_sizes(settings: Config) -> tuple[int, int]:
    """Return the sizes of both vocabularies, as far as the configuration says.

    Raises:
      UserError: as ``configured_vocabulary``, and for sources that are vectors.
    """
    if settings.data.vectors:
        raise config.UserError(
            "expected sources of tokens, got data.source = vectors, whose number "
            "of features is known only from prepared data; choose another configuration"
        )
    return (configured_vocabulary(settings),) * 2
