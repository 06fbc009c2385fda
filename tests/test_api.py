"""Public names are the documented ones: docs/api.md has what the modules export, and a word about all of it."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from tools.figures.api import GIVEN, PUBLIC, exported, members

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def sections():
    found = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].strip("`"): part for part in found}


@pytest.mark.parametrize("module", PUBLIC)
def test_what_is_exported_is_what_is_documented(module):
    documented = re.findall(r"^### `(\w+)", sections()[module], re.MULTILINE)
    assert documented == exported(module)
    assert sorted(documented) == sorted(set(documented))
    for name in documented:
        assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("module", PUBLIC)
def test_a_star_import_gives_these_and_no_others(module):
    names: dict[str, object] = {}
    exec(f"from {module} import *", names)
    assert names.keys() - {"__builtins__"} == set(exported(module))


def public_things():
    for module in PUBLIC:
        for name in exported(module):
            yield f"{module}.{name}", getattr(import_module(module), name)
    for kind in GIVEN:
        yield kind.__name__, kind


@pytest.mark.parametrize(("name", "thing"), list(public_things()))
def test_every_public_thing_says_what_it_is(name, thing):
    if callable(thing):
        assert inspect.getdoc(thing), name
        assert not (inspect.getdoc(thing) or "").startswith(f"{name.rpartition('.')[2]}("), "a dataclass's own words"
    for member, value in members(thing) if inspect.isclass(thing) else ():
        assert inspect.getdoc(getattr(value, "func", value)), f"{name}.{member}"


def test_the_arguments_of_load_are_all_told():
    import tapeless

    told = re.findall(r"^- `(\w+)`: ", PAGE.partition("### `load(")[2], re.MULTILINE)
    assert told[:7] == list(inspect.signature(tapeless.load).parameters)


def test_documents_use_public_names_alone():
    """But for those that are about the inside: how an op is added, and how this one is built."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if page.name == "adding-an-op.md":
            continue
        for module, names in re.findall(r"^from (tapeless[\w.]*) import ([\w, ]+)", page.read_text(), re.MULTILINE):
            assert module in PUBLIC, f"{page.name}: {module}"
            assert set(names.replace(" ", "").split(",")) <= set(exported(module)), page.name
