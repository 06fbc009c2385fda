"""What blocks are made of. Each part declares its weights, their gradients and its activations, and has its forward
directly above its backward: one description for training, for a readout at the last position and for decoding.

A gradient that is None is that of a frozen weight. `p.active(x)` says whether x depends on a trained weight: only then
does anything go back to it.
"""
