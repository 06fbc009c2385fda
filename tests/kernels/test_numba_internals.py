"""What we use of Numba's internals is where it was, and only `numba_internals.py` reaches for it."""

import ast
from importlib import import_module
from pathlib import Path

import numba
import pytest
from numba import intp, types

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "tapeless" / "kernels" / "cpu" / "numba_internals.py"


def imports(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", each.name) for node in nodes for each in node.names]


def names_that_moved(wanted):
    """A sentence for each (module, name) that this Numba does not have."""
    for module, name in wanted:
        try:
            there = hasattr(import_module(module), name)
        except ImportError:
            there = False
        if not there:
            yield (
                f"Numba {numba.__version__} has no {module}.{name}: pin Numba below it in pyproject.toml, "
                f"or find what took its place and change numba_internals.py."
            )


def attributes_that_moved(wanted, samples):
    for kind, attributes in wanted.items():
        for attribute in attributes:
            if attribute not in dir(samples[kind]):
                yield (
                    f"Numba {numba.__version__}: its {kind} has no attribute {attribute}: pin Numba below it in "
                    f"pyproject.toml, or find what took its place and change the modules that use it."
                )


def successor(x):
    return x + 1


@pytest.fixture(scope="module")
def samples():
    from tapeless.kernels.cpu import numba_internals as internals

    dispatcher = numba.njit(successor)
    dispatcher.compile((intp,))
    (result,) = dispatcher.overloads.values()
    context, cache = internals.cpu_target.target_context, internals.FunctionCache(successor)
    typing = internals.cpu_target.typing_context
    return {
        "config": internals.config,
        "dispatcher": dispatcher,
        "compile result": result,
        "function descriptor": result.fndesc,
        "target options": dispatcher.targetdescr.options,
        "flags": internals.Flags(),
        "compiler": internals.Compiler(typing, context, None, (), None, internals.Flags(), {}),
        "target context": context,
        "calling convention": context.call_conv,
        "code library": internals.JITCodeLibrary(context.codegen(), "tests"),
        "cache": cache,
        "cache file": cache._cache_file,
        "C function": internals.CFunc(successor, ((intp,), intp), {}, {}),
    }


def test_no_name_has_moved():
    assert list(names_that_moved(imports(FILE))) == []


def test_no_attribute_has_moved(samples):
    from tapeless.kernels.cpu.numba_internals import ATTRIBUTES

    assert ATTRIBUTES.keys() == samples.keys()
    assert list(attributes_that_moved(ATTRIBUTES, samples)) == []


def test_what_moved_is_named_in_a_sentence(samples):
    (name,) = names_that_moved([("numba.core.caching", "NoSuchCache")])
    (module,) = names_that_moved([("numba.core.nowhere", "FunctionCache")])
    (attribute,) = attributes_that_moved({"cache": ("no_such_key",)}, samples)
    assert "has no numba.core.caching.NoSuchCache: pin Numba below it" in name
    assert "has no numba.core.nowhere.FunctionCache: pin Numba below it" in module
    assert "its cache has no attribute no_such_key: pin Numba below it" in attribute


def test_no_other_module_reaches_for_them():
    places = [path for folder in ("src", "tools", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {(path.name, module, name) for path in places for module, name in imports(path) if is_private(module, name)}
    assert {file for file, _, _ in found} == {FILE.name}, sorted(found)


def is_private(module, name):
    """What Numba's documentation names comes from `numba` and `numba.extending`; llvmlite's, from its two parts."""
    if module.split(".")[0] == "llvmlite":
        return module not in ("llvmlite", "llvmlite.ir", "llvmlite.binding") or name.startswith("_")
    return module.startswith("numba.") and module != "numba.extending"


def test_the_calling_convention_is_the_one_that_calls_in_a_list_have():
    """An array is seven words: memory, parent, size, bytes of an item, data, its shape and strides; in front of all
    arguments there are two pointers, for a result and for what was raised."""
    from tapeless.kernels.cpu.numba_internals import cpu_target

    convention = cpu_target.target_context.call_conv
    kinds = convention.get_function_type(types.none, (types.Array(types.float32, 1, "C"), intp)).args
    assert len(kinds) == 2 + 7 + 1
