import sys; sys.path.insert(0, __file__.rpartition("/")[0])
from engine import *
from phase2 import sub
sub(r"\btime(?= \* 2|, 0\)| \+ 1\))", "seq_len", ["benchmarks/none"])
p = pathlib.Path("benchmarks/optimizer_pictures.py"); t = p.read_text(); p.write_text(t.replace("seq_len", "time"))
sub(r"(?<=settings, )accumulate=", "grad_accum=", ["tests/*"]); sub(r"(?<=ASKED, )accumulate=|(?<=SETTINGS, )accumulate=", "grad_accum=", ["tests/*"])
sub(r"replace\(([^()]*)\baccumulate=", r"replace(\1grad_accum=", ["tests/train/*"])
sub(r"\.grad_clip\b", ".clip", ["tests/program/test_verify.py"])
sub(r"setup\.clip\b", "setup.grad_clip"); sub(r"upcoming\.clip\b", "upcoming.grad_clip")
sub(r"(?<![\w.])clip=self\.clip", "grad_clip=self.clip", ["src/tapeless/tracing/*"])

sub(r"torch\.outer\(time\.", "torch.outer(seq_len.", ["tests/oracles.py"])
for f, pairs in {"app.js": [(".batch}, time ${", ".batch_size}, sequence length ${"), ("about.time", "about.seq_len"), ("about.batch}", "about.batch_size}")], "batch.js": [(".time)", ".seq_len)")], "memory.js": [("plan.batch", "plan.batch_size"), ("plan.time", "plan.seq_len")]}.items():
    p = pathlib.Path("src/tapeless/explorer/pages") / f; t = p.read_text()
    for a, b in pairs: t = t.replace(a, b)
    p.write_text(t)

def strs(old, new, *globs, near=""):
    sub(rf'(["\']){old}\1' if not near else rf'(["\']){old}\1(?={near})', rf"\1{new}\1", ["src/tapeless/" + g if not g.startswith("tests") and not g.startswith("tools") else g for g in globs])
