"""Greedy decoding with a cache: ours, Hugging Face's `generate`, and the floor, which only reads the weights.

One step is a whole generation: PROMPT tokens are read, NEW are made. All have the same weights and the same prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numba import float32, prange

from tapeless.bench.race import Work
from tapeless.errors import TapelessError
from tapeless.generate import Decoder, generate
from tapeless.kernels import cpu as cpu_kernels
from tapeless.kernels.cpu import Kernel, plus
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.weights.hugging_face import family_of, their_tensors

PROMPT, NEW = 32, 64
Profile = Callable[[int], dict[str, Any]]


def prepare(name: str, work: Work) -> tuple[Callable[[], Any], dict[str, Any], Profile | None]:
    if name == "decode-hugging-face":
        return _hugging_face(work)
    cpu_kernels.set_threads(work.threads)
    model = Model(work.preset, batch=1, time=1, backend="cpu", optimizer=None, precision=work.precision, **work.fields)
    return _floor(model) if name == "decode-floor" else _ours(model)


def _prompt(model: Model) -> Array:
    return np.random.default_rng(0).integers(0, model.config.vocab, PROMPT)


def _ours(model: Model) -> tuple[Callable[[], Any], dict[str, Any], Profile]:
    prompt = _prompt(model)

    def step() -> list[int]:
        return list(generate(model, prompt, NEW, temperature=0))

    def profile(steps: int) -> dict[str, Any]:
        return {"calls": profiled(model, [int(token) for token in prompt], steps)}

    return step, {"tokens": step(), "arena_bytes": Decoder(model).plan.peak_bytes}, profile


def profiled(model: Model, prompt: list[int], steps: int) -> list[dict[str, Any]]:
    """Median milliseconds of one token's calls, those of all blocks that do the same taken together."""
    decoder = Decoder(model)
    decoder.read(prompt[:-1])
    decoder.step(prompt[-1])  # from now on the same token is decoded again and again
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(steps):
        once: dict[tuple[str, str], float] = {}
        start = time.perf_counter()
        for call in decoder.decoding.walk():
            what = (call.title, call.writes[0].view.name.removeprefix(call.section + "."))
            once[what] = once.get(what, 0.0) + 1000 * (time.perf_counter() - start)
            start = time.perf_counter()
        for what, ms in once.items():
            times.setdefault(what, []).append(ms)
    rows = [{"call": call, "where": where, "ms": median(found)} for (call, where), found in times.items()]
    return sorted(rows, key=lambda row: -row["ms"])


def _floor(model: Model) -> tuple[Callable[[], Any], dict[str, Any], None]:
    """Every weight that a token needs, read once per token: all but the positions, of which it needs one row."""
    weights = [model.engine.view(name).reshape(-1) for name in model.params if name != "positions.weight"]
    runs = [READ.bind(weight.size, np.empty(cpu_kernels.threads(), np.float32), weight) for weight in weights]

    def step() -> None:
        for _ in range(NEW):
            for run in runs:
                run()

    return step, {"bytes_per_token": sum(weight.nbytes for weight in weights)}, None


def read(sums: Array, x: Array) -> None:
    """Each thread adds up its part: the least that can be done with a number that has been read."""
    for part in prange(sums.size):
        total = float32(0)
        mine = x[x.size * part // sums.size : x.size * (part + 1) // sums.size]
        for i in range(mine.size):
            total = plus(total, mine[i])
        sums[part] = total


READ = Kernel(read)


def _hugging_face(work: Work) -> tuple[Callable[[], Any], dict[str, Any], None]:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise TapelessError("Hugging Face's models need transformers: pip install 'tapeless[test]'.") from None
    torch.set_num_threads(work.threads)
    ours = Model(work.preset, batch=1, time=1, backend="reference", precision="float32", optimizer=None, **work.fields)
    described = family_of(ours.config).described(ours.config)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**described)).eval()
    with torch.no_grad():
        weights = dict(theirs.named_parameters())
        for name, array in their_tensors(ours.config, ours.params).items():
            weights.pop(name).copy_(torch.from_numpy(array))
    assert not weights, "every weight has a partner"
    if work.precision == "bfloat16":
        theirs = theirs.to(torch.bfloat16)
    theirs.generation_config.eos_token_id = None  # as many tokens as we make, whatever they are
    prompt = torch.from_numpy(_prompt(ours))[None]
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": NEW}

    def step() -> list[int]:
        with torch.inference_mode():
            found: list[int] = theirs.generate(prompt, use_cache=True, pad_token_id=0, **options)[0, PROMPT:].tolist()
        return found

    return step, {"tokens": step(), "torch": torch.__version__}, None
