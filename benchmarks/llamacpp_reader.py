"""One GGUF file in llama.cpp, by llama-cpp-python: started by `llamacpp.py`, in an environment that has it.

A question is one JSON object on standard input, the answer one on standard output; what llama.cpp logs goes to standard
error.
"""

import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

FLOAT32 = 0  # what keys and values are kept in: llama.cpp's own choice is float16


def main() -> None:
    asked = json.load(sys.stdin)
    # It warns on standard output, too.
    model = llama_cpp.Llama(
        asked["file"],
        logits_all=True,
        n_ctx=asked["room"],
        n_threads=2,
        verbose=False,
        type_k=FLOAT32,
        type_v=FLOAT32,
        flash_attn=False,
        vocab_only=asked["words_alone"],
    )
    vocab = llama_cpp.llama_model_get_vocab(model.model)
    count = llama_cpp.llama_vocab_n_tokens(vocab)
    answer: dict[str, Any] = {
        "begin": llama_cpp.llama_vocab_bos(vocab),
        "end": llama_cpp.llama_vocab_eos(vocab),
        "stops": [token for token in range(count) if llama_cpp.llama_vocab_is_eog(vocab, token)],
        "template": model.metadata.get("tokenizer.chat_template"),
        "texts": [model.tokenize(text.encode(), add_bos=False, special=False) for text in asked["texts"]],
    }
    if not asked["words_alone"]:
        answer |= {"logits": logits(model, asked["ids"]), "written": written(model, asked["ids"], asked["count"])}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def logits(model: Any, ids: list[int]) -> list[list[float]]:
    model.reset()
    model.eval(ids)
    found: list[list[float]] = np.asarray(model.scores[: len(ids)]).tolist()
    return found


def written(model: Any, ids: list[int], count: int) -> list[int]:
    """What it goes on with, always the likeliest token."""
    model.reset()
    model.eval(ids)
    made: list[int] = []
    while len(made) < count:
        made.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(made[-1:])
    return made


if __name__ == "__main__":
    main()