strs("train", "trainable", "check/configurations.py", "models/config.py"); strs("frozen", "freeze", "check/configurations.py", "models/config.py")
strs("train", "trainable", "cli/fields.py"); strs("frozen", "freeze", "cli/fields.py")
strs("vocab", "vocab_size", "check/steps.py", "train/comparison.py", "train/session.py")
sub(r'raise unknown\("precision"', 'raise unknown("dtype"'); sub(r'raise unknown\("products"', 'raise unknown("gemm"')
strs("precision", "dtype", "cli/bench.py", "cli/completion.py", "cli/train.py", "train/run.py", "train/session.py", "program/listing.py", "explorer/source.py")
strs("products", "gemm", "cli/completion.py", "cli/train.py")
strs("validation", "val_fraction", "cli/label.py"); strs("batch", "batch_size", "explorer/memory.py", "cli/label.py")
sub(r'("batch"): batch,', '"batch_size": batch,', ["src/tapeless/explorer/server.py"])
strs("channels", "d_model", "explorer/laboratory.py"); sub(r"(?<![\w.])channels=", "d_model=", ["src/tapeless/explorer/laboratory.py"])
strs("own", "builtin", "backends/cpu.py", "kernels/cpu/dispatch.py", "cli/completion.py")
strs("keep", "keep_checkpoints", "train/checkpoint.py")
sub(r'\("lr", "floor", "rate"\)', '("lr", "min_lr_ratio", "lr_gamma")', ["src/tapeless/train/schedules.py"]); sub(r'\("every", 1\)', '("lr_step_size", 1)', ["src/tapeless/train/schedules.py"])
sub(r'"clip": self.settings.grad_clip', '"grad_clip": self.settings.grad_clip', ["src/tapeless/train/loop.py"])
sub(r'unknown\("field", "dtype", \("precision",\)\)', 'unknown("field", "precision", ("dtype",))', ["src/tapeless/model.py"])
sub(r'"sliding_window", "llama-4x256", sliding_window=3', '"window", "llama-4x256", sliding_window=3', ["src/tapeless/check/configurations.py"])
# an optimizer's decay is an op's scalar called decay
sub(r"return Scalar\(self\.inertia if name == \"momentum\" else getattr\(self, name\), name\)", 'field = {"momentum": "inertia", "decay": "weight_decay"}.get(name, name)\n        return Scalar(getattr(self, field), name)', ["src/tapeless/models/config.py"])
sub(r'"weight_decay" and self\.name == "adam"', '"decay" and self.name == "adam"', ["src/tapeless/models/config.py"])
sub(r'def _variant\(label: str, name: str, chunk: int = 4', 'def _variant(label: str, name: str, logits_chunk: int = 4', ["src/tapeless/check/configurations.py"])
sub(r'^    chunk = 2 if \(changes', '    logits_chunk = 2 if (changes', ["src/tapeless/check/configurations.py"]); sub(r'== "last" else chunk$', '== "last" else logits_chunk', ["src/tapeless/check/configurations.py"]); sub(r'logits_chunk=chunk', 'logits_chunk=logits_chunk', ["src/tapeless/check/configurations.py"])
sub(r'        if "dtype" in fields:\n            raise unknown\("field", "precision", \("dtype",\)\)\n', '', ["src/tapeless/model.py"])
sub(r'"dtype": "torch_dtype"', '"dtype": "precision torch_dtype"', ["src/tapeless/synonyms.py"])
T = ["tests/*", "tools/*", "benchmarks/*"]
sub(r'"placement": (?=")', '"norm_position": ', T); sub(r'(?<![\w.])placement=(?=["\w])(?!placement\b)', 'norm_position=', ["tests/program/*", "tests/lowering/*", "tests/backends/*"]); sub(r'"placement"(?=[,)])', '"norm_position"', T)
sub(r'"keep": (?=\d)', '"keep_checkpoints": ', T); sub(r'(?<![\w.])keep=(?=\d)', 'keep_checkpoints=', ["tests/train/*", "tests/cli/*", "tests/explorer/*", "tests/labelling/*", "tests/test_trained.py"])
sub(r'"decay": (?=[\d])', '"weight_decay": ', ["tests/train/*", "tests/cli/*", "tools/doctor/*", "tests/explorer/*", "tests/labelling/*"])
sub(r'"(accumulate)": (?=\d)', '"grad_accum": ', T); sub(r'"validation": (?=[\d.\-]|float|True|"|NAN|nan)', '"val_fraction": ', ["tests/train/*", "tests/cli/*", "tests/tasks/*", "tests/explorer/*", "tests/labelling/*", "src/tapeless/cli/tokenize.py"])
sub(r'"validation": val_fraction', '"val_fraction": val_fraction', ["src/tapeless/cli/tokenize.py"])
sub(r'"precision": (?=")', '"dtype": ', T); sub(r'"precision"(?=, \[|, "|: None|\])', '"dtype"', ["tests/test_trained.py", "tests/test_model_input.py", "tests/test_step.py"])
sub(r'(["\'])own\1', r'\1builtin\1', ["tests/lowering/*", "tests/kernels/*", "tests/backends/*", "tests/models/*", "tests/test_*.py", "tests/program/*", "tests/properties/*", "tests/check/*", "tests/train/*", "tests/cli/*", "tests/bench/*", "tests/bugs/*", "tests/ops/*", "tests/conftest.py", "src/tapeless/kernels/cpu/*", "src/tapeless/ops/*", "src/tapeless/check/*", "src/tapeless/backends/*", "tools/*", "benchmarks/*"])
for o, n in (("floor", "min_lr_ratio"), ("every", "lr_step_size"), ("rate", "lr_gamma")): strs(o, n, "tests/train/test_schedules.py", "tests/train/test_settings.py")
strs("clip", "grad_clip", "tests/train/test_doctor.py", "tools/doctor/report.py", "tools/doctor/trials.py"); sub(r'(?<![\w.])clip=(?!=)', 'grad_clip=', ["tests/train/test_doctor.py", "tools/doctor/*"])
sub(r'(?<![\w.])(clip|validation|accumulate|decay) must be', lambda m: {"clip": "grad_clip", "validation": "val_fraction", "accumulate": "grad_accum", "decay": "weight_decay"}[m.group(1)] + " must be", ["tests/*", "src/tapeless/inputs.py", "src/tapeless/models/config.py", "src/tapeless/train/*", "src/tapeless/tasks/*"])
sub(r'(?<![\w.])vocab=', 'vocab_size=', ["tests/tasks/data/test_malformed.py"])
PAIRS = [("validation", "val_fraction"), ("batch", "batch_size"), ("time", "seq_len"), ("accumulate", "grad_accum"), ("floor", "min_lr_ratio"), ("every", "lr_step_size"), ("rate", "lr_gamma"), ("clip", "grad_clip"), ("decay", "weight_decay"), ("keep", "keep_checkpoints"), ("precision", "dtype"), ("products", "gemm"), ("channels", "d_model"), ("vocab", "vocab_size"), ("context", "max_seq_len"), ("hidden", "d_ff"), ("placement", "norm_position"), ("tied", "tie_embeddings"), ("lean", "reuse_activations"), ("chunk", "logits_chunk"), ("frozen", "freeze"), ("train", "trainable"), ("window", "sliding_window")]
for old, new in PAIRS:
    sub(rf"(?<=\\n){old} = ", f"{new} = ", ["tests/*", "tools/*", "benchmarks/*", "src/*"]); sub(rf"(?<=[\"'\]]){old} = (?=[\d\"'\\tf\[{{-])", f"{new} = ", ["tests/*", "tools/*", "benchmarks/*"])
