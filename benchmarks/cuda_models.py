"""Whole models on the CUDA backend, on a GPU. Needs torch, triton and NumPy; `truth` needs ml_dtypes, and no GPU.

PYTHONPATH=src python benchmarks/cuda_models.py truth FILE   the reference's own bfloat16, to compare with
PYTHONPATH=src python benchmarks/cuda_models.py models FILE  small models: ten updates beside the reference
PYTHONPATH=src python benchmarks/cuda_models.py lockstep     every call of every configuration, and every op alone
PYTHONPATH=src python benchmarks/cuda_models.py together     calls bound as one, captured, beside the reference
PYTHONPATH=src python benchmarks/cuda_models.py step [CHUNK] gpt2-124m, 32×1024, bfloat16: time and memory of a step
PYTHONPATH=src python benchmarks/cuda_models.py loop [NAME]  trainings that wait for each update, and that do not; NaN,
                                                             records, trace (TRITON_INTERPRET=1: tiny, on the CPU)
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from tapeless.errors import NonFiniteError
from tapeless.model import GRADIENTS, Model
from tapeless.ops.contract import Array
from tapeless.program.call import gradient_name
from tapeless.tasks.task import Measured, Task
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.find_rate import MemoryCheckpoint
from tapeless.train.history.record import read_record
from tapeless.train.history.recording import StepRecording
from tapeless.train.loop import Event, Step, Trainer, train
from tapeless.train.settings import Settings

WORKS: dict[str, dict[str, Any]] = {
    "ops-102k": {"batch": 32},
    "gpt2-4x256": {"batch": 2, "time": 64, "layers": 2, "vocab": 1031, "context": 64, "chunk": 100},
    "cllm": {"batch": 4, "time": 64, "layers": 2},
    "sunfish": {"batch": 2, "time": 128, "layers": 2},
}
# Large enough that products are chosen by their time.
WIRED: dict[str, dict[str, Any]] = {
    "gpt2-4x256": {},
    "gpt2-4x256, lean": {"lean": True},
    "gpt2-4x256, adapted": {"lora": 8},
    "llama-4x256, lean, with biases": {"lean": True, "attention_bias": True},
    "llama-4x256, recomputed": {"recompute": True, "lean": True},
    "llama-4x256, adapted": {"lora": 8, "keep_norms": True},
    "llama-4x256, in part": {"lora": 8, "lora_targets": ("q", "up", "down")},
}
WIRED_SIZE = {"batch": 4, "time": 256, "layers": 2, "channels": 512, "heads": 8, "vocab": 2053, "context": 256}
LOOPED: dict[str, dict[str, Any]] = {
    "gpt2-4x256": {"batch": 8, "time": 256, "vocab": 4099, "chunk": 2056, "dropout": 0.1},
    "ops-102k": {"batch": 32},
}
TINY = {"batch": 2, "time": 6, "layers": 1, "channels": 8, "heads": 2, "hidden": 16, "vocab": 11, "context": 6}
UPDATES = 10
Found = dict[str, Any]


def batches(model: Model) -> list[tuple[Any, Any]]:
    rng, config, shape = np.random.default_rng(7), model.config, (model.batch, model.time)
    made = []
    for _ in range(UPDATES):
        inputs = rng.normal(size=(*shape, config.features)) if config.features else rng.integers(0, config.vocab, shape)
        made.append((inputs, rng.integers(-1, config.vocab, shape[:1] if config.readout == "last" else shape)))
    return made


def trained(name: str, backend: str, precision: str) -> tuple[Model, Found]:
    """From the same weights, which bfloat16 can hold: losses, the first gradients, the weights at the end."""
    model = Model(name, backend=backend, precision=precision, seed=3, **WORKS[name])
    for weight in model.params:
        model.write(weight, _narrow(model.read(weight)))
    found: Found = {}
    for number, (inputs, targets) in enumerate(batches(model)):
        found[f"loss of {number}"] = model.forward_backward(inputs, targets, accumulate=number > 0)
    found |= {f"d accumulated {weight}": model.read(gradient_name(weight)).copy() for weight in model.grads}
    for number, (inputs, targets) in enumerate(batches(model)):
        if number == 0:
            model.forward_backward(inputs, targets)
            found |= {f"d {weight}": model.read(gradient_name(weight)).copy() for weight in model.grads}
        found[f"loss {number}"] = model.step(inputs, targets, lr=1e-3, clip=1.0).loss
    for number, (inputs, targets) in enumerate(batches(model)[:3]):
        found[f"loss after {number}"] = model.loss(inputs, targets)
        found[f"scores {number}"] = model.logits(inputs[:1])
    found |= {f"w {weight}": model.read(weight).copy() for weight in model.params}
    return model, {key: np.asarray(value) for key, value in found.items()}


def _narrow(values: Any) -> Any:
    """Cut to the digits of bfloat16."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def truth(file: str) -> None:
    kept = {name: trained(name, "reference", "bfloat16")[1] for name in WORKS}
    np.savez(file, **{f"{name}|{key}": value for name, found in kept.items() for key, value in found.items()})


