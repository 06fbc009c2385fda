"""Rename identifiers by rules. Each rule: old, new, levels, skip/only globs, and an extra predicate."""
import fnmatch, io, pathlib, re, tokenize
ROOTS = ("src", "tests", "tools", "benchmarks", "examples")

def files(ext=(".py",)):
    for r in ROOTS:
        for p in sorted(pathlib.Path(r).rglob("*")):
            if p.suffix in ext and "__pycache__" not in p.parts:
                yield p

class Rule:
    def __init__(self, old, new, levels="attr kw name str text", skip=(), only=None, unless=None, strunless=None):
        self.old, self.new, self.levels = old, new, set(levels.split())
        self.skip, self.only = skip, only
        self.unless = unless  # regex over the physical line: leave the line alone
        self.strunless = strunless
    def wants(self, path):
        p = str(path)
        if any(fnmatch.fnmatch(p, s) for s in self.skip): return False
        return self.only is None or any(fnmatch.fnmatch(p, s) for s in self.only)

def text_sub(rule, s):
    o, n = re.escape(rule.old), rule.new
    if "_" in rule.old and rule.old not in ("kw_only",):
        s = re.sub(rf"(?<![\w.]){o}\b(?!\()", n, s)
    s = re.sub(rf"(?<![\w.\-]){o} (?=must be|cannot be)", n + " ", s)
    s = re.sub(rf"--{o.replace('_','-')}\b(?!-)", "--" + n.replace("_", "-"), s)
    s = re.sub(rf"`{o}`", f"`{n}`", s)
    s = re.sub(rf"(?<![\w.\-]){o}(?==[^=\s>])", n, s)
    return s

def fstring_sub(rule, s):
    """Names within the braces of an f-string."""
    def braces(m):
        inner = m.group(0)
        if "attr" in rule.levels: inner = re.sub(rf"\.{rule.old}\b(?!\()", f".{rule.new}", inner)
        if "name" in rule.levels: inner = re.sub(rf"(?<![\w.'\"]){rule.old}\b(?![\w\"'=])", rule.new, inner)
        if "kw" in rule.levels: inner = re.sub(rf"(?<=[(\s,]){rule.old}(?==[^=])", rule.new, inner)
        return inner
    return re.sub(r"(?<!\{)\{[^{}]*\}", braces, s)

def apply_py(path, rules):
    rules = [r for r in rules if r.wants(path)]
    if not rules: return 0
    src = path.read_text(encoding="utf-8")
    if not any(re.search(rf"(?<![a-zA-Z]){re.escape(r.old)}|{r.old.replace('_','-')}", src) for r in rules): return 0
    lines = src.splitlines(keepends=True)
    toks = list(tokenize.generate_tokens(io.StringIO(src).readline))
    edits = []
    depth = 0
    for i, t in enumerate(toks):
        if t.type == tokenize.OP: depth += (t.string in "([{") - (t.string in ")]}")
        if t.type == tokenize.NAME:
            for r in rules:
                if t.string != r.old: continue
                line = lines[t.start[0]-1]
                if r.unless and re.search(r.unless, line): continue
                prev, nxt = toks[i-1].string if i else "", toks[i+1].string
                if prev == ".":
                    kind = "attr"
                    if nxt == "(" and "method" not in r.levels: continue
                elif nxt == "=" and depth and (prev in ("(", ",") or toks[i-1].type in (tokenize.NL, tokenize.COMMENT)): kind = "kw"
                else: kind = "name"
                if prev in ("import", "from") : continue
                if kind in r.levels:
                    edits.append((t.start, t.end, r.new)); break
        elif t.type in (tokenize.STRING, tokenize.COMMENT):
            s = t.string
            for r in rules:
                line = lines[t.start[0]-1]
                if r.unless and t.start[0] == t.end[0] and re.search(r.unless, line): continue
                if t.type == tokenize.STRING:
                    m = re.fullmatch(r"([rbuRBU]*)(['\"])(.*)\2", s, re.S)
                    if m and m.group(3) == r.old:
                        if "str" in r.levels and not (r.strunless and re.search(r.strunless, line)):
                            s = f"{m.group(1)}{m.group(2)}{r.new}{m.group(2)}"
                        continue
                    if s[:2].lower().find("f") >= 0: s = fstring_sub(r, s)
                if "text" in r.levels: s = text_sub(r, s)
            if s != t.string: edits.append((t.start, t.end, s))
    if not edits: return 0
    offs = [0]
    for l in lines: offs.append(offs[-1] + len(l))
    out = src
    for (a, b, n) in sorted(edits, reverse=True):
        out = out[: offs[a[0]-1] + a[1]] + n + out[offs[b[0]-1] + b[1] :]
    path.write_text(out, encoding="utf-8")
    return len(edits)

