"""Tests stand where what they test stands; a class has a name of its own."""

import ast
from collections import defaultdict
from pathlib import Path

TESTS, PACKAGES = Path(__file__).parent, Path(__file__).parents[1] / "src" / "tapeless"
ACROSS = {"properties", "bugs"}  # what holds of every op, every model and every kernel; the catalogue of planted bugs


def test_every_folder_of_tests_is_one_of_the_source():
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    strays = {str(folder) for folder in folders if not (PACKAGES / folder / "__init__.py").is_file()}
    assert strays == ACROSS


def test_every_room_has_tests():
    rooms = {room.parent.name for room in PACKAGES.glob("*/__init__.py")}
    tested = {file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")}
    assert rooms <= tested


def test_no_class_name_stands_in_two_modules():
    places = defaultdict(set)
    for file in PACKAGES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(file.relative_to(PACKAGES)))
    doubled = {name: files for name, files in places.items() if len(files) > 1}
    assert doubled == {}