def off(found: Found, true: Found, kind: str) -> dict[str, float]:
    """‖difference‖ / ‖truth‖ by tensor. Keys' biases are left out: their gradient is 0 but for roundings."""
    errors = {}
    for key in true:
        if key.startswith(kind):
            one, other = (side[key].astype(np.float64) for side in (found, true))
            if key.endswith("qkv.bias"):
                width = len(other) // 3
                one, other = (np.concatenate([side[:width], side[2 * width :]]) for side in (one, other))
            errors[key] = float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0))
    return errors


def models(file: str) -> None:
    stored = np.load(file)
    print(f"{'model':12}{'precision':10}{'losses':>9}{'gradients':>11}{'weights':>9}{'scores':>9}  again  words")
    for name in WORKS:
        exact_model, exact = trained(name, "reference", "float64")
        for precision in ("float32", "bfloat16"):
            model, found = trained(name, "cuda", precision)
            again = trained(name, "cuda", precision)[1]
            same = all(found[key].tobytes() == again[key].tobytes() for key in found)
            narrow = {key.split("|")[1]: stored[key] for key in stored.files if key.startswith(f"{name}|")}
            true = exact if precision == "float32" else narrow
            worst = [max(off(found, true, kind).values()) for kind in ("loss", "d ", "w ", "scores")]
            words = "-"
            if name == "gpt2-4x256" and precision == "float32":
                mine, theirs = (each.generate([1, 2, 3], 50, temperature=0) for each in (model, exact_model))
                words = "same" if mine == theirs else "DIFFERENT"
            print(
                f"{name:12}{precision:10}{worst[0]:9.1e}{worst[1]:11.1e}{worst[2]:9.1e}{worst[3]:9.1e}  {same}  {words}"
            )
            if precision == "bfloat16":
                _beside(off(found, exact, "d "), off(narrow, exact, "d "))


def _beside(ours: dict[str, float], theirs: dict[str, float]) -> None:
    ratios = sorted((ours[key] / theirs[key], key) for key in ours if theirs[key])
    middle, (most, key) = statistics.median(ratio for ratio, _ in ratios), ratios[-1]
    print(
        f"{'':12}gradients' errors against float64, ours by the reference's bfloat16: median {middle:.2f}, "
        f"largest {most:.2f} ({key}, {ours[key]:.1e} by {theirs[key]:.1e})",
        flush=True,
    )


def lockstep() -> None:
    from tapeless.check.configurations import CONFIGURATIONS, LARGER
    from tapeless.check.lockstep import lockstep as walked
    from tapeless.check.lockstep import pair
    from tapeless.check.ops import ops_alone

    for configuration in (*CONFIGURATIONS, *LARGER):
        started = time.perf_counter()
        _judged(configuration.name, list(walked(*pair(configuration, "cuda"))), started)
    started = time.perf_counter()
    _judged("ops alone", list(ops_alone("cuda")), started)


def _judged(title: str, found: list[Any], started: float) -> None:
    worst = max(found, key=lambda each: each.error / each.tolerance)
    wrong = [each for each in found if not each.ok]
    share, took = worst.error / worst.tolerance, time.perf_counter() - started
    print(f"{title:40}{len(found):6} results, worst {share:5.0%} {worst.call.title}, {len(wrong)} wrong, {took:.1f} s")
    print(*wrong[:3], sep="\n", end="\n" if wrong else "", flush=True)


