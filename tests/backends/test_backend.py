"""What a backend must offer, and no more."""

from tapeless.backends.backend import Backend
from tapeless.backends.cpu import CPU
from tapeless.backends.reference import REFERENCE

MEMBERS = {name for name in vars(Backend) if not name.startswith("_")}


def test_a_backend_has_twelve_members():
    assert len(MEMBERS) <= 12, sorted(MEMBERS)


def test_ours_have_these_and_no_others():
    for backend in (CPU, REFERENCE):
        assert {name for name in dir(backend) if not name.startswith("_")} == MEMBERS


def test_the_engine_knows_of_no_backend_in_particular():
    import inspect

    from tapeless.backends import engine

    source = inspect.getsource(engine).lower()
    assert not any(word in source for word in ("cuda", "gpu", "numba", "relu", "torch"))
