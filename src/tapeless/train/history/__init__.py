"""A run's history: what is kept of its steps besides metrics.jsonl, in two formats of version 1.

JSON lines for numbers per step: `record.jsonl`, how large every result of a recorded step was, call by call.
Safetensors for arrays, a file per step: `snapshots/`, the weights at some steps, and `tensors/`, every array of the
steps that were named.
"""
