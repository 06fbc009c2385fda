import sys; sys.path.insert(0, __file__.rpartition("/")[0])
from engine import *
from phase2 import sub
K = ["src/tapeless/ops/*", "src/tapeless/kernels/*", "tests/kernels/gemm*", "tests/ops/*"]
EXPLORER = ["src/tapeless/explorer/*", "tests/explorer/*"]
SET = ["src/tapeless/train/settings.py"]

def setting(old, new):
    """The field of Settings, its option, its key."""
    sub(rf"^    {old}: (?=\w+( \| None)? = (option|key)\()", f"    {new}: ", SET)
    sub(rf"\b(settings|asked|request\.settings|Settings\(\)|self\.settings|made\.settings|run\.settings|wanted|given\.settings)\.{old}\b(?!\()", rf"\1.{new}")
    sub(rf"\bself\.{old}\b(?!\()", f"self.{new}", SET)
    sub(rf'"{old}"(?=[,)\]])', f'"{new}"', SET + ["src/tapeless/train/session.py", "src/tapeless/cli/fields.py", "src/tapeless/train/resolve.py", "tests/train/test_settings.py", "tests/train/test_loop.py"])
    sub(rf"--{old.replace('_','-')}\b(?![-\w])", "--" + new.replace("_", "-"))
    sub(rf"--set\", \"{old}=", f'--set", "{new}=')
    sub(rf"--set {old}=", f"--set {new}=")
    sub(rf"(?<![\w.]){old} must be", f"{new} must be", ["src/tapeless/train/settings.py", "tests/*", "src/tapeless/train/*"])
    sub(rf"`{old}`", f"`{new}`", ["src/tapeless/train/settings.py", "src/tapeless/train/schedules.py", "src/tapeless/cli/*"])

def seq_len():
    params("time", "seq_len", r"\bint\b", skip=K)
    rules = [Rule("time", "seq_len", skip=K + ["src/tapeless/explorer/stepping.py", "tests/explorer/test_stepping.py", "benchmarks/cuda.py", "tests/explorer/test_pages.py", "src/tapeless/explorer/server.py", "src/tapeless/explorer/turns.py"],
                  levels="attr kw str text", unless=r"setattr\(time|time\.(perf_counter|sleep|monotonic|time|strftime|localtime|process_time|gmtime|thread_time)|import time")]
    n = run(rules)
    # bare names: the module's own name is always followed by a dot, or handed to monkeypatch
    def name(p):
        src = p.read_text()
        if not re.search(r"\btime\b", src): return
        toks = list(tokenize.generate_tokens(io.StringIO(src).readline)); lines = src.splitlines(keepends=True); edits = []
        for i, t in enumerate(toks):
            if t.type == tokenize.NAME and t.string == "time":
                prev, nxt = toks[i-1].string, toks[i+1].string
                if nxt == "." or prev in (".", "import", "from") or "setattr(time" in lines[t.start[0]-1]: continue
                edits.append((t.start, t.end, "seq_len"))
            elif t.type == tokenize.STRING and "f" in re.match(r"[a-zA-Z]*", t.string).group(0).lower():
                s2 = re.sub(r"(?<!\{)\{[^{}]*\}", lambda m: re.sub(r"(?<![\w.'\"])time\b(?![\w\"'=.])", "seq_len", m.group(0)), t.string)
                if s2 != t.string: edits.append((t.start, t.end, s2))
        offs = [0]
        for l in lines: offs.append(offs[-1] + len(l))
        out = src
        for (a, b, nn) in sorted(edits, reverse=True):
            out = out[: offs[a[0]-1] + a[1]] + nn + out[offs[b[0]-1] + b[1] :]
        if out != src: p.write_text(out)
    for p in files():
        s = str(p)
        if any(fnmatch.fnmatch(s, o) for o in K) or s in ("benchmarks/cuda.py",) : continue
        if s.startswith(("src/tapeless/explorer/stepping", "src/tapeless/explorer/turns")): continue
        name(p)
    sub(r"seq_len=seq_len", "seq_len=seq_len")
    sub(r"\btime (?=\{[^}]*seq_len)", "sequence length ")
    print("seq_len", n)

def batch_size():
    params("batch", "batch_size", r"\bint\b|\bBatch(Size)?\b.*Option|^Batch$")
    rules = [Rule("batch", "batch_size", levels="attr kw text", unless=r"[tT]rainer\.batch|explorer\.batch"),
             Rule("batch", "batch_size", levels="str", skip=["src/tapeless/ops/*", "src/tapeless/explorer/server.py"], unless=r"Trainer|\"batch\", batch\)")]
    print("batch_size", run(rules))