sub(r"unknown precision '", "unknown dtype '", ["tests/*", "src/*"]); sub(r"\bprecision=(bfloat16|float32|float64)\b", r"dtype=\1", ["src/*", "tests/*"])
sub(r"\(batch, time\)", "(batch_size, seq_len)", ["tests/*"])
sub(r"\bbatch (\d+), time (\d+)", r"batch \1, sequence length \2", ["tests/*", "src/*", "tools/*"]); sub(r"at time (\d+|\{)", r"at sequence length \1", ["tests/*", "src/*", "tools/*"]); sub(r"× time ", "× sequence length ", ["tests/*", "src/*"])
sub(r'"precision is no field', '"dtype is no field', ["tests/*"]); sub(r'"unknown precision"', '"unknown dtype"', ["tests/*"])
sub(r'prepare\(([^()]*)"vocab": ', r'prepare(\1"vocab_size": ', ["tests/*"])
sub(r'"validation"(?=[,:] ?[\]\)]|: \{|, \[)', '"val_fraction"', ["tests/tasks/data/test_malformed.py"])
LINES = [
 ("src/tapeless/cli/attend.py", "train with --set keep_checkpoints=50 --save-every 20 to see more.[/]", "train with --save-every 20 and\"\n            f\" --set keep_checkpoints=50 to see more.[/]"),
 ("src/tapeless/cli/plan.py", 'about = f"batch {spec.batch_size}, sequence length {spec.seq_len}, {spec.backend.name} backend, {planned.precision.described()}"', 'shape = f"batch {spec.batch_size}, sequence length {spec.seq_len}"\n    about = f"{shape}, {spec.backend.name} backend, {planned.precision.described()}"'),
 ("src/tapeless/program/builder.py", '"""`trained`: whether a weight is; else it is frozen. `reuse_activations`: gradients may lie where activations were."""', '"""`trained` says whether a weight is; else it is frozen. With `reuse_activations`, gradients may lie where\n        activations were."""'),
 ("src/tapeless/tasks/chat/packing.py", 'give --batch-size {len(rows)}, or "', 'give "\n                f"--batch-size {len(rows)}, or "'),
 ("src/tapeless/tasks/data/batches.py", 'tokens, and there are {len(tokens):,}: "', 'tokens, "\n                f"and there are {len(tokens):,}: "'),
 ("src/tapeless/tasks/data/tokenizer.py", '(bytes and the end) to {LARGEST_VOCAB:,}, not {vocab_size!r}."', '(bytes and the end) to {LARGEST_VOCAB:,}, "\n            f"not {vocab_size!r}."'),
 ("src/tapeless/train/evaluation.py", 'knows those below {vocab_size:,}: give the text."', 'knows those below "\n            f"{vocab_size:,}: give the text."'),
 ("src/tapeless/train/resolve.py", 'of its {config.max_seq_len} positions it learns the first "', 'of its {config.max_seq_len} positions "\n            f"it learns the first "'),
 ("src/tapeless/train/resolve.py", 'that {base.folder} brings: use at most {max_seq_len}."', 'that {base.folder} brings: "\n                f"use at most {max_seq_len}."'),
 ("src/tapeless/trained.py", 'f"on {model.backend} in {model.precision.described()}, batch {model.batch_size} × sequence length {model.seq_len}"', 'f"on {model.backend} in {model.precision.described()}, "\n                f"batch {model.batch_size} × sequence length {model.seq_len}"'),
 ("src/tapeless/weights/hugging_face.py", 'but this model knows {config.vocab_size} words: it is not the "', 'but this model knows {config.vocab_size} tokens: "\n            f"it is not the "'),
 ("tests/backends/test_planning.py", 'needs {needed(SMALL, 8):,} bytes and the GPU has {room:,} to give: "', 'needs {needed(SMALL, 8):,} bytes "\n    says += rf"and the GPU has {room:,} to give: "'),
 ("tests/bench/test_finetune.py", '--set d_ff=16 --seq-len 96 --batch-size 1 --record 0"', '--set d_ff=16"\n        " --seq-len 96 --batch-size 1 --record 0"'),
 ("tests/train/test_settings.py", 'epochs = 2\\n[model]\\nlayers = 6\\ntie_embeddings = false\\n\'', 'epochs = 2\\n\'\n        "[model]\\nlayers = 6\\ntie_embeddings = false\\n"'),
 ("src/tapeless/model.py", '"""`Model("gpt2-4x256", batch_size=2, seq_len=64, layers=2)`: a preset, with any field overridden by name. `params`, `grads`\n    and `state` map names to arrays; `config` has its sizes, `plan` every byte, `program` every call."""', '"""`Model("gpt2-4x256", batch_size=2, seq_len=64, layers=2)`: a preset, with any field overridden by name.\n\n    `params`, `grads` and `state` map names to arrays; `config` has its sizes, `plan` every byte, `program` every call.\n    """'),
]
for f, a, b in LINES:
    p = pathlib.Path(f)
    if not p.exists(): print("no file", f); continue
    t = p.read_text()
    if a not in t: print("not found:", f, a[:60])
    p.write_text(t.replace(a, b))
