"""What kernels are compiled for: whole vector registers, where those are not slow."""

from tapeless.kernels.cpu.vector import whole_registers


def test_whole_registers_where_bfloat16_is_multiplied():
    told = whole_registers(None, {"avx512f": True, "avx512bf16": True, "sve": False})
    assert told == "+avx512bf16,+avx512f,-sve,-prefer-256-bit"


def test_what_numba_was_told_stays():
    assert whole_registers(None, {"avx512f": True, "avx512bf16": False}) is None
    assert whole_registers("+avx2", {"avx512bf16": True}) == "+avx2"
