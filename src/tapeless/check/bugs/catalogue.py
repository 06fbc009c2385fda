"""Every bug, room by room."""

from tapeless.check.bugs import (
    activations,
    adapters,
    attention,
    blocks,
    cpu,
    dropout,
    embeddings,
    linear,
    loop,
    losses,
    norms,
    optimizers,
    overflow,
    positions,
    races,
    rms,
    rotations,
    seen,
)
from tapeless.check.bugs.planting import Bug

BUGS: tuple[Bug, ...] = (
    *linear.BUGS,
    *adapters.BUGS,
    *activations.BUGS,
    *norms.BUGS,
    *rms.BUGS,
    *attention.BUGS,
    *seen.BUGS,
    *rotations.BUGS,
    *embeddings.BUGS,
    *positions.BUGS,
    *losses.BUGS,
    *blocks.BUGS,
    *dropout.BUGS,
    *optimizers.BUGS,
    *loop.BUGS,
    *cpu.BUGS,
    *overflow.BUGS,
    *races.BUGS,
)
