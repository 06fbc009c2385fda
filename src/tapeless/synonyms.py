"""What other projects call our settings and fields: Hugging Face, nanoGPT, PyTorch Lightning, peft, llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Container

_NAMES = {
    # fields of a model
    "layers": "n_layers n_layer num_layers num_hidden_layers",
    "channels": "d_model n_embd n_embed hidden_size embed_dim dim",
    "heads": "n_heads n_head num_heads num_attention_heads nhead",
    "vocab": "vocab_size n_vocab",
    "context": "max_seq_len block_size n_positions n_ctx max_position_embeddings context_length",
    "hidden": "d_ff n_inner intermediate_size ffn_dim dim_feedforward",
    "kv_heads": "n_kv_heads n_kv_head num_kv_heads num_key_value_heads num_query_groups",
    "head_width": "head_dim d_head",
    "placement": "norm_position",
    "activation": "hidden_act activation_function act_fn",
    "norm_kind": "norm norm_type",
    "query_key_norm": "qk_norm use_qk_norm",
    "positions": "position_embedding_type pos_embed",
    "rope_base": "rope_theta rotary_base",
    "rope_low": "low_freq_factor",
    "rope_high": "high_freq_factor",
    "rope_old_context": "original_max_seq_len original_max_position_embeddings",
    "window": "sliding_window",
    "tied": "tie_embeddings tie_word_embeddings weight_tying",
    "norm_eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps",
    "recompute": "gradient_checkpointing activation_checkpointing",
    "keep_norms": "save_norms",
    "lean": "reuse_activations",
    "chunk": "logits_chunk",
    "initialisation": "initialization init",
    "dropout": "resid_pdrop embd_pdrop hidden_dropout dropout_p",
    "frozen": "freeze",
    "frozen_precision": "frozen_dtype",
    "train": "trainable",
    "lora": "lora_r lora_rank",
    "lora_targets": "target_modules",
    # settings of a training
    "data": "dataset train_file data_path",
    "validation": "val_fraction val_split validation_split test_size",
    "batch": "batch_size per_device_train_batch_size train_batch_size micro_batch_size",
    "time": "seq_len seq_length sequence_length max_seq_length max_length",
    "accumulate": "grad_accum gradient_accumulation_steps accumulate_grad_batches",
    "steps": "max_steps max_iters n_steps iterations",
    "epochs": "num_train_epochs num_epochs n_epochs max_epochs",
    "patience": "early_stopping_patience",
    "lr": "learning_rate max_lr",
    "schedule": "lr_scheduler_type lr_scheduler scheduler lr_schedule",
    "warmup": "warmup_steps warmup_iters num_warmup_steps",
    "floor": "min_lr_ratio min_lr_rate",
    "every": "lr_step_size step_size",
    "rate": "lr_gamma gamma",
    "clip": "grad_clip max_grad_norm clip_grad_norm gradient_clip_val",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "eps": "adam_epsilon adam_eps",
    "decay": "weight_decay wd",
    "optimizer": "optim optimiser",
    "eval_every": "eval_interval eval_steps val_check_interval",
    "eval_batches": "eval_iters limit_val_batches",
    "log_every": "log_interval logging_steps log_every_n_steps",
    "save_every": "save_steps checkpoint_interval",
    "keep": "keep_checkpoints save_total_limit save_top_k",
    "seed": "random_seed random_state manual_seed",
    "backend": "device accelerator",
    "precision": "dtype torch_dtype",
    "threads": "num_threads n_threads nthreads",
    "products": "gemm blas",
    # options of the command
    "out": "output_dir out_dir default_root_dir",
    "resume": "resume_from_checkpoint ckpt_path",
    "init_from": "from model_name_or_path pretrained",
}
OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names.split()}
# What has no name of its own here, and how it is said.
SAID_AS = {
    "bf16": "precision=bfloat16",
    "fp16": "precision=bfloat16, as there is no float16",
    "fp32": "precision=float32",
    "betas": "beta1 and beta2, one by one",
    "no_cuda": "backend=cpu",
    "use_cpu": "backend=cpu",
    "use_lora": "lora=16, or another rank",
    "bias": "attention_bias and mlp_bias",
}


def in_our_words(name: str, known: Container[str]) -> str:
    """What another project's name is called here, where that is one of those known; else nothing."""
    if OURS.get(name) in known:
        return f"here it is called {OURS[name]!r}"
    said = SAID_AS.get(name, "")
    return f"say {said}" if said and re.findall(r"\w+", said)[0] in known else ""
