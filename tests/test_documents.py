"""What README.md and docs/ show works: their Python runs, their commands exist and take the options shown."""

import re
from typing import Any

import pytest
import typer
from tools.documents import LONG, NOT_RUN, ROOT, blocks, commands, named_commands, programs, run
from tools.search import WANTED, headings

import tapeless
from tapeless.cli.app import app

ROOM: Any = typer.main.get_command(app)


@pytest.mark.parametrize("block", programs(long=False), ids=str)
def test_python_in_the_documents_runs(block):
    run(block)


@pytest.mark.parametrize(("where", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_in_the_documents_are_taken(where, words):
    room, context = ROOM, typer.Context(ROOM, info_name="tapeless")
    while hasattr(room, "commands"):  # label has some of its own
        room, words = room.commands[words[0]], words[1:]
    room.make_context(room.name, words, parent=context)


def test_every_command_that_a_sentence_names_is_there():
    assert named_commands() <= set(ROOM.commands)


def test_what_is_not_run_is_there():
    python = [block for block in blocks() if block.language == "python"]
    for page, words in [*NOT_RUN, *LONG]:
        assert any(block.matches(page, words) for block in python), page
    assert len(programs(long=False)) >= 5
    assert programs(long=True)


def test_a_block_that_fails_is_noticed(monkeypatch):
    block = next(block for block in programs(long=False))
    with pytest.raises(NameError):
        run(type(block)(block.page, block.line, "python", "there_is_no_such_name"))


def test_the_public_names_are_in_the_reference_of_the_site():
    page = (ROOT / "docs/reference.md").read_text("utf-8")
    for name in tapeless.__all__:
        assert f"::: tapeless.{name}\n" in page, name


def plain(text):
    return text.lower().replace("-", " ")


@pytest.mark.parametrize(("words", "page"), WANTED.items())
def test_the_words_of_the_field_stand_in_a_heading_of_their_page(words, page):
    """A hit in a heading counts a thousandfold for the site's search, which `make docs` asks for the same list."""
    own = [plain(heading) for name, heading in headings() if name == page]
    assert any(plain(words) in heading for heading in own), own


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r"(?<= )([\w-]+)\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


def test_the_address_of_the_repository_is_one():
    """It is a placeholder until there is one: pyproject.toml says it, the other files repeat it."""
    (address,) = set(re.findall(r'"(https://github.com/[^/"]+/tapeless)', (ROOT / "pyproject.toml").read_text("utf-8")))
    for file in ("README.md", "CITATION.cff", "mkdocs.yml", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        found = set(re.findall(r"https://github.com/[^/\s]+/tapeless", (ROOT / file).read_text("utf-8")))
        assert found == {address}, file
