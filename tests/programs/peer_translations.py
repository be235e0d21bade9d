"""Translate with an exported folder: peer_translations.py SYSTEM FOLDER CASE

SYSTEM is huggingface, ctranslate2 or converted (a huggingface folder, by CTranslate2's
own converter). CASE.json holds pieces and ids of sources, and the limits of outputs;
the output is CASE.out.json: tokens by number of beams.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def huggingface(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Translate with transformers, each sentence alone, as ``generate`` finds it."""
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found: dict[str, Any] = {"ids": tokenizer(case["lines"]).input_ids}
    for beams in case["beams"]:
        outputs = []
        for ids, limit in zip(found["ids"], case["limits"], strict=True):
            (output,) = model.generate(
                torch.tensor([ids]),
                num_beams=beams,
                max_new_tokens=limit,
                max_length=None,
            )
            outputs.append(tokenizer.convert_ids_to_tokens(output[1:].tolist()))
        found[str(beams)] = outputs
    pipe = transformers.MarianTokenizer.from_pretrained(folder)
    batch = pipe(case["lines"], return_tensors="pt", padding=True)
    texts = model.generate(**batch, num_beams=1, max_length=None, max_new_tokens=30)
    found["texts"] = pipe.batch_decode(texts, skip_special_tokens=True)
    with torch.no_grad():
        found["scores"] = [
            -float(model(input_ids=torch.tensor([a]), labels=torch.tensor([b])).loss)
            * len(b)
            for a, b in zip(found["ids"], case["targets"], strict=True)
        ]
    return found


def ctranslate2(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Translate with CTranslate2, all sentences in a batch for each limit."""
    import ctranslate2 as peer

    translator = peer.Translator(str(folder), compute_type=case["compute_type"])
    found: dict[str, Any] = {}
    for beams in case["beams"]:
        outputs = []
        for pieces, limit in zip(case["pieces"], case["limits"], strict=True):
            (result,) = translator.translate_batch(
                [pieces],
                beam_size=beams,
                length_penalty=1,
                max_decoding_length=limit,
                return_end_token=True,
            )
            outputs.append(result.hypotheses[0])
        found[str(beams)] = outputs
    scored = translator.score_batch(case["pieces"], case["target pieces"])
    found["scores"] = [sum(one.log_probs) for one in scored]
    return found


def converted(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Let CTranslate2's converter read the folder of Transformers."""
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "converted"
        TransformersConverter(str(folder)).convert(str(output))
        with_end = [[*pieces, "</s>"] for pieces in case["pieces"]]
        return ctranslate2(output, case | {"pieces": with_end})


def main(system: str, folder: str, file: str) -> None:
    """Write what a system computes for a case."""
    run = {f.__name__: f for f in (huggingface, ctranslate2, converted)}[system]
    found = run(Path(folder), json.loads(Path(file).read_text()))
    Path(file).with_suffix(".out.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