strs("window", "sliding_window", "models/config.py"); strs("frozen", "freeze", "cli/settings.py"); strs("train", "trainable", "cli/settings.py")
strs("validation", "val_fraction", "train/settings.py"); strs("clip", "grad_clip", "train/settings.py"); strs("precision", "dtype", "train/evaluation.py")
sub(r'"moved": \{"batch_size": batch', '"moved": {"batch": batch', ["src/tapeless/explorer/tracing.py"])
sub(r'"validation": self\.validation', '"val_fraction": self.val_fraction', ["src/tapeless/tasks/task.py"]); sub(r"^    validation: float", "    val_fraction: float", ["src/tapeless/tasks/task.py"])
ALL = ["tests/*", "tools/*", "benchmarks/*"]
sub(r'(?<![\w.])precision=precision\b(?!\.)', 'dtype=precision', ALL)
sub(r'"hidden": (?=\d)', '"d_ff": ', ALL); sub(r'\["vocab"\](?!\.get|\.items|\[|$)', '["vocab_size"]', ["tests/kernels/*", "tests/models/*", "tests/cli/*", "tests/check/*", "tests/test_*.py", "tests/bugs/*", "tests/train/*", "benchmarks/*"])
sub(r'keep_checkpoints=(?=\d)', 'keep=', ["tests/train/test_checkpoint.py", "tests/train/test_crash.py", "tests/train/crash.py", "tests/train/test_traps.py"])
sub(r'lr_gamma must be at least 0 and below 1', 'rate must be at least 0 and below 1', ["tests/ops/*"])
sub(r'placement=placement', 'norm_position=placement', ["tests/*"])
sub(r'moved\["batch_size"\]', 'moved["batch"]', ["tests/explorer/*"])
sub(r'page\.max_seq_len', 'page.context', ["tests/*", "tools/*"])
sub(r'(?<![\w.])context=(?=\d)', 'max_seq_len=', ["tests/kernels/*", "tests/ops/*"]); sub(r'(?<![\w.])channels=(?=\d)', 'd_model=', ["tests/kernels/*"]); sub(r'(?<![\w.])hidden=(?=\d)', 'd_ff=', ["tests/kernels/*"])
sub(r'"(context)": (?=\d)', '"max_seq_len": ', ["tests/kernels/*"]); sub(r'"(channels)": (?=\d)', '"d_model": ', ["tests/kernels/*", "tests/labelling/*"])
sub(r'"frozen": tuple', '"freeze": tuple', ["tests/properties/*"]); sub(r'\{"lr", "frozen"\}', '{"lr", "freeze"}', ["tests/cli/*"])
sub(r'parametrize\("readout", \["all", "last"\]\)', 'parametrize("readout", ["every", "last"])', ["tests/test_attention.py"])
sub(r'result\["precision"\]', 'result["dtype"]', ["tests/bench/*"])
sub(r'"accumulate"(?=: |\])', '"grad_accum"', ["tests/train/*"]); sub(r'request\(accumulate=', 'request(grad_accum=', ["tests/train/*"])
# what of a tokenizer's file is its own
for old, new in ((r'set_in\("vocab", (?=["\d1T])', 'set_in("vocab_size", '), (r'without\("vocab"\)', 'without("vocab_size")'), (r'"vocab must be"', '"vocab_size must be"'), (r'tokenizer has vocab"', 'tokenizer has vocab_size"'), (r'\{"vocab": (?=\d)', '{"vocab_size": '), (r'"bpe", "vocab": ', '"bpe", "vocab_size": '), (r'(\d\.0\}), "vocab"\)', r'\1, "vocab_size")')):
    sub(old, new, ["tests/tasks/data/test_malformed.py"])