def together() -> None:
    """Gradients of the third run, which is a captured one, by tensor, ‖difference‖ / ‖truth‖ to the reference in
    float64; and those of the same calls one by one."""
    for title, fields in WIRED.items():
        for precision in ("float32", "bfloat16"):
            given = {"optimizer": None, "seed": 3, "chunk": 600, **WIRED_SIZE, **fields}
            name = title.partition(",")[0]
            model = Model(name, backend="cuda", precision=precision, **given)
            reference = Model(name, backend="reference", precision="float64", **given)
            rng = np.random.default_rng(7)
            for weight, shape in ((weight, array.shape) for weight, array in reference.params.items()):
                begun = 0.02 * rng.normal(size=shape) if weight.endswith("lora_b") else model.read(weight)
                for each in (model, reference):
                    each.write(weight, _narrow(begun))
            batch = rng.integers(0, 2053, (4, 256)), rng.integers(0, 2053, (4, 256))
            losses = [each.forward_backward(*batch) for each in (model, model, model, reference)]
            found, true = (_gradients(each) for each in (model, reference))
            model.feed(*batch)
            for call, natives in model.engine.bound:
                for native in natives if call.phase in GRADIENTS else ():
                    native()
            singly = _gradients(model)
            off = [{key: _distance(each[key], true[key]) for key in true} for each in (found, singly)]
            print(
                f"{title:32} {precision:9} losses {losses[2]:.6f} {losses[3]:.6f}, gradients' errors: bound as one "
                f"{max(off[0].values()):.1e} at most, singly {max(off[1].values()):.1e}; largest of their ratios "
                f"{max(off[0][key] / off[1][key] for key in true if off[1][key]):.2f}",
                flush=True,
            )


def _gradients(model: Model) -> Found:
    return {weight: model.read(gradient_name(weight)).copy() for weight in model.grads}


def _distance(found: Any, true: Any) -> float:
    return float(np.linalg.norm(found.astype("float64") - true) / np.linalg.norm(true))


def step(chunk: str = "8192") -> None:
    import torch

    started = time.perf_counter()
    model = Model("gpt2-124m", batch=32, time=1024, backend="cuda", precision="bfloat16", chunk=int(chunk))
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(0, 50257, (32, 1024)) for _ in range(2))
    print(f"made in {time.perf_counter() - started:.1f} s; the plan says {model.plan.peak_bytes / 2**30:.2f} GiB")
    started = time.perf_counter()
    losses = [model.step(inputs, targets, lr=1e-4, clip=1.0).loss for _ in range(3)]
    print(f"three steps in {time.perf_counter() - started:.1f} s, losses {losses}", flush=True)
    torch.cuda.reset_peak_memory_stats()
    device, wall = [], []
    for _ in range(20):
        begun = time.perf_counter()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        made = model.step(inputs, targets, lr=1e-4, clip=1.0)
        stop.record()
        losses.append(made.loss)
        wall.append(1e3 * (time.perf_counter() - begun))
        device.append(start.elapsed_time(stop))
    peak, reserved = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30
    print(
        f"step, median of 20: {statistics.median(device):.2f} ms on the device ({min(device):.2f}-{max(device):.2f}), "
    )
    print(f"  {statistics.median(wall):.2f} ms from the batch in NumPy to the loss in Python; loss {losses[-1]:.4f}")
    print(f"  {peak:.2f} GiB at most, {reserved:.2f} GiB held by torch", flush=True)
    took: dict[str, list[float]] = {}
    for call, natives in model.engine.bound:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for native in natives:
            native()
        stop.record()
        torch.cuda.synchronize()
        title = call.title if call.op != "linear" else f"{call.title} {'×'.join(map(str, call['weight'].shape))}"
        took.setdefault(title, []).append(start.elapsed_time(stop))
    print(f"call by call, with what launching takes: {sum(map(sum, took.values())):.1f} ms")
    for title, times in sorted(took.items(), key=lambda item: -sum(item[1]))[:16]:
        print(f"  {title:40}{len(times):4} {sum(times):8.2f} ms")


class Random(Task):
    """Words at random, the same whenever they are asked for; as a stream, what it is a stream of."""

    epoch, steps_per_epoch = 0, 100

    def __init__(self, model: Model) -> None:
        self.model, self.at = model, 0

    def batches(self, batch: int) -> Random:
        return self

    def __next__(self) -> tuple[Any, Any]:
        self.at += 1
        model, rng = self.model, np.random.default_rng(self.at % self.steps_per_epoch)
        targets = (model.batch,) if model.config.readout == "last" else (model.batch, model.time)
        inputs = rng.integers(0, model.config.vocab, (model.batch, model.time))
        return inputs, rng.integers(-1, model.config.vocab, targets)

    def state(self) -> dict[str, Any]:
        return {"at": self.at}

    def restore(self, state: dict[str, Any]) -> None:
        self.at = state["at"]

    def evaluate(self, model: Model, batches: int) -> Measured:
        return Measured(0.0)


