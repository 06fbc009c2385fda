"""`tapeless chat`, line by line, and what Ctrl-C and Ctrl-D do."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from tapeless.cli import chat as command
from tapeless.cli.app import app
from tapeless.errors import TapelessError
from tapeless.generate import Decoder
from tapeless.tasks.chat.template import FILE
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tests.screens import document, screen

SMALL = {"layers": 1, "channels": 32, "heads": 4, "kv_heads": 2, "hidden": 48}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    rows = [{"prompt": f"Say {word}.", "completion": f"{word}!"} for word in "abcdefgh"]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = Settings(data=str(folder / "chats.jsonl"), batch=1, time=96, steps=1, backend="reference", record=0)
    session = start(Request("llama-4x256", SMALL, how), folder / "run")
    session.train()
    return folder / "run"


def asked(run, lines, *options):
    return CliRunner().invoke(app, ["chat", str(run), "--backend", "reference", "-n", "6", *options], input=lines)


def test_lines_from_a_pipe_are_answered_as_json(run):
    found = asked(run, "Say a.\n\nSay b.\n/reset\nSay a.\n", "--json", "--temperature", "0")
    assert found.exit_code == 0, found.output
    said = [json.loads(line) for line in found.output.splitlines()]
    assert [each["user"] for each in said] == ["Say a.", "Say b.", "Say a."]
    assert said[0]["assistant"] == said[2]["assistant"]
    assert all(each["tokens"] <= 6 and each["forgotten"] == 0 for each in said)


def test_it_is_talked_with_in_any_precision_and_told_what_there_is_as_json(run):
    found = asked(run, "/help\nSay a.\n", "--json", "--precision", "bfloat16")
    told, said = (json.loads(line) for line in found.output.splitlines())
    assert told == {"commands": command.COMMANDS}
    assert said["user"] == "Say a."
    assert "unknown precision 'float16'" in str(asked(run, "", "--precision", "float16").exception)


def test_for_people_it_says_what_it_is_and_what_there_is(run):
    found = asked(run, "/help\n/reset\nSay a.\n" + "Go on, and tell me more of it.\n" * 3)
    assert "96 positions; the plain chat template. /help" in " ".join(found.output.split())
    assert "Ctrl-C  end the answer" in found.output
    assert "all that was said is forgotten" in found.output
    assert "its 96 positions are full: the oldest 2 messages are forgotten" in found.output


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_but_an_answer_is_wider_than_the_terminal(run, width, monkeypatch):
    monkeypatch.chdir(run.parent)
    shown = screen("chat", "run", "--backend", "reference", "-n", 3, width=width, typed="/help\nSay a.\n/reset\n")
    assert "Ctrl-D  leave" in shown
    shown = screen("tokenize", "chats.jsonl", "--show", width=width)
    assert "Assistant:\n⟦a!<|endoftext|>⟧\n" in shown
    assert "in ⟦ ⟧: learned; the rest is read. By the plain chat template, bytes." in " ".join(shown.split())
    shown = screen("tokenize", "chats.jsonl", "--out", f"tokens-{width}", width=width)
    assert "to train on" in shown
    assert "train --init-from RUN --data" in " ".join(shown.split())


def test_what_is_shown_as_json_is_all_of_the_text(run):
    found = document("tokenize", run.parent / "chats.jsonl", "--show")["conversations"]
    assert len(found) == 3
    parts = [(part["text"], part["learned"]) for part in found[0]["parts"]]
    assert parts == [("User:\nSay a.\n\nAssistant:\n", False), ("a!<|endoftext|>", True), ("\n", False)]


BAD = b"Say a.\n/quit now\nSay <|endoftext|>.\n" + b"x" * 200 + b"\nSay \xff.\nSay b.\n"
WRONG = ("there is no /quit", "holds '<|endoftext|>'", "say less", "the byte 0xff")


def test_a_line_of_a_pipe_that_cannot_be_answered_is_told_of_and_the_next_is_read(run):
    found = asked(run, BAD, "--json")
    said = [json.loads(line) for line in found.output.splitlines()]
    assert [each.get("ended") is not None for each in said] == [True, *[False] * len(WRONG), True]
    for each, wrong in zip(said[1:-1], WRONG, strict=True):
        assert set(each) == {"user", "error"}
        assert wrong in each["error"]
    assert (said[1]["user"], said[-1]["user"]) == ("/quit now", "Say b.")
    assert found.exit_code == 1
    found = asked(run, BAD)
    told = found.stderr.splitlines()
    assert [line.startswith(f"error: line {number}: ") for number, line in enumerate(told, 2)] == [True] * len(WRONG)
    assert all(wrong in line for line, wrong in zip(told, WRONG, strict=True))
    assert found.exit_code == 1


def test_what_no_answer_could_be_drawn_by_is_refused_at_once(run):
    for words, wrong in (
        (("-n", "0"), "count must be"),
        (("--top-p", "2"), "top_p must be"),
        (("--seed", "-1"), "seed"),
    ):
        found = asked(run, "Say a.\n", *words)
        assert wrong in str(found.exception)
        assert found.output == ""


def test_a_blank_lets_be_said_what_is_no_command(run):
    assert asked(run, " /quit now\n").exit_code == 0
    assert "seed would have no effect" in str(asked(run, "", "--temperature", "0", "--seed", "3").exception)


def test_ctrl_c_ends_the_answer_and_not_the_program(run, monkeypatch):
    steps, step = list[int](), Decoder.step

    def pressed(self, token):
        steps.append(token)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, token)

    monkeypatch.setattr(Decoder, "step", pressed)
    before = signal.getsignal(signal.SIGINT)
    found = asked(run, "Say a.\nSay b.\n", "--json", "-n", "12")
    said = [json.loads(line) for line in found.output.splitlines()]
    assert (said[0]["ended"], said[1]["user"]) == ("stopped", "Say b.")
    assert said[0]["tokens"] < 12
    assert said[1]["ended"] != "stopped"
    assert signal.getsignal(signal.SIGINT) is before


def test_at_the_prompt_ctrl_c_takes_a_line_back_and_ctrl_d_leaves(monkeypatch):
    typed = iter(["first", KeyboardInterrupt(), "second", EOFError()])

    def typing(prompt):
        given = next(typed)
        if isinstance(given, BaseException):
            raise given
        return given

    monkeypatch.setattr("builtins.input", typing)
    assert list(command._typed_lines()) == ["first", "second"]


def test_where_people_type_a_refusal_is_said_and_it_goes_on(run, monkeypatch):
    monkeypatch.setattr(command, "_typed", lambda: True)
    typed = iter(["/quit", "x" * 200, "Say a."])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed, None) or (_ for _ in ()).throw(EOFError()))
    found = asked(run, "")
    assert "there is no /quit" in found.output
    assert "say less" in found.output
    assert found.exit_code == 0


def test_a_template_that_refuses_says_so_at_once(run, tmp_path):
    kept = json.loads((run / FILE).read_text())
    (run / FILE).write_text(json.dumps(kept | {"template": "{{ raise_exception('no') }}", "own": True}))
    try:
        found = asked(run, "Say a.\n")
    finally:
        (run / FILE).write_text(json.dumps(kept))
    assert isinstance(found.exception, TapelessError)
    assert "the model's chat template does not take this conversation: no" in str(found.exception)