sub(r'(_size=|\}), "validation"\)', r'\1, "val_fraction")', ["tests/tasks/data/test_malformed.py"])
import gzip, json
p = pathlib.Path("tests/train/doctor_runs.jsonl.gz")
lines = [json.loads(l) for l in gzip.decompress(p.read_bytes()).decode().splitlines()]
def renamed(v):
    names = {"clip": "grad_clip", "placement": "norm_position"}
    return {names.get(k, k): renamed(x) for k, x in v.items()} if isinstance(v, dict) else v
text = "".join(json.dumps(renamed(l), separators=(",", ":")) + "\n" for l in lines)
p.write_bytes(gzip.compress(text.encode(), 9, mtime=0))

def parametrize_fix():
    pairs = PAIRS + [("frozen_precision", "frozen_dtype"), ("readout", "predict"), ("keep_norms", "save_norms")]
    to_old, to_new = {n: o for o, n in pairs}, dict(pairs)
    for p in pathlib.Path("tests").rglob("*.py"):
        for _ in range(40):
            src = p.read_text(); tree = ast.parse(src); done = True
            for f in ast.walk(tree):
                if not isinstance(f, ast.FunctionDef): continue
                args = {a.arg for a in (*f.args.args, *f.args.kwonlyargs)}
                for d in f.decorator_list:
                    if not (isinstance(d, ast.Call) and ast.unparse(d.func).endswith("parametrize") and d.args): continue
                    first = d.args[0]
                    names = [first.value] if isinstance(first, ast.Constant) else [e.value for e in first.elts if isinstance(e, ast.Constant)]
                    for name in names:
                        if name in args: continue
                        lines = src.splitlines(keepends=True)
                        if to_new.get(name) in args:
                            a, b = first.lineno - 1, first.end_lineno
                            lines[a:b] = [l.replace(f'"{name}"', f'"{to_new[name]}"') for l in lines[a:b]]
                        elif to_old.get(name) in args:
                            old = to_old[name]; a, b = f.lineno - 1, f.end_lineno
                            body = "".join(lines[a:b])
                            body = re.sub(rf"(?<![\w.\"']){old}\b(?![\"'])(?!=[^=])", name, body)
                            lines[a:b] = [body]
                        else: continue
                        p.write_text("".join(lines)); done = False; break
                    if not done: break
                if not done: break
            if done: break
