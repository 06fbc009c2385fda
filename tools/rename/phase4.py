import sys; sys.path.insert(0, __file__.rpartition("/")[0])
from engine import *
import subprocess
PLAIN = [("channels", "d_model"), ("vocab", "vocab_size"), ("context", "max_seq_len"), ("hidden", "d_ff"), ("head_width", "head_dim"), ("placement", "norm_position"),
  ("norm_kind", "norm"), ("query_key_norm", "qk_norm"), ("rope_base", "rope_theta"), ("rope_low", "low_freq_factor"), ("rope_high", "high_freq_factor"), ("rope_old_context", "original_max_seq_len"),
  ("window", "sliding_window"), ("tied", "tie_embeddings"), ("squared_error", "mse"), ("lean", "reuse_activations"), ("keep_norms", "save_norms"), ("chunk", "logits_chunk"),
  ("frozen_precision", "frozen_dtype"), ("validation", "val_fraction"), ("batch", "batch_size"), ("time", "seq_len"), ("accumulate", "grad_accum"), ("floor", "min_lr_ratio"),
  ("every", "lr_step_size"), ("rate", "lr_gamma"), ("clip", "grad_clip"), ("decay", "weight_decay"), ("keep", "keep_checkpoints"), ("precision", "dtype"), ("products", "gemm"), ("frozen", "freeze"), ("train", "trainable"), ("readout", "predict")]
COMMON = {"train", "validation", "floor", "every", "rate", "keep", "accumulate"}  # words of other calls in Python
def fix(t, path):
    for old, new in PLAIN:
        o, d, nd = re.escape(old), old.replace("_", "-"), new.replace("_", "-")
        t = re.sub(rf"--{d}\b(?![-\w])", f"--{nd}", t)
        t = re.sub(rf"--no-{d}\b(?![-\w])", f"--no-{nd}", t)
        t = re.sub(rf"--set {o}=", f"--set {new}=", t)
        t = re.sub(rf"`{o}=", f"`{new}=", t)
        if old not in ("train", "keep", "every", "rate", "window", "clip", "batch", "time", "precision", "context"): t = re.sub(rf"`{o}`", f"`{new}`", t)
        if "_" in old: t = re.sub(rf"(?<![\w./-]){o}(?![\w/])", new, t)
        if old not in COMMON: t = re.sub(rf"(?<=[(, ]){o}=(?=[\d\"'\w(\[])", f"{new}=", t)
        t = re.sub(rf"^{o} = (?=[\d\"'\[tf])", f"{new} = ", t, flags=re.M)
    t = t.replace("frozen_dtype=", "frozen_dtype=").replace('accumulate=True', 'accumulate=True')
    t = re.sub(r"(predict|readout)=(['\"]?)all\b", r"predict=\2every", t); t = re.sub(r"gemm=own\b", "gemm=builtin", t)
    t = re.sub(r"\bgemm=\"own\"", 'gemm="builtin"', t)
    return t
files_ = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split("\n")
n = 0
for f in files_:
    p = pathlib.Path(f)
    if f.startswith("docs/decisions") or f == "CHANGELOG.md": pass
    if p.suffix in (".md", ".yml", ".yaml", ".ipynb", ".sh") or p.name == "Makefile" or (p.suffix == ".toml" and p.name not in ("pyproject.toml", "budget.toml")):
        t = p.read_text(); new = fix(t, f)
        if new != t: p.write_text(new); n += 1
print(n, "documents")
