"""Every tolerance of the project, in one table. Nobody loosens one to pass."""

TOLERANCES = {
    # Relative to the largest element of the tensor, in float64.
    "complex step": 1e-12,
    "torch autograd": 1e-12,
    "torch optimizers": 1e-12,
    # Fifty steps of Muon, whose products magnify what differs between small singular values a few hundred times.
    "muon": 1e-10,
    # torch's own rounds what it multiplies to bfloat16: once, and three products in each of five rounds. Of the length
    # of the whole way; half of it was seen.
    "muon in bfloat16": 16 * 2.0**-8,
    "hugging face": 1e-10,
    "definition": 1e-12,
    # Somebody's own backward, in float64. Against differences, whose own bound must be smaller; how well they must
    # know a slope to confirm a complex step; outputs for complex input with imaginary part 0 against those for real
    # input; the backward of a sum of two dy against the sum of the backwards; a gradient this small beside
    # Σ |dy·y| / |x| is 0 up to rounding.
    "differences": 1e-8,
    "confirmed analytic": 1e-6,
    "complex input unchanged": 1e-12,
    "linear in dy": 1e-10,
    "vanishing gradient": 1e-12,
    # float32 against the float64 reference: ‖difference‖ / ‖gradient‖ per tensor of a whole model.
    "float32 gradients": 1e-5,
    # bfloat16 against float64 with the same weights, as above: sixteen roundings (2⁻⁹ of a number). Some fifty lie on
    # the way of a gradient through two blocks and add up like their root; models with nothing but smooth functions come
    # to ten at most. A ReLU that a rounding switches is no rounding.
    "bfloat16 gradients": 16 * 2.0**-9,
    # 100 training steps in float32 beside torch in float32: relative difference of the losses.
    "float32 loss curve": 1e-4,
    # 100 training steps with somebody's own kernel beside ours, both in float64, over the first loss.
    "float64 loss curve": 1e-9,
}

# One call alone, against the reference on the same inputs: this times √(numbers that go into one result),
# relative to the result's largest element. Eight roundings of the type. To it is added a multiple of how far
# the exact result moves when its inputs are off by one rounding: where the terms of a result cancel (the gradient of a
# query in a nearly uniform attention), no kernel can be expected closer.
# bfloat16, whose sums are float32's: four roundings, two of factors, one of each result.
LOCKSTEP = {"float32": 8 * 2.0**-24, "float64": 8 * 2.0**-53, "bfloat16": 4 * 2.0**-9}
LOCKSTEP_INHERENT = 4.0

# Over the whole range of float32 (check/ranges.py): the worst error of any result in roundings (2⁻²⁴) of its natural
# size, times √(numbers summed into one). About twice what ten seeds came to; a copy is exact.
RANGES = {
    "any other op": 16.0,
    "own kernel": 64.0,  # somebody else's, of any kind: four times that, and beside it what its definition loses itself
    "embedding": 4.0,
    "positions": 6.0,
    "positions_at": 2.0,
    "linear": 8.0,
    "adapt": 8.0,
    "layernorm": 40.0,  # its own sums, and the rounded mean and rstd of the forward
    "rmsnorm": 8.0,
    "angles": 1.0,
    "rope": 2.0,
    "attention": 24.0,
    "remember": 0.5,
    "cached_attention": 16.0,
    "gelu": 16.0,
    "relu": 0.5,
    "tanh": 8.0,
    "swiglu": 8.0,
    "dropout": 2.0,
    "count_draws": 0.5,
    "residual": 2.0,
    "last_position": 2.0,
    "classifier": 60.0,  # over up to 192 channels in each of the scores that it sums over
    "squared_error": 4.0,
    "unembed": 8.0,
    "proximity": 8.0,
    "zero": 0.5,
    "global_norm": 1.0,
    "clip": 0.5,
    "sgd": 3.0,
    "momentum": 5.0,
    "adamw": 10.0,
    "muon": 40.0,  # five rounds of products, each of which magnifies what the last one rounded
}
RANGE_FLOOR = 2.0**-120  # what is this small may be 0: denormals and a little above
# Beside torch in float32 on the same numbers: at most this many times its error, or this many roundings if that is
# more, times √(numbers summed into one).
TIMES_TORCH, TORCH_FLOOR = 2.0, 8.0
