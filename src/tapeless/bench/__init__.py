"""Step time beside PyTorch, as ratios from one interleaved run."""