parametrize_fix()
sub(r'"\{placement\}', '"{placement}', ["tests/*"])
sub(r'dict\(call\.scalars\)\.get\(each\.name\) == asked', 'dict(call.scalars).get(each.name.removeprefix("weight_")) == asked', ["src/tapeless/train/session.py"])
sub(r'CHOICES\["placement"\]', 'CHOICES["norm_position"]', ["tests/*"])
sub(r'FIELDS\["channels"\]', 'FIELDS["d_model"]', ["benchmarks/*", "tests/*"])
sub(r'\("features", "frozen"\)', '("features", "freeze")', ["tests/*"]); sub(r'model\["frozen"\]', 'model["freeze"]', ["tests/*"])
sub(r'(each|planned|on_cpu|held|told|result|said)\["precision"\]', r'\1["dtype"]', ["tests/cli/*", "tests/bench/*", "tests/explorer/*"])
sub(r'no longer says what batch is', 'no longer says what batch_size is', ["tests/*"]); sub(r'no longer says what time is', 'no longer says what seq_len is', ["tests/*"])
sub(r'"time has no effect', '"seq_len has no effect', ["tests/*"]); sub(r'"validation has no effect', '"val_fraction has no effect', ["tests/*"])
sub(r'(?<=[( ])accumulate=(?=accumulate\))', 'grad_accum=', ["tests/train/test_ahead.py"])
sub(r'"batch is 16 by', '"batch_size is 16 by', ["tests/*"]); sub(r'"accumulate is 3 by', '"grad_accum is 3 by', ["tests/*"]); sub(r'"placement is ', '"norm_position is ', ["tests/*"])
parametrize_fix()
sub(r'f">\{size\}" for size in SIZES', '''f">{size.removesuffix('_size').removesuffix('_len')}" for size in SIZES''', ["src/tapeless/cli/presets.py"])
sub(r'causal, squared error" in shown', 'causal, mse" in shown', ["tests/cli/test_screens.py"])
UNDER = [(o, n) for o, n in [("frozen_precision", "frozen_dtype"), ("rope_base", "rope_theta"), ("head_width", "head_dim"), ("norm_kind", "norm"), ("query_key_norm", "qk_norm"), ("keep_norms", "save_norms"), ("squared_error", "mse")]]
for o, n in UNDER: sub(rf"(?<=\\n){o}\b", n, ["tests/*"])
sub(r"--no-tied\b", "--no-tie-embeddings", ["tests/*"])
sub(r'Query\(request, "batch", "time", "recompute", "precision", "backend"\)', 'Query(request, "batch_size", "seq_len", "recompute", "dtype", "backend")', ["src/tapeless/explorer/server.py"])
sub(r'query\.count\("batch"\)', 'query.count("batch_size")', ["src/tapeless/explorer/server.py"]); sub(r'query\.count\("time"\)', 'query.count("seq_len")', ["src/tapeless/explorer/server.py"]); sub(r'query\.one_of\("precision"', 'query.one_of("dtype"', ["src/tapeless/explorer/server.py"])
p = pathlib.Path("src/tapeless/explorer/pages/memory.js"); t = p.read_text()
for a, b in (('query.set("batch"', 'query.set("batch_size"'), ('query.set("time"', 'query.set("seq_len"'), ('query.set("precision"', 'query.set("dtype"'), ("plan.precision;", "plan.dtype;")): t = t.replace(a, b)
p.write_text(t)
sub(r"'unknown products'|\"unknown products\"", '"unknown gemm"', ["tests/*"]); sub(r'unknown products', 'unknown gemm', ["tests/*"])
sub(r'f"train=\{', 'f"trainable={', ["src/tapeless/models/*"]); sub(r'f"frozen=\{', 'f"freeze={', ["src/tapeless/models/*"])
sub(r"\\\(batch, time\\\)", r"\\(batch_size, seq_len\\)", ["tests/*"])
sub(r'None None own', 'None None builtin', ["tests/*"])
sub(r'weight_decay=(?=0|decay)', 'decay=', ["tests/test_founding_errors.py"])
sub(r"no chunk is given", "no logits_chunk is given", ["tests/*"]); sub(r"\^precision cannot be", "^dtype cannot be", ["tests/*"]); sub(r"(?<![\w])precision cannot be changed", "dtype cannot be changed", ["tests/*"])
sub(r'"clip = (?=nan|inf)', '"grad_clip = ', ["tests/*"]); sub(r'"(lr|rate|floor) = (?=nan|inf)', r'"\1 = ', ["tests/none"])
sub(r'"builtin": (True|False)', r'"own": \1', ["tests/cli/*", "tests/tasks/*", "tests/weights/*"])
p = pathlib.Path("examples/fine_tune_and_look_inside.ipynb"); t = p.read_text()
for o, n in (("channels", "d_model"), ("hidden", "d_ff"), ("vocab", "vocab_size"), ("context", "max_seq_len"), ("batch", "batch_size"), ("time", "seq_len"), ("precision", "dtype")): t = t.replace(f'\\"{o}\\"', f'\\"{n}\\"')
p.write_text(t)
for f in ("docs/settings.md",):
    p = pathlib.Path(f); t = p.read_text()
    for o, n in PAIRS: t = t.replace(f"| `{o}` |", f"| `{n}` |").replace(f"by `{o}`", f"by `{n}`")
    p.write_text(t.replace("(`all`)", "(`every`)"))
