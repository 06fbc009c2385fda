"""Which tests of the suite judge a mutant, and in which order: what most likely fails, and fails fast, comes first."""

from __future__ import annotations

import pytest

COLLECTED = (
    "tests/properties",
    "tests/ops",
    "tests/check/test_complex_step.py",
    "tests/check/test_ranges.py",
    "tests/models/test_torch_autograd.py",
    "tests/models/test_optimizers.py",
    "tests/models/test_frozen.py",
    "tests/models/test_adapters.py",
    "tests/models/test_dropout.py",
    "tests/models/test_muon.py",
    "tests/models/test_packed.py",
    "tests/models/test_decoding.py",
    "tests/test_model.py",
    "tests/program/test_arena.py",
    "tests/program/test_verify.py",
    "tests/program/test_wiring.py",
    "tests/program/test_wrong_programs.py",
    "tests/program/test_columns.py",
    "tests/test_generate.py",
    "tests/backends/test_cpu.py",
    "tests/backends/test_bfloat16.py",
    "tests/kernels/test_division.py",
    "tests/kernels/test_gemm_float32.py",
    "tests/lowering",
)
# What runs in a process of its own would not see the mutant; FLOP counts are not mutated; the others take longest and
# say least about a formula.
WITHOUT = (
    "test_a_missing_numba",
    "test_the_same_kernels_with_products_of_our_own",
    "test_kernels_from_the_cache",
    "test_flops",
    "test_any_model",
    "test_planning_allocates_nothing",
    "test_full_size",
    "test_importing",
)

# No training step has these: what they compute is held to the model that reads everything every time.
DECODING = ("positions_at", "remember", "cached_attention")

# Each line is one round: parts of the tests' names, of which all must be there. {op} is the mutated op.
Rounds = tuple[tuple[str, ...], ...]
REFERENCE: Rounds = (
    ("test_every_op.py", "[{op}"),
    ("test_complex_step.py", "test_every_op_is_proven", "[{op}"),
    ("tests/ops/test_ops.py", "{op}"),
    ("tests/ops/test_{op}.py",),
    ("tests/models/test_{op}",),
    ("test_every_op.py", "test_{op}"),
    ("tests/ops/test_contract.py", "[{op}"),
    ("tests/ops/test_ops.py",),
    ("tests/ops/test_contract.py",),
    ("test_torch_autograd.py",),
    ("test_optimizers.py",),
    ("test_every_model.py",),
)
CPU: Rounds = (
    ("test_cpu_kernels.py", "small_shapes[{op}."),
    ("test_cpu_kernels.py", "large_shapes[{op}."),
    ("test_cpu_kernels.py", "at_edges", "-{op}."),
    ("test_division.py",),
    ("test_cpu_kernels.py", "test_{op}"),
    ("test_ranges.py", "test_healthy_ops_have_no_finding[{op}]"),
    ("test_cpu.py", "test_every_call_of_a_step_is_within_the_table"),
    ("test_cpu.py", "test_the_gradients_of_a_whole_model"),
    ("test_cpu.py", "test_training_twice"),
    ("test_bfloat16.py", "test_on_the_cpu"),
)
# What survives these is judged by them once more, with every index checked: tests/kernels/test_bounds.py does so.
CHECKED = ("small_shapes[{op}.", "large_shapes[{op}.", "-{op}.")
MODELS: Rounds = (
    ("test_torch_autograd.py", "[ops-102k]"),
    ("test_torch_autograd.py", "[gpt2-4x256]"),
    ("test_torch_autograd.py", "[cllm]"),
    ("test_torch_autograd.py", "[sunfish]"),
    ("test_torch_autograd.py",),
    ("test_optimizers.py",),
    ("tests/test_model.py",),
    ("test_frozen.py",),
    ("test_adapters.py",),
    ("test_packed.py",),
    ("test_arena.py", "recomputation"),
    ("test_arena.py", "poisoned"),
    ("test_every_model.py",),
    ("test_verify.py", "program"),
    ("test_decoding.py",),
)
DECODER: Rounds = (("test_decoding.py",), ("test_generate.py",))
# First what is right must stay so, then every wrong program be refused, with the sentence it deserves.
PROGRAM: Rounds = (
    ("test_columns.py",),
    ("test_wiring.py", "right"),
    ("test_verify.py", "passes"),
    ("test_wrong_programs.py", "test_it_is_refused"),
    ("test_verify.py",),
    ("test_wiring.py",),
)
LOWERING: Rounds = (
    ("test_gpu_rules.py",),
    ("test_relu.py",),
    ("test_lowering.py",),
    ("test_wrong_lowerings.py",),
    ("test_arena.py",),
)
ROOMS: dict[str, Rounds] = {
    "lowering": LOWERING,
    "models/decoding.py": DECODER,
    "models": MODELS,
    "kernels": (("test_division.py",), ("test_gemm_float32.py",)),
    "program": PROGRAM,
}


def tests_for(file: str, items: list[pytest.Item]) -> list[pytest.Item]:
    room, op = file.split("/")[:2]
    rounds = ROOMS.get(file) or ROOMS.get(room, CPU if file.endswith(("cpu.py", "scratch.py")) else REFERENCE)
    if op in DECODING:
        rounds = (rounds[0], ("test_decoding.py",), *rounds[1:])
    chosen: dict[str, pytest.Item] = {}
    for parts in rounds:
        wanted = [part.format(op=op) for part in parts]
        for item in items:
            if all(part in item.nodeid for part in wanted) and not any(name in item.nodeid for name in WITHOUT):
                chosen.setdefault(item.nodeid, item)
    return list(chosen.values())


def checked_tests_for(file: str, items: list[pytest.Item]) -> list[pytest.Item]:
    if not file.endswith("cpu.py"):
        return []
    wanted = [part.format(op=file.split("/")[1]) for part in CHECKED]
    return [item for item in items if any(part in item.nodeid for part in wanted)]
