"""What Transformers makes of a small Marian model: python marian_values.py OUTPUT.npz

Needs torch, transformers and sentencepiece. Its two languages are made-up words, and it
is trained for few steps: its translations differ from line to line, and end.
"""

import io
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers

WIDTH = 10  # half of it is odd: a wrong order of halves shows
LIMIT = 12  # tokens of an output beyond those of the source with </s>
SYLLABLES = {
    "source": ["ka", "lo", "mi", "ru", "te", "sho"],
    "target": ["an", "bel", "cor", "du", "ek", "fi"],
}
LINES = [
    "kalo miru te",
    ">>deu<< shomi kalo rute lomi karu",
    "te",
    ">>xyz<< miru zzz loka",
    "rushote kami lolo teru shoka mimi rulo",
]
TARGETS = ["ananbel cor", "duek fian belcor ek", "fi", "corcor zzz", "bel an du ek fi"]
STEPS, RATE = 300, 0.01


def words(side: str) -> list[str]:
    """Return sentences of made-up words, the same ones in each language."""
    draw, parts = np.random.default_rng(0), SYLLABLES[side]
    return [
        " ".join("".join(draw.choice(parts, 1 + i % 3)) for i in range(n % 6 + 1))
        for n in range(200)
    ]


def pieces_model(side: str) -> bytes:
    """Train sentencepiece on one side."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words(side)),
        model_writer=model,
        vocab_size=28,
        model_type="unigram",
        normalization_rule_name="identity",
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        pad_id=-1,
        minloglevel=3,
    )
    return model.getvalue()


def numbers(models: dict[str, bytes]) -> dict[str, int]:
    """Number the pieces: special ones, tags, both models' but their last, padding."""
    found: dict[str, int] = {"</s>": 0, "<unk>": 1, ">>deu<<": 2, ">>fra<<": 3}
    for proto in models.values():
        model = sentencepiece.SentencePieceProcessor(model_proto=proto)
        for i in range(2, model.get_piece_size() - 1):  # the last one has no number
            found.setdefault(model.id_to_piece(i), len(found))
    return found | {"<pad>": len(found)}


def model_of(size: int) -> Any:
    """Draw a model, with a bias on logits."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=size,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=14,
        decoder_ffn_dim=14,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=64,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        bos_token_id=None,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "embed_positions" not in name:
                value.normal_(0, 0.3).add_("norm.weight" in name)
        model.model.shared.weight[-1] = 0
        model.final_logits_bias.normal_(0, 0.3)
        model.final_logits_bias[0, -1] = 0
    return model


def train(model: Any, tokenizer: Any) -> None:
    """Take a few steps on the made-up words; the row of the padding stays zero."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    batch = tokenizer(
        words("source"), text_target=words("target"), return_tensors="pt", padding=True
    )
    labels = batch.pop("labels")
    batch["labels"] = labels.masked_fill(labels == model.config.pad_token_id, -100)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        model.model.shared.weight.data[-1] = 0
    model.eval()


def main(path: str) -> None:
    """Write parameters, files, ids, logits and translations."""
    models = {side: pieces_model(side) for side in SYLLABLES}
    vocabulary = numbers(models)
    model = model_of(len(vocabulary))
    model.generation_config.update(
        num_beams=4,
        length_penalty=1.0,
        early_stopping=True,
        renormalize_logits=True,
        bad_words_ids=[[len(vocabulary) - 1]],
        max_length=64,
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, proto in models.items():
            (folder / f"{side}.spm").write_bytes(proto)
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"source_lang": "en", "target_lang": "de"})
        )
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
        train(model, tokenizer)
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder, safe_serialization=True)
        for file in ("config.json", "generation_config.json", "vocab.json"):
            found[f"file {file}"] = bytes_of((folder / file).read_bytes())
        for side in SYLLABLES:
            found[f"file {side}.spm"] = bytes_of((folder / f"{side}.spm").read_bytes())
    saved = {"final_logits_bias": model.final_logits_bias}
    saved |= dict(model.named_parameters())
    for name, value in saved.items():
        if "embed_positions" not in name:
            found[f"array {name}"] = value.detach().numpy()
    with torch.no_grad():
        found |= computed(model, tokenizer)
    found["lines"], found["targets"] = np.array(LINES), np.array(TARGETS)
    np.savez_compressed(path, **found)


def computed(model: Any, tokenizer: Any) -> dict[str, np.ndarray]:
    """Return ids, logits of given targets, and what both searches find."""
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    labels = tokenizer(text_target=TARGETS, return_tensors="pt", padding=True).input_ids
    start = torch.full((len(LINES), 1), model.config.pad_token_id)
    inputs = torch.cat([start, labels[:, :-1]], dim=1)
    found = {
        "source ids": batch.input_ids.numpy(),
        "target ids": labels.numpy(),
        "logits": model(**batch, decoder_input_ids=inputs).logits.numpy(),
    }
    for beams, (number, line) in itertools.product((1, 4), enumerate(LINES)):
        one = tokenizer([line], return_tensors="pt")
        ids = model.generate(
            **one,
            num_beams=beams,
            max_new_tokens=one.input_ids.shape[1] + LIMIT,
            max_length=None,
        )
        found[f"beam {beams} line {number}"] = ids[0, 1:].numpy()
    return found


def bytes_of(content: bytes) -> np.ndarray:
    """Return the bytes of a file as an array."""
    return np.frombuffer(content, np.uint8)


if __name__ == "__main__":
    main(sys.argv[1])
