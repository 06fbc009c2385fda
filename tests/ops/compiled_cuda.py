"""Attention's backward as it is compiled for a GPU, here, where there is none: `python -m tests.ops.compiled_cuda` says
how many loads that are begun ahead are made whether or not there is anything to load. What they read would not be
used, but it may lie beyond the end of all memory, and then the process ends."""

import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tapeless.ops.attention.cuda import REGISTERS
from tapeless.ops.attention.cuda_backward import KEYS, PLACES, _backward_keys

HOPPER = GPUTarget("cuda", 90, 32)
ALIGNED = [["tt.divisibility", 16]]
NOBODYS = {"SUMS": None, "LOWS": None}


def compiled(share: int, parts: int) -> str:
    """For whole documents and a depth of 64, in bfloat16."""
    high, wide, warps, stages = KEYS
    fixed = {
        "CAUSAL": True,
        "SHARE": share,
        "PARTS": parts,
        "PLACES": PLACES,
        "HIGH": high,
        "WIDE": wide,
        "D": 64,
        "DEPTH": 64,
        **NOBODYS,
    }
    sums = {"SHIFTS": "*fp32", "PULLS": "*fp32", "scale": "fp32"} | (
        {"DK": "*fp32", "DV": "*fp32"} if parts > 1 else {}
    )
    kinds = {
        name: "constexpr" if name in fixed else sums.get(name, "*bf16" if len(name) > 1 and name.isupper() else "i32")
        for name in _backward_keys.arg_names
    } | dict.fromkeys("QKV", "*bf16")
    sizes = ("together", "B", "scale")  # what need not be a multiple of 16
    attributes = {
        (i,): ALIGNED for i, (name, kind) in enumerate(kinds.items()) if kind != "constexpr" and name not in sizes
    }
    source = ASTSource(fn=_backward_keys, signature=kinds, constexprs=fixed, attrs=attributes)
    made = triton.compile(
        source, target=HOPPER, options={"num_warps": warps, "num_stages": stages, "maxnreg": REGISTERS}
    )
    text: str = made.asm["ptx"]
    return text


def unconditional(text: str) -> tuple[int, int]:
    """Loads begun ahead, and those of them that are told how much to load by a number that is always the same."""
    always = set(re.findall(r"mov\.b32\s+(%r\d+), \d+;", text))
    sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global .*, (\S+);", text)
    return len(sizes), sum(size in always or not size.startswith("%") for size in sizes)


if __name__ == "__main__":
    for share, parts in ((4, 1), (7, 4), (1, 1)):
        loads, always = unconditional(compiled(share, parts))
        print(f"{share} heads in {parts} parts: {loads} loads, {always} unconditional")