def losses_of(trainer: Trainer) -> list[float]:
    seen: list[Event] = []
    train(trainer, seen.append)
    return [event.loss for event in seen if isinstance(event, Step)]


def spoil(model: Model, known: int, kept: list[Array], event: Event) -> None:
    """After the known update a weight becomes NaN; what it was is kept."""
    if isinstance(event, Step) and event.number == known:
        kept.append(model.read(SPOILED).copy())
        model.write(SPOILED, np.full_like(kept[0], np.nan))


def loop(name: str = "gpt2-4x256") -> None:
    """Through the trainer, from the same weights every time."""
    import torch

    from tapeless.backends.device import Device

    there = torch.cuda.is_available()
    made: dict[str, Any] = {"backend": "cuda", "precision": "bfloat16"} if there else {"backend": Device("cpu"), **TINY}
    model = Model(name, seed=3, **LOOPED[name] | made)
    updates = 300 if there else 12
    asked = Settings(steps=updates, lr=1e-3, clip=1.0, log_every=10, eval_every=updates, save_every=updates)
    trainer = Trainer(model, Random(model), asked)
    beginning, backend = cast(Checkpoint, MemoryCheckpoint(trainer)), cast(Device, model.engine.backend)

    def begin(ahead: bool) -> None:
        trainer.restore(beginning)
        backend.traits = replace(backend.traits, asynchronous=ahead)

    started = time.perf_counter()
    begin(False)
    losses = losses_of(trainer)
    weights = _digest(model)
    print(f"{name}: the first {updates} updates, with compiling, in {time.perf_counter() - started:.1f} s", flush=True)
    rates: dict[bool, list[float]] = {False: [], True: []}
    same = True
    for _ in range(3 if there else 1):
        for ahead in (True, False):
            begin(ahead)
            started = time.perf_counter()
            found = losses_of(trainer)
            rates[ahead].append(updates / (time.perf_counter() - started))
            same &= found == losses and _digest(model) == weights
    for ahead, rate in rates.items():
        what = "does not wait" if ahead else "waits for every update"
        print(f"{what:24}{statistics.median(rate):9.1f} updates a second ({min(rate):.1f}-{max(rate):.1f})")
    print(f"losses and weights the same to the last bit: {same}", flush=True)

    # A weight becomes NaN before update 8: where it runs ahead, update 7 is in flight when 6 is known.
    stopped = []
    for ahead, known in ((True, 6), (False, 7)):
        begin(ahead)
        try:
            kept: list[Array] = []
            train(trainer, partial(spoil, model, known, kept))
            stopped.append("nothing was refused")
        except NonFiniteError as error:
            model.write(SPOILED, kept[0])
            stopped.append(f"{error} | {trainer.step} {model.steps} {trainer.state()} {_digest(model)}")
    print(f"NaN: {stopped[0].partition(': ')[0]}, {stopped[0].split(' | ')[-1].split()[1]} updates made;", end=" ")
    print(f"all as where it waits: {stopped[0] == stopped[1]}", flush=True)

    begin(True)
    with tempfile.TemporaryDirectory() as folder:
        trainer.recording = StepRecording(Path(folder), model, 15 if there else 5)
        found = losses_of(trainer)
        trainer.recording.write(now=True)
        record = read_record(trainer.recording.path)
    trainer.recording = None
    rows, steps = record.rows, [int(step) for step in record.steps]
    apart = max(abs(row[2] - found[step - 1]) for row, step in zip(rows, steps, strict=True))
    moved = np.abs(np.subtract(found, losses)).max()
    print(f"recorded: updates {steps[:5]}…, {rows.shape[1]} numbers of each; losses within {apart:.1e} of", end=" ")
    print(f"those told, and all {updates} within {moved:.1e} of those of a training without a record", flush=True)
    inputs, targets = next(trainer.batches)
    walked = sum(1 for _ in model.trace(inputs, targets, lr=1e-3))
    print(f"trace: {walked} calls, loss {model.read('loss')[0]:.6f}, finite {int(model.read('finite')[0])}")


SPOILED = "blocks.0.mlp.down.weight"


def _digest(model: Model) -> str:
    digest = hashlib.sha256()
    for each in (*model.params, *model.state):
        digest.update(np.ascontiguousarray(model.read(each)).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    parts = {"truth": truth, "models": models, "lockstep": lockstep, "together": together, "step": step, "loop": loop}
    parts[sys.argv[1]](*sys.argv[2:])
