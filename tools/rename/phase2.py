import sys; sys.path.insert(0, __file__.rpartition("/")[0])
from engine import *
CONFIG = ["src/tapeless/models/config.py"]
K = ["src/tapeless/ops/*", "src/tapeless/kernels/*", "tests/kernels/*", "tests/ops/*"]
def sub(rx, repl, only=None, skip=()):
    n = 0
    for p in files():
        s = str(p)
        if only is not None and not any(fnmatch.fnmatch(s, o) for o in only): continue
        if any(fnmatch.fnmatch(s, o) for o in skip): continue
        t = p.read_text()
        new, k = re.subn(rx, repl, t, flags=re.M)
        if k: p.write_text(new); n += k
    return n

def window():
    sub(r"\b(config|c|architecture)\.window\b(?!\()", r"\1.sliding_window")
    sub(r"\bself\.window\b", "self.sliding_window", CONFIG); sub(r"\bwindow(?==\{| must|: int)", "sliding_window", CONFIG)
    sub(r'"window": ', '"sliding_window": ', ["src/tapeless/weights/*", "src/tapeless/check/decoding.py", "src/tapeless/check/configurations.py", "tests/weights/*", "tests/models/test_packed.py", "benchmarks/llamacpp.py", "tests/program/wiring.py"])
    sub(r'"window": 3, "qk', '"sliding_window": 3, "qk', ["tests/backends/interpreted_model.py"])
    sub(r'\bwindow=(?=\d|draw)', 'sliding_window=', ["src/tapeless/check/configurations.py", "tests/program/test_arena.py", "tests/weights/*"])
    sub(r'\bwindow=_window', 'sliding_window=_window', ["src/tapeless/weights/llama.py"])

def readout():
    sub(r"(?<!transformer)(?<!made)\.readout\b(?!\()(?=\s*[=!)]|\]|$| )", ".predict", skip=["tests/explorer/*", "tools/explorer/*", "src/tapeless/model.py"] )
    sub(r"\.config\.readout\b", ".config.predict")
    sub(r'\breadout="all"', 'predict="every"'); sub(r'\breadout="last"', 'predict="last"'); sub(r"\breadout='all'", "predict='every'"); sub(r"\breadout='last'", "predict='last'")
    sub(r'\breadout=(?=last|draw|readout)', 'predict=')
    sub(r'"readout": ', '"predict": ', ); sub(r'CHOICES\["readout"\]', 'CHOICES["predict"]'); sub(r'get\("readout"\)', 'get("predict")')
    sub(r'(?<=["( ])"readout"(?=[,)])', '"predict"', ["tests/bugs/test_catalogue.py", "tests/check/test_complex_step.py", "tests/test_model_input.py", "src/tapeless/*"])
    sub(r'^( +)"readout",$', r'\1"predict",', ["tests/bugs/test_catalogue.py", "tests/check/test_complex_step.py", "tests/test_model_input.py"])
    sub(r'"predict": "all"', '"predict": "every"'); sub(r'"predict": \("all", "last"\)', '"predict": ("every", "last")')
    sub(r'predict (==|!=) "all"', r'predict \1 "every"')
    sub(r'^    readout: str = "all"', '    predict: str = "every"', CONFIG); sub(r'self\.readout\b', 'self.predict', CONFIG)

def chunk():
    sub(r"(layout|config)\.chunk\b", r"\1.logits_chunk"); sub(r"\bself\.chunk\b", "self.logits_chunk", CONFIG)
    sub(r"^    chunk: int \| None", "    logits_chunk: int | None", CONFIG)
    sub(r'(?<![\w.])chunk=(?!=)', "logits_chunk=", skip=K + ["src/tapeless/generate.py"])
    sub(r'"chunk"', '"logits_chunk"', skip=K)

def freeze():
    sub(r"(?<![\w.])frozen=(?!True|frozen_)", "freeze=", skip=["src/tapeless/program/precision.py"])
    sub(r"\b(preset|chosen|made|base)\.frozen\b", r"\1.freeze"); sub(r"\bself\.frozen\b", "self.freeze", CONFIG)
    sub(r"^    frozen: tuple", "    freeze: tuple", CONFIG); sub(r'"frozen": (?=[(\[]|"\*|"blocks|"tokens)', '"freeze": ', skip=K); sub(r"--frozen\b", "--freeze")

def trainable():
    sub(r"(?<![\w.])train=(?=[(\[\"'])", "trainable=")
    sub(r"\bpreset\.train\b", "preset.trainable"); sub(r"\bself\.train\b(?!\()", "self.trainable", CONFIG)
    sub(r"^    train: tuple", "    trainable: tuple", CONFIG); sub(r'"train": (?=[(\[]|"names|"norms")', '"trainable": ', skip=["tests/test_budget.py"]); sub(r"--train\b", "--trainable")
    sub(r"\btrain must be a tuple", "trainable must be a tuple")

if __name__ == "__main__":
    window(); readout(); chunk(); freeze(); trainable()
    from phase1 import synonyms
    synonyms([("window", "sliding_window"), ("chunk", "logits_chunk"), ("frozen", "freeze"), ("train", "trainable")])
