import sys; sys.path.insert(0, __file__.rpartition("/")[0])
from engine import *
OPS = ("src/tapeless/ops/*", "src/tapeless/kernels/*", "tests/kernels/*", "tests/ops/*")
HF = ("src/tapeless/weights/vocabulary.py",)
BROWSER = ("tests/explorer/test_pages.py", "tests/explorer/test_export.py", "tests/explorer/conftest.py")
def rules():
    return [
        # first what would collide
        Rule("head_channels", "head_size"),
        Rule("head_width", "head_dim"),
        Rule("channels", "d_model", skip=OPS + ("src/tapeless/check/definitions.py", "src/tapeless/check/ranges.py", "src/tapeless/labelling/signal/*", "src/tapeless/explorer/laboratory.py"), unless=r"channels of (sound|audio)"),
        Rule("vocab", "vocab_size", skip=HF + OPS[1:2] + ("src/tapeless/tasks/data/tokenizer_bounds.py", "tests/tasks/data/test_malformed.py", "tests/tasks/data/test_hostile.py"), strunless=r'\["vocab"\]|get\("vocab"|"merges"|"type": "BPE"|"WordLevel"|"Unigram"'),
        Rule("context", "max_seq_len", skip=OPS + ("src/tapeless/cli/manual.py", "src/tapeless/cli/mistakes.py", "tools/budget.py", "tests/test_documents.py", "tools/explorer/*") + BROWSER, unless=r"typer\.Context|chromium|context\.new_page|for context in contexts"),
        Rule("hidden", "d_ff", skip=OPS[1:2] + ("tests/tasks/data/*", "src/tapeless/tasks/*", "src/tapeless/explorer/lesson.py", "tests/test_founding_errors.py", "tests/explorer/*", "src/tapeless/explorer/*", "src/tapeless/cli/tokenize.py", "tools/explorer/*"), levels="attr kw str name text"),
        Rule("norm_kind", "norm"),
        Rule("query_key_norm", "qk_norm"),
        Rule("rope_base", "rope_theta"), Rule("rope_low", "low_freq_factor"), Rule("rope_high", "high_freq_factor"),
        Rule("rope_old_context", "original_max_seq_len"),
        Rule("tied", "tie_embeddings", levels="attr kw str text"),
        Rule("keep_norms", "save_norms"),
        Rule("frozen_precision", "frozen_dtype"),
        Rule("placement", "norm_position", levels="attr kw str text", skip=("src/tapeless/program/*", "src/tapeless/lowering/*", "src/tapeless/backends/*", "src/tapeless/explorer/memory.py", "tests/program/*", "tests/backends/*", "tests/lowering/*")),
        Rule("squared_error", "mse"),
        Rule("lean", "reuse_activations"),
    ]

def definitions():
    """Fields whose names are too common to be renamed as plain names."""
    p = pathlib.Path("src/tapeless/models/config.py"); s = p.read_text()
    for old, new in (("placement", "norm_position"), ("tied", "tie_embeddings"), ("hidden", "d_ff")):
        s = re.sub(rf"^    {old}: ", f"    {new}: ", s, flags=re.M)
    p.write_text(s)
    p = pathlib.Path("src/tapeless/train/doctor/evidence.py"); t = p.read_text()
    p.write_text(t.replace("    placement: str | None", "    norm_position: str | None"))
    p = pathlib.Path("src/tapeless/models/presets.py"); s = p.read_text()
    s = re.sub(r"\bhidden\b", "d_ff", s); p.write_text(s)

def synonyms(pairs):
    p = pathlib.Path("src/tapeless/synonyms.py"); s = p.read_text()
    def fix(m):
        key, names = m.group(1), m.group(2).split()
        for old, new in pairs:
            if key in (new, old):
                key, names = new, [n for n in names if n not in (new, old)]
        return f'    "{key}": "{" ".join(names)}",' if names else "@@"
    s = re.sub(r'^    "(\w+)": "([\w ]+)",$', fix, s, flags=re.M)
    p.write_text(s.replace("@@\n", ""))

if __name__ == "__main__":
    definitions()
    print(run(rules()))
    for p in files():
        t = p.read_text(); n = re.sub(r"vocab_size=vocab\b", "vocab_size=vocab_size", t)
        if n != t: p.write_text(n)
    if pathlib.Path("src/tapeless/ops/squared_error").exists():
        import subprocess, shutil; shutil.rmtree("src/tapeless/ops/mse", ignore_errors=True); subprocess.run(["git", "mv", "src/tapeless/ops/squared_error", "src/tapeless/ops/mse"], check=True)
    synonyms([(r.old, r.new) for r in rules()])

