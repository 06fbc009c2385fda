"""Two workers on two cores: a BLAS that starts a thread per core in each of them only makes them wait."""

import gc
import os
import random
import signal
import sys

import pytest

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# And where tests are about threads, one that waits lets the other worker have the core: OpenMP's own way is to look
# again and again for a fifth of a second, which took more of the suite than what the threads compute.
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that starts the tests in the background lets them, and what they start, ignore Ctrl-C, which some are about.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What pytest and Python have compiled is kept for the next run and for the processes that tests start, also where the
# user's own environment says otherwise: to rewrite every test's assertions anew takes each worker several seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is loaded by now stays: nobody needs to look through PyTorch for garbage again and again."""
    gc.collect()
    gc.freeze()


# Begun last, one of these would leave the other worker without anything to do.
LONGEST = (
    "test_the_healthy_program_passes_everything",
    "test_no_kernel_leaves_its_arrays",
    "test_a_model_does_what_the_reference_does_and_calls_bound_as_one_what_they_do_singly",
    "test_every_bug_is_caught_and_nearly_all_are_named",
    "test_everybody_computes_what_they_compute_alone",
    "test_kernels_compute_what_the_reference_does",
    "test_a_kernel_gives_the_same_bits_each_time",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """TAPELESS_ORDER, any word, shuffles the files and each file's tests, the same way in every worker."""
    order = os.environ.get("TAPELESS_ORDER")
    if order is None:
        items.sort(key=lambda item: item.name.partition("[")[0] not in LONGEST)
        return
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    shuffled, chance = list(files.values()), random.Random(order)
    chance.shuffle(shuffled)
    for each in shuffled:
        chance.shuffle(each)
    items[:] = [item for each in shuffled for item in each]


@pytest.fixture(autouse=True)
def products_as_they_were():
    """A training, that of a fixture too, leaves the faster products to whatever its process binds from then on."""
    _with_usual_products()
    yield
    _with_usual_products()


def _with_usual_products():
    cpu_kernels = sys.modules.get("tapeless.kernels.cpu")
    if cpu_kernels is not None:
        cpu_kernels.set_gemm_library(None)


@pytest.fixture(scope="module")
def two_threads():
    """The suite runs on one thread per worker; where the threaded kernels are meant, a module asks for this."""
    from tapeless.kernels import cpu as cpu_kernels

    cpu_kernels.set_threads(min(2, len(os.sched_getaffinity(0))))
    yield
    cpu_kernels.set_threads(None)


@pytest.fixture
def own_products():
    """Whatever is faster on this machine."""
    from tapeless.kernels import cpu as cpu_kernels

    before = cpu_kernels.gemm_library()
    cpu_kernels.set_gemm_library("own")
    yield
    cpu_kernels.set_gemm_library(before)