def run(rules):
    total = 0
    for p in files():
        total += apply_py(p, rules)
    return total

import ast

def params(old, new, annotation, skip=(), bare=False):
    """Rename parameters and dataclass fields called `old` with such an annotation, and their uses in the function."""
    n = 0
    for p in files():
        if any(fnmatch.fnmatch(str(p), x) for x in skip): continue
        src = p.read_text()
        if not re.search(rf"\b{old}\b", src): continue
        tree = ast.parse(src)
        spans, fields = [], []
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                pos = [*node.args.posonlyargs, *node.args.args]
                defaulted = {a.arg for a in pos[len(pos) - len(node.args.defaults):]} if node.args.defaults else set()
                defaulted |= {a.arg for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d is not None}
                for a in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs):
                    if a.arg == old and ((a.annotation is None and old in defaulted) or (a.annotation is not None and re.search(annotation, ast.unparse(a.annotation))) or (a.annotation is None and bare)):
                        spans.append((node.lineno, node.end_lineno))
            elif isinstance(node, ast.ClassDef):
                for st in node.body:
                    if isinstance(st, ast.AnnAssign) and isinstance(st.target, ast.Name) and st.target.id == old and re.search(annotation, ast.unparse(st.annotation)):
                        fields.append((st.lineno, st.target.col_offset))
        if not spans and not fields: continue
        lines = src.splitlines(keepends=True)
        toks = list(tokenize.generate_tokens(io.StringIO(src).readline))
        edits = []
        depth = 0
        for i, t in enumerate(toks):
            if t.type == tokenize.OP: depth += (t.string in "([{") - (t.string in ")]}")
            if t.type == tokenize.NAME and t.string == old:
                prev, nxt = toks[i-1].string, toks[i+1].string
                inside = any(a <= t.start[0] <= b for a, b in spans)
                if t.start in [(a, b) for a, b in fields]: edits.append((t.start, t.end, new)); continue
                if not inside or prev == "." or prev in ("import", "from"): continue
                if any(a == t.start[0] or (a <= t.start[0] and "def " in lines[a-1] and t.start[0] - a < 12 and lines[t.start[0]-1].lstrip().startswith(old)) for a, b in spans) and nxt == "=" and depth:
                    edits.append((t.start, t.end, new)); continue
                if nxt == "=" and depth and (prev in ("(", ",") or toks[i-1].type == tokenize.NL): continue
                if nxt == "." and old == "time": continue
                edits.append((t.start, t.end, new))
            elif t.type == tokenize.STRING and any(a <= t.start[0] <= b for a, b in spans):
                r = Rule(old, new, "name")
                m = re.match(r"[rbuRBUfF]*", t.string).group(0)
                if "f" in m.lower():
                    s2 = fstring_sub(r, t.string)
                    if s2 != t.string: edits.append((t.start, t.end, s2))
        offs = [0]
        for l in lines: offs.append(offs[-1] + len(l))
        out = src
        for (a, b, nn) in sorted(set(edits), reverse=True):
            out = out[: offs[a[0]-1] + a[1]] + nn + out[offs[b[0]-1] + b[1] :]
        if out != src: p.write_text(out); n += len(edits)
    return n
