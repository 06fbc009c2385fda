"""bfloat16 on the CPU beside PyTorch's autocast: `python benchmarks/bfloat16.py gradients` and `… training`.

`gradients` compares those of the same weights and batches (source of Python's standard library) with float64, by
tensor. `training` compares the validation loss after the same 300 steps in float32 and in bfloat16, of ten seeds each
of a GPT-2 and a Llama. If oneDNN dies of AMX, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16.
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

import tapeless
from tapeless.bench.torch_peer import transformer

FIELDS: dict[str, Any] = {"layers": 2, "channels": 128, "heads": 4, "hidden": 512, "vocab": 256, "context": 256}
BATCH, TIME, UPDATES, HELD_OUT = 4, 256, 300, 20
FAMILIES = {"GPT-2": "gpt2-4x256", "Llama": "smollm2-135m"}
SEEDS = 10
WARM_UP, TRIED = 30, 12  # batches: one alone says little of a tensor


def batches(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """Bytes of the standard library's own source, the same in every run on the same Python."""
    folder = Path(statistics.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    bytes_of = np.frombuffer(text, np.uint8).astype(np.int64)
    rng = np.random.default_rng(seed)
    places = rng.integers(0, len(bytes_of) - TIME - 1, (count, BATCH))
    cut = bytes_of[places[:, :, None] + np.arange(TIME + 1)]
    return [(each[:, :-1], each[:, 1:]) for each in cut]


def made(precision: str, preset: str = "gpt2-4x256", seed: int = 0) -> tapeless.Model:
    fields = FIELDS | ({} if preset == "gpt2-4x256" else {"kv_heads": 2, "hidden": 352})
    return tapeless.Model(
        preset, batch=BATCH, time=TIME, backend="cpu", precision=precision, optimizer="adamw", seed=seed, **fields
    )


def our_name(name: str) -> str:
    name = re.sub(r"\.(qkv|proj)\.", r".attn.\1.", name)
    name = re.sub(r"\.(up|down)\.", r".mlp.\1.", name)
    return "positions.weight" if name == "positions" else name


def as_ours(name: str, values: Any) -> Any:
    """Of a linear PyTorch has the transpose."""
    array = values.detach().double().numpy()
    return array.T if re.search(r"\.(qkv|proj|up|down)\.weight$", name) else array


def theirs(weights: dict[str, Any], kind: torch.dtype, config: Any) -> Any:
    peer = transformer(config).to(kind)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            values = torch.from_numpy(np.array(weights[our_name(name)])).to(kind)
            parameter.copy_(values.T if re.search(r"\.(qkv|proj|up|down)\.weight$", name) else values)
    return peer


def their_gradients(peer: Any, batch: tuple[Any, Any], narrow: bool) -> dict[str, Any]:
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        loss = peer(*(torch.from_numpy(each.copy()) for each in batch))
    loss.backward()
    return {our_name(name): as_ours(name, weight.grad) for name, weight in peer.named_parameters()}


def off(found: Any, true: Any, name: str) -> float:
    if name.endswith("qkv.bias"):  # a key's has no gradient but roundings
        third = len(true) // 3
        found, true = (np.delete(side, slice(third, 2 * third)) for side in (found, true))
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def joined(errors: list[dict[str, float]]) -> dict[str, float]:
    """Of several batches, by tensor: the root of the mean square."""
    return {name: float(np.sqrt(np.mean([each[name] ** 2 for each in errors]))) for name in errors[0]}


def gradients() -> None:
    given = batches(WARM_UP + TRIED)
    model = made("bfloat16")
    for steps in (0, WARM_UP):
        for batch in given[:steps]:
            model.step(*batch, lr=1e-3, clip=1.0)
        weights = {name: np.array(values) for name, values in model.weights().items()}
        errors: dict[str, list[dict[str, float]]] = {"ours": [], "autocast": []}
        for batch in given[WARM_UP:]:
            true = their_gradients(theirs(weights, torch.float64, model.config), batch, narrow=False)
            peer = their_gradients(theirs(weights, torch.float32, model.config), batch, narrow=True)
            model.forward_backward(*batch)
            own = {name: np.array(model.grads[name], np.float64) for name in true}
            for who, found in (("ours", own), ("autocast", peer)):
                errors[who].append({name: off(found[name], true[name], name) for name in true})
        ours, torchs = joined(errors["ours"]), joined(errors["autocast"])
        ratios = {name: ours[name] / torchs[name] for name in ours}
        print(f"after {steps} updates: ours by autocast's, median {statistics.median(ratios.values()):.3f}, ", end="")
        print(f"largest {max(ratios.values()):.3f}, {sum(each > 1.1 for each in ratios.values())} above 1.1")
        print("| weight | ours | autocast | ratio |\n|---|---|---|---|")
        for name, ratio in ratios.items():
            print(f"| {name} | {ours[name]:.2e} | {torchs[name]:.2e} | {ratio:.2f} |", flush=True)


def training() -> None:
    """The validation loss after the same updates, by seed (of the weights and of the batches), in both dtypes."""
    for family, preset in FAMILIES.items():
        losses: dict[str, list[float]] = {"float32": [], "bfloat16": []}
        for seed in range(SEEDS):
            given = batches(UPDATES + HELD_OUT, seed)
            for dtype, found in losses.items():
                model = made(dtype, preset=preset, seed=seed)
                for batch in given[:UPDATES]:
                    model.step(*batch, lr=1e-3, clip=1.0)
                found.append(statistics.mean(model.loss(*batch) for batch in given[UPDATES:]))
            print(f"{family}, seed {seed}: " + ", ".join(f"{dtype} {found[-1]:.5f}" for dtype, found in losses.items()))
        pairs = zip(losses["float32"], losses["bfloat16"], strict=True)
        mean, half = interval([100 * (narrow / wide - 1) for wide, narrow in pairs])
        of_seeds = 100 * statistics.stdev(losses["float32"]) / statistics.mean(losses["float32"])
        print(
            f"{family}: bfloat16's validation loss is {mean:+.3f} % ± {half:.3f} % off float32's (mean of {SEEDS} "
            f"pairs of the same seed, 95 % interval); float32's standard deviation over the seeds is {of_seeds:.2f} %",
            flush=True,
        )


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half the width of Student's 95 % interval around it."""
    quantile = float(student.ppf(0.975, len(values) - 1))
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


if __name__ == "__main__":
    {"gradients": gradients, "training": training}[sys.argv[1]]()