p = pathlib.Path("docs/api.md"); t = p.read_text(); p.write_text(t.replace('- `precision`: `"float32"', '- `dtype`: `"float32"').replace("- `time`: ", "- `seq_len`: ").replace("- `batch`: ", "- `batch_size`: "))
def given_fix():
    to_old = {n: o for o, n in PAIRS}
    for p in pathlib.Path("tests").rglob("*.py"):
        src = p.read_text()
        if "@given" not in src: continue
        tree = ast.parse(src); lines = src.splitlines(keepends=True)
        for f in ast.walk(tree):
            if not isinstance(f, ast.FunctionDef): continue
            args = {a.arg for a in (*f.args.args, *f.args.kwonlyargs)}
            for d in f.decorator_list:
                if isinstance(d, ast.Call) and ast.unparse(d.func).endswith("given"):
                    for k in d.keywords:
                        if k.arg and k.arg not in args and to_old.get(k.arg) in args:
                            old = to_old[k.arg]
                            for i in range(f.lineno - 1, f.end_lineno): lines[i] = re.sub(rf"(?<![\w.\"']){old}\b(?![\"'])(?!=[^=])", k.arg, lines[i])
        if "".join(lines) != src: p.write_text("".join(lines))
given_fix()
sub(r'dtype=dtype\), "dtype", "precision"\)', 'dtype=dtype), "dtype", "precision")', ["tests/none"])
sub(r'\("(precision)": (?=\("float)', '("dtype": ', ["tests/none"]); sub(r'"precision": \("float', '"dtype": ("float', ["tests/test_model_input.py"])
sub(r'    "dtype": \(lambda: gpt\(dtype="float64"\), "dtype", "precision"\),', '    "precision": (lambda: gpt(precision="float64"), "precision", "dtype"),', ["tests/test_model_input.py"])
p = pathlib.Path("CHANGELOG.md"); t = p.read_text()
line = "- Options, keys and arguments have the field's names: `--seq-len`, `--batch-size`, `--grad-accum`, `--grad-clip`, `--weight-decay`, `--val-fraction`, `--dtype`, `--freeze`, `--trainable`; `d_model`, `d_ff`, `vocab_size`, `max_seq_len`, `head_dim`, `norm_position`, `rope_theta`, `sliding_window`, `tie_embeddings`, `gemm=builtin` and others ([glossary](docs/glossary.md)).\n"
if line not in t: p.write_text(t.replace("### Changed\n\n", "### Changed\n\n" + line, 1))
p = pathlib.Path("benchmarks/commits.py"); t = p.read_text()
i, j = t.index("name, batch"), t.index("model.step(inputs, targets, lr=1e-4)\nprint")
t = t[:i] + '''name, batch, length, steps, dtype = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
try:
    model = tapeless.Model(name, batch_size=batch, seq_len=length, backend="cpu", dtype=dtype, optimizer="adamw")
    vocab, every = model.config.vocab_size, model.config.predict == "every"
except tapeless.TapelessError:  # the names of commits before 20 November 2026
    model = tapeless.Model(name, **{"batch": batch, "time": length, "precision": dtype}, backend="cpu", optimizer="adamw")
    vocab, every = model.config.vocab, model.config.readout == "all"
rng = np.random.default_rng(0)
inputs = rng.integers(0, vocab, (batch, length))
targets = rng.integers(0, vocab, (batch, length) if every else batch)
''' + t[j:]
p.write_text(t)
