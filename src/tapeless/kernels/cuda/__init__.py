"""What the kernels of the CUDA backend are written with. Nothing here is imported before a call is bound to a GPU."""