def rest():
    for old, new in (("validation", "val_fraction"), ("batch", "batch_size"), ("time", "seq_len"), ("accumulate", "grad_accum"), ("floor", "min_lr_ratio"), ("every", "lr_step_size"),
                     ("rate", "lr_gamma"), ("clip", "grad_clip"), ("decay", "weight_decay"), ("keep", "keep_checkpoints"), ("precision", "dtype"), ("products", "gemm")):
        setting(old, new)
    S = ["src/tapeless/train/schedules.py", "tests/check/training.py", "tests/train/test_schedules.py", "src/tapeless/train/settings.py", "src/tapeless/train/course.py"]
    for old, new in (("floor", "min_lr_ratio"), ("every", "lr_step_size"), ("rate", "lr_gamma")):
        sub(rf"\b(s|self|schedule)\.{old}\b", rf"\1.{new}", S); sub(rf"^    {old}: ", f"    {new}: ", S[:1]); sub(rf"(?<![\w.]){old}=(?!=)", f"{new}=", S + ["tests/train/test_settings.py"])
        sub(rf"\b{old} must", f"{new} must", S)
    # clipping and decay
    params("clip", "grad_clip", r"\bfloat\b")
    R = [Rule("clip", "grad_clip", levels="attr kw", skip=K + ["src/tapeless/models/*", "src/tapeless/program/*"], unless=r"p\.clip|np\.clip|b\.clip|(update|upcoming|self|known)\.clip|ops\.clip"),
         Rule("clip", "grad_clip", levels="str", only=["src/tapeless/tasks/*", "src/tapeless/labelling/run.py", "tests/train/test_doctor.py", "tools/doctor/*"])]
    run(R)
    sub(r'"clip"(?=: 1e-3)', '"grad_clip"', ["tests/train/test_doctor.py"])
    R = [Rule("decay", "weight_decay", levels="attr kw", skip=K + ["src/tapeless/program/*", "tests/program/*"], unless=r"weight\.decay|m\.decay|Weight\("),
         Rule("decay", "weight_decay", levels="str", only=["src/tapeless/tasks/*", "src/tapeless/labelling/run.py", "src/tapeless/train/*", "src/tapeless/models/config.py"])]
    run(R)
    sub(r"^    decay: float = 0.01", "    weight_decay: float = 0.01", ["src/tapeless/models/config.py"])
    # accumulation, validation, checkpoints, dtype, gemm
    sub(r"(?<![\w.])accumulate=(?=\d|ACC)", "grad_accum=")
    sub(r"\bSettings\(([^()]*)\baccumulate=", r"Settings(\1grad_accum=")
    for o, n in (("every", "lr_step_size"), ("rate", "lr_gamma"), ("keep", "keep_checkpoints"), ("floor", "min_lr_ratio"), ("clip", "grad_clip"), ("decay", "weight_decay")):
        for _ in range(3): sub(rf"\b(Settings|Schedule)\(([^()]*)(?<![\w.]){o}=", rf"\1(\2{n}=")
    sub(r"\.preset\(\)\.frozen\b", ".preset().freeze")
    sub(r"^    clip: float", "    grad_clip: float", ["src/tapeless/train/doctor/evidence.py"])
    sub(r"\bSettings\(([^()]*)\bvalidation=", r"Settings(\1val_fraction=")
    sub(r"(?<![\w.])validation=(?=0\.|asked|settings|fraction|val_fraction)", "val_fraction="); params("validation", "val_fraction", r"\bfloat\b")
    params("precision", "dtype", r"\bstr\b|PrecisionName"); params("products", "gemm", r"\bstr\b")
    R = [Rule("precision", "dtype", levels="kw", unless=r"precision=precision\b(?!\.)|kept_for|Precision"), Rule("products", "gemm", levels="attr kw", skip=["src/tapeless/kernels/*", "benchmarks/cuda*.py", "src/tapeless/ops/*"], unless=r"import|kernels\.cuda")]
    run(R)
    sub(r"\b(work|configuration|asked|c|narrow|case|each)\.precision\b(?!\.)", r"\1.dtype")
    sub(r'"own"', '"builtin"', ["src/tapeless/kernels/cpu/gemm*", "src/tapeless/kernels/cpu/__init__.py", "src/tapeless/bench/*", "tests/kernels/*", "tests/bench/*", "tests/train/*", "tests/cli/*", "src/tapeless/cli/*", "src/tapeless/train/*", "benchmarks/*", "tools/*"])

def synonym():
    from phase1 import synonyms
    synonyms([("validation", "val_fraction"), ("batch", "batch_size"), ("time", "seq_len"), ("accumulate", "grad_accum"), ("floor", "min_lr_ratio"), ("every", "lr_step_size"),
              ("rate", "lr_gamma"), ("clip", "grad_clip"), ("decay", "weight_decay"), ("keep", "keep_checkpoints"), ("precision", "dtype"), ("products", "gemm")])

if __name__ == "__main__":
    rest(); seq_len(); batch_size(); synonym()
