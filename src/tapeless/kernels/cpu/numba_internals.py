"""All that we use of Numba beyond its public interface. No other module imports from `numba.core`.

`pyproject.toml` pins Numba to the range that was tested. `tests/kernels/test_numba_internals.py` looks up each name
here and each attribute below, and says in a sentence which one has moved.
"""

from numba import config
from numba.core.caching import FunctionCache, NullCache
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags, compile_internal
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import _dynfunc
from numba.core.imputils import lower_cast
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion

# By object: the attributes that no page of Numba's documents, and where we use them.
ATTRIBUTES = {
    "config": ("BOUNDSCHECK", "CPU_FEATURES"),  # vector, packing, gemm_bfloat16
    "dispatcher": ("_cache", "compile", "overloads", "py_func", "stats", "targetdescr", "targetoptions"),  # compile
    "compile result": ("entry_point", "fndesc", "library", "signature", "target_context"),  # compile, call_list
    "function descriptor": ("llvm_func_name",),  # call_list
    "target options": ("parse_as_flags",),  # outline
    "flags": ("no_compile",),  # outline
    "compiler": ("state",),  # helpers
    "target context": (
        "active_code_library",
        "call_conv",
        "cast",
        "codegen",
        "declare_function",
        "get_executable",
    ),  # outline, helpers
    "calling convention": ("call_function", "get_function_type"),  # outline, call_list
    "code library": (
        "_finalize_final_module",  # helpers
        "_finalized",  # helpers
        "_optimize_final_module",  # helpers
        "add_ir_module",  # call_list
        "create_ir_module",  # call_list
        "finalize",  # call_list
        "get_pointer_to_function",  # call_list
    ),
    "cache": ("_cache_file", "_index_key", "cache_path", "load_overload", "save_overload"),  # cache
    "cache file": ("_data_name", "_index_name", "_index_path", "_load_index", "_source_stamp"),  # cache
    "C function": ("_cache", "address", "compile", "ctypes"),  # functions
}
