"""Every tolerance of the project, in one table. Nobody loosens one to pass."""

TOLERANCES = {
    # Relative to the largest element of the tensor, in float64.
    "complex step": 1e-12,
    "torch autograd": 1e-12,
    "torch optimizers": 1e-12,
    "hugging face gpt2": 1e-10,
}
