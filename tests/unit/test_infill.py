"""Filling and editing on a fake backend: what is pinned stays, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgemma import infill
from dgemma.backend import DenoiseJob, Prediction
from dgemma.config import GenerationDefaults
from dgemma.errors import UsageError
from dgemma.events import Block, Draft
from dgemma.generation import Origin
from dgemma.holes import Hole, Part, lay_out, parse, unknown
from dgemma.settings import Settings
from dgemma.tokenizer import Tokenizer
from tests.unit.fake_backend import FakeBackend, FakeContext, Script, predict
from tiny_folder import generation_dict, make_tokenizer

CANVAS = 8
TOKENIZER = Tokenizer.of(make_tokenizer(), (1, 106, 50))


class Model:
    tokenizer = TOKENIZER
    defaults = GenerationDefaults.from_dict(generation_dict())
    origin = Origin("fake", None, "fake", "none")

    def __init__(self, script: Script | None = None) -> None:
        self.backend = FakeBackend(script, vocab_size=256, max_position_embeddings=512, canvas_length=CANVAS)
        self.prompts: list[str] = []

    def prompt_text(self, prompt: str, settings: Settings) -> str:
        self.prompts.append(prompt)
        return "<bos>" + prompt


def fill(model: Model, text: str, lengths: Iterable[int] | None = None, **changes: Any) -> infill.Filled:
    return infill.fill(model, text, "go", lengths, Settings(seed=1, **changes))


literal = st.text(st.sampled_from("abc \n{\"}/'é€<\r\t"), max_size=20)
hole = st.integers(1, 12)


@settings(max_examples=40)
@given(literal, st.lists(st.tuples(hole, literal), min_size=1, max_size=4), st.integers(3, 9))
def test_what_is_pinned_is_never_altered(first: str, rest: list[tuple[int, str]], canvas: int) -> None:
    model = Model()
    text = first + "".join(f"<fill:{length}>{behind}" for length, behind in rest)
    found = fill(model, text, canvas_length=canvas)
    assert [len(tokens) for tokens in found.tokens] == [length for length, _ in rest]
    assert found.fills == tuple(TOKENIZER.decode(tokens) for tokens in found.tokens)
    assert found.text == first + "".join(new + behind for new, (_, behind) in zip(found.fills, rest, strict=True))
    assert all(context.closed for context in model.backend.contexts)


@settings(max_examples=25)
@given(literal, st.lists(st.tuples(hole, literal), min_size=1, max_size=3))
def test_every_step_sees_the_pins(first: str, rest: list[tuple[int, str]]) -> None:
    text = first + "".join(f"<fill:{length}>{behind}" for length, behind in rest)
    layout = lay_out(parse(text), TOKENIZER.encode)
    start = len(TOKENIZER.encode("<bos>go"))

    def script(owner: FakeContext, job: DenoiseJob) -> Prediction:
        base = (owner.canvases - 1) * CANVAS
        assert owner.tokens[start:] == [seen.get(place, 7) for place in range(len(owner.tokens) - start)]
        for place, token in layout.pins.items():
            if base <= place < base + CANVAS:
                assert job.tokens[place - base] == token
        ids = np.full(job.tokens.shape, 7, np.int32)
        return predict(ids)

    seen = layout.pins
    fill(Model(script), text)


def test_canvases_behind_the_last_hole_are_not_computed() -> None:
    model = Model()
    fill(model, "ab<fill:2>" + "c" * 40)
    assert sum(isinstance(job, DenoiseJob) for jobs in model.backend.passes for job in jobs) <= 8
    assert len(model.backend.contexts[0].tokens) == len("<bos>go") - 4
    model = Model()
    fill(model, "c" * 3 * CANVAS + "<fill:2>")
    assert model.backend.contexts[0].canvases == 4 and len(model.backend.contexts[0].tokens) == 3 + 3 * CANVAS


def test_the_end_of_the_turn_stands_behind_the_text() -> None:
    model = Model()
    fill(model, "a<fill:2>b")
    assert model.backend.passes[1][0].tokens[4] == 106
    model = Model()
    fill(model, "a<fill:2>b", raw=True)
    assert model.backend.passes[1][0].tokens[4] != 106 and model.prompts == [""]


def sure_at(wanted: Sequence[int]) -> Script:
    """Writes x everywhere, certain only where the closing bracket stands behind one of `wanted` tokens."""

    def answer(owner: FakeContext, job: DenoiseJob) -> Prediction:
        ids = np.full(job.tokens.shape, TOKENIZER.encode("x")[0], np.int32)
        sure = any(job.tokens[1 + length] == TOKENIZER.encode(")")[0] for length in wanted)
        return predict(ids, entropy=0.0 if sure else 1.0)

    return answer


@pytest.mark.parametrize("length", [1, 3, 6])
def test_the_most_certain_length_wins(length: int) -> None:
    found = fill(Model(sure_at([length])), "(<fill>)", lengths=range(1, 7))
    assert found.text == f"({'x' * length})" and found.entropy == 0.0


def keeping_at(length: int) -> Script:
    """Always certain; it would write x everywhere, but keeps what is given where the gap has `length` tokens."""

    def answer(owner: FakeContext, job: DenoiseJob) -> Prediction:
        [x], [bracket] = TOKENIZER.encode("x"), TOKENIZER.encode(")")
        ids = np.full(job.tokens.shape, x, np.int32)
        if job.tokens[1 + length] == bracket:
            ids = job.tokens.copy()
            ids[1 : 1 + length] = x
        return predict(ids)

    return answer


@pytest.mark.parametrize("length", [1, 2, 4])
def test_the_length_at_which_the_text_around_is_kept_wins(length: int) -> None:
    assert fill(Model(keeping_at(length)), "(<fill>)ab", lengths=range(1, 5)).text == f"({'x' * length})ab"


def test_lengths_are_found_from_left_to_right() -> None:
    model = Model(sure_at([2]))
    found = fill(model, "(<fill>)<fill:1><fill>", lengths=(1, 2))
    assert found.fills[0] == "xx" and len(found.fills[1]) == 1 and len(found.fills[2]) in (1, 2)
    assert len(model.backend.contexts) == 4


def test_parts() -> None:
    assert parse("a<fill>b<fill:3>") == ("a", Hole(), "b", Hole(3))
    assert unknown(parse("<fill><fill:2><fill>")) == [0, 2]
    parts: tuple[Part, ...] = ("ab", Hole(2), "c")
    layout = lay_out(parts, lambda text: [ord(each) for each in text])
    assert layout.pins == {0: 97, 1: 98, 4: 99} and layout.holes == (range(2, 4),) and layout.size == 5
    assert layout.cut(4).pins == {0: 97, 1: 98} and layout.cut(4).size == 4 and layout.cut(8) == layout
    assert layout.closed(0).pins[5] == 0 and layout.closed(0).size == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plain", "nothing to fill"),
        ("", "nothing to fill"),
        ("<FILL> <fill > fill:3 </fill>", "nothing to fill"),
        ("a<fill:0>", "no token"),
        ("<fill:1>\n<fill:x>", r"<fill:x> in line 2 is no gap"),
        ("<fill:-1>", "is no gap"),
        ("<fill:>", "is no gap"),
        ("<fill: 3>", "is no gap"),
        ("<fill:3", "is no gap"),
        ("<fill:3 >", "is no gap"),
        ("<fill:<fill>>", "is no gap"),
        ("<fill:\u0663>", "is no gap"),
        (f"<fill:{'9' * 5000}>", "is no gap"),
        ("<fill:999999>", "positions; the model has 512"),
        ("<fill:999999999>", "positions; the model has 512"),
    ],
)
def test_what_cannot_be_filled_is_an_error(text: str, words: str) -> None:
    model = Model()
    with pytest.raises(UsageError, match=words):
        fill(model, text)
    assert model.backend.passes == []


def test_marks_that_are_none_stay() -> None:
    assert fill(Model(), "<fill <fill:1> <<fill:1>> <b>").text.startswith("<fill ")


def test_special_tokens_spelled_in_a_text_stay() -> None:
    found = fill(Model(), "<|turn>a<turn|><fill:2><bos>")
    assert found.text == f"<|turn>a<turn|>{found.fills[0]}<bos>"


def test_what_cannot_be_filled_is_refused_before_anything_is_computed() -> None:
    model = Model()
    with pytest.raises(UsageError, match="512"):
        fill(model, "a" * 600 + "<fill:1>")
    with pytest.raises(UsageError, match="pinned"):
        fill(model, "<fill:1>", mode="ar")
    for lengths, words in ([0], "at least 1"), (range(1, 10**9), "At most 64"), (iter(()), "at least 1"):
        with pytest.raises(UsageError, match=words):
            fill(model, "<fill>", lengths=lengths)
    assert model.backend.passes == []


TEXT = "one\r\ntwo\r\nthree\r\nfour"


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ((1, 1), ("", "one", "\r\ntwo\r\nthree\r\nfour")),
        ((2, 3), ("one\r\n", "two\r\nthree", "\r\nfour")),
        ((4, 4), ("one\r\ntwo\r\nthree\r\n", "four", "")),
        ((1, 4), ("", TEXT, "")),
    ],
)
def test_spans(lines: tuple[int, int], parts: tuple[str, str, str]) -> None:
    assert infill.span_of(TEXT, lines) == parts
    assert infill.span_of("a\x0bb\u2028c\nd\n", (2, 2)) == ("a\x0bb\u2028c\n", "d", "\n")


@pytest.mark.parametrize(("lines", "words"), [((0, 1), "no span"), ((3, 2), "no span"), ((2, 5), "has 4 lines")])
def test_wrong_spans(lines: tuple[int, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        infill.span_of(TEXT, lines)


def test_an_edit_keeps_the_other_lines_and_a_warm_one_starts_from_the_old() -> None:
    model = Model()
    found = infill.edit(model, TEXT, (2, 2), "upper case", None, False, Settings(seed=1))
    before, behind = "one\r\n", "\r\nthree\r\nfour"
    assert found.text == before + found.fills[0] + behind
    assert "upper case" in model.prompts[0] and len(model.backend.contexts) == 3

    kept = Model(lambda owner, job: predict(job.tokens))
    found = infill.edit(kept, TEXT, (2, 2), None, None, True, Settings(seed=1))
    assert found.text == TEXT and found.stats.denoising_steps <= 2 * found.stats.canvases


@pytest.mark.parametrize("text", ["\n", "a\n\nb", "a\n\n"])
def test_an_empty_line_can_be_written_to(text: str) -> None:
    line = text.split("\n").index("") + 1
    for warm in (False, True):
        found = infill.edit(Model(), text, (line, line), None, None, warm, Settings(seed=1))
        before, _, behind = infill.span_of(text, (line, line))
        assert len(found.tokens[0]) == 1 and found.text == before + found.fills[0] + behind


def test_every_step_is_heard_of() -> None:
    heard: list[Draft | Block] = []
    found = infill.fill(Model(), "(<fill>)", "go", [1, 2], Settings(seed=1), heard.append)
    assert {event.handle for event in heard} == {0, 1}
    assert found.stats.denoising_steps in [
        sum(isinstance(event, Draft) and event.handle == handle for event in heard) for handle in (0, 1)
    ]
