"""Answer, reasoning and tool calls, whatever the places where the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgemma.channels import Channels
from dgemma.toolcalls import ToolCall, parse_call

CALL = 'call:find{city:<|"|>Zürich, {x}<|"|>,days:3,deep:{list:[1,<|"|>a<|"|>],on:true},none:null}'
TEXT = f"<|channel>thought\nHm, < and <| and a\nline.<channel|>Answer 1 < 2.<|tool_call>{CALL}<tool_call|> Done<"
ARGUMENTS = {"city": "Zürich, {x}", "days": 3, "deep": {"list": [1, "a"], "on": True}, "none": None}


def collect(parts: list[str], prompt: str = "") -> tuple[str, str, list[ToolCall]]:
    channels = Channels(prompt)
    pieces = [piece for part in parts for piece in channels.push(part)] + channels.flush()
    texts = {kind: "".join(piece.text for piece in pieces if piece.kind == kind) for kind in ("answer", "reasoning")}
    return texts["answer"], texts["reasoning"], [piece.call for piece in pieces if piece.call]


def split(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_random_cuts(cuts: list[int]) -> None:
    answer, reasoning, calls = collect(split(TEXT, cuts))
    assert answer == "Answer 1 < 2. Done<"
    assert reasoning == "Hm, < and <| and a\nline."
    assert calls == [ToolCall("find", ARGUMENTS, CALL)]


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "thought\n", "a", "<", "|"]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_cuts_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert collect(split(text, cuts)) == collect([text])
    answer, reasoning, _ = collect([text])
    for marker in ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"):
        assert marker not in answer + "\0" + reasoning


def test_plain_text_is_not_delayed() -> None:
    channels = Channels()
    assert [piece.text for piece in channels.push("Hello")] == ["Hello"]
    assert channels.push("<|chan") == []
    assert [piece.text for piece in channels.push("ge")] == ["<|change"]


def test_prompt_may_leave_a_channel_open() -> None:
    opened = "<bos><|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\n"
    assert collect(["deep", "<channel|>yes"], opened) == ("yes", "deep", [])
    assert collect(["thought\ndeep<channel|>yes"], opened.removesuffix("thought\n")) == ("yes", "deep", [])
    assert collect(["yes"], opened + "<channel|>") == ("yes", "", [])
    assert collect(["yes"], "<bos><|turn>user\n<|channel>thought\n<turn|>\n<|turn>model\n<") == ("yes", "", [])


def test_unfinished_reasoning_stays_reasoning() -> None:
    assert collect(["<|channel>thought\nstill think", "ing"]) == ("", "still thinking", [])
    assert collect(["<|channel>thou"]) == ("", "", [])


def test_tool_call_inside_reasoning() -> None:
    answer, reasoning, calls = collect(["<|channel>thought\na<|tool_call>call:f{}<tool_call|>b<channel|>c"])
    assert (answer, reasoning, calls) == ("c", "ab", [ToolCall("f", {}, "call:f{}")])


def test_open_tool_call_is_kept_raw() -> None:
    assert collect(["x<|tool_call>call:f{a:"]) == ("x", "", [ToolCall(None, None, "call:f{a:")])


@pytest.mark.parametrize(
    "raw",
    ["", "f{}", "call:f", "call:f{", "call:f{a}", "call:f{a:}", 'call:f{a:<|"|>x}', "call:f{} x", "call:f{a:[1 2]"],
)
def test_unparsable_calls_are_kept_raw(raw: str) -> None:
    call = parse_call(raw)
    assert call.as_dict() == {"raw": raw}


def test_call_syntax() -> None:
    call = parse_call('call:a.b-c { "x" : "q\\"uote" , y:-1.5,z:word with spaces, <|"|>k y<|"|>:[] }')
    assert call.as_dict() == {
        "name": "a.b-c",
        "arguments": {"x": 'q"uote', "y": -1.5, "z": "word with spaces", "k y": []},
    }


def test_deep_nesting_is_kept_raw() -> None:
    raw = "call:f{a:" + "[" * 100_000
    assert parse_call(raw).name is None
