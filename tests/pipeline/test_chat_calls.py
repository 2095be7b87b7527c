"""Tool calls: three formats read, what is malformed, and the models' own templates as oracles."""

import json
from importlib.resources import files

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.chat.calls import MAX_DEPTH, MalformedCall, is_quoted, normalise_calls, read_calls
from pipeline.chat.parse import parse_turn
from tests.tiny_models import CHATML_TOKENS, byte_tokenizer, glm_tokenizer

TEMPLATES = {"hermes": "qwen3", "qwen3_coder": "qwen3_5_think"}
TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<parameter=")
FORMATS = ("glm45", "hermes", "qwen3_coder")


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def functions(calls):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def glm(name, *pairs):
    body = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{body}</tool_call>"


def coder(name, *pairs):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def hermes(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


@pytest.fixture(scope="module")
def tokenizers():
    folder = files("trl").joinpath("chat_templates")
    read = {form: folder.joinpath(f"{name}.jinja").read_text(encoding="utf-8") for form, name in TEMPLATES.items()}
    return {"glm45": glm_tokenizer()} | {form: byte_tokenizer(CHATML_TOKENS, text) for form, text in read.items()}


# --- what is read


@pytest.mark.parametrize(
    ("call_format", "text"),
    [
        ("glm45", glm("add", ("a", "1"), ("note", "two\nlines"))),
        ("glm45", "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>"
                  "<arg_key>note</arg_key><arg_value>two\nlines</arg_value></tool_call>"),
        ("hermes", hermes("add", {"a": 1, "note": "two\nlines"})),
        ("hermes", hermes("add", '{"a": 1, "note": "two\\nlines"}').replace("\n", "")),
        ("qwen3_coder", coder("add", ("a", "1"), ("note", "two\nlines"))),
        ("qwen3_coder", "<tool_call><function=add><parameter=a>1</parameter>"
                        "<parameter=note>two\nlines</parameter></function></tool_call>"),
    ],
)  # fmt: skip
def test_a_call_is_read_with_and_without_the_template_s_line_ends(call_format, text):
    calls, content = read_calls(f"Let me add.\n{text}", call_format)
    assert functions(calls) == [("add", {"a": 1, "note": "two\nlines"})]
    assert content == "Let me add."


@pytest.mark.parametrize(
    ("call_format", "one", "two"),
    [
        ("glm45", glm("now"), glm("at", ("place", "Oslo"))),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', hermes("at", {"place": "Oslo"})),
        ("qwen3_coder", coder("now"), coder("at", ("place", "Oslo"))),
    ],
)
def test_several_calls_keep_their_order_and_the_text_around_them(call_format, one, two):
    calls, content = read_calls(f"First. {one}\nThen.\n{two} Last.", call_format)
    assert functions(calls) == [("now", {}), ("at", {"place": "Oslo"})]
    assert content == "First.\nThen.\nLast."


def test_ids_are_the_same_each_time_and_differ_within_a_turn():
    text = glm("now") + glm("now")
    once, again = read_calls(text, "glm45")[0], read_calls(text, "glm45")[0]
    assert once == again
    assert len({call["id"] for call in once}) == 2
    assert {call["type"] for call in once} == {"function"}


def test_a_value_may_hold_the_tags_that_close_a_call():
    values = {"text": 'say </tool_call> and <tool_call> and "}', "more": [{"deep": "</tool_call>"}]}
    assert functions(read_calls(hermes("f", values), "hermes")[0]) == [("f", values)]
    assert functions(read_calls(glm("f", ("a", "x </tool_call> y")), "glm45")[0]) == [("f", {"a": "x </tool_call> y"})]
    assert functions(read_calls(coder("f", ("a", "</function>\n</tool_call>")), "qwen3_coder")[0]) == [
        ("f", {"a": "</function>\n</tool_call>"})
    ]


@pytest.mark.parametrize("call_format", FORMATS)
def test_a_mention_in_quotes_or_backticks_is_text(call_format):
    whole = hermes("f", {}) if call_format == "hermes" else glm("f") if call_format == "glm45" else coder("f")
    for text in ("I write `<tool_call>` first.", 'It ends with "</tool_call>".', f"Such as `{whole}` here."):
        assert read_calls(text, call_format) == ([], text)


def test_text_without_calls_is_left_as_it_is():
    assert read_calls("a < b > c", "glm45") == ([], "a < b > c")


# --- what a value is


INT, STR, ANY = {"type": "integer"}, {"type": "string"}, {}
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STR, "12", "12"),
        (STR, '{"a": 1}', '{"a": 1}'),
        (STR, " padded\n", " padded\n"),
        (INT, "12", 12),
        (INT, " 12 ", 12),
        ({"type": "array", "items": INT}, "[1, 2]", [1, 2]),
        ({"type": ["integer", "string"]}, "12", 12),
        ({"type": ["integer", "string"]}, "twelve", "twelve"),
        ({"type": ["number", "string"]}, "12", 12),
        (OPTIONAL, "null", None),
        (OPTIONAL, "12", "12"),
        (OPTIONAL, '"quoted"', '"quoted"'),
        ({"type": "string", "nullable": True}, "null", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"$ref": "#/$defs/size"}, "12", "12"),
        ({"$ref": "#/$defs/missing"}, "12", 12),
        ({"$ref": "#/$defs/itself"}, "12", 12),
        (ANY, "12", 12),
        (ANY, "12\n", "12\n"),
        (ANY, '"12"', '"12"'),
        (ANY, "true", True),
        (ANY, "True", "True"),
        (ANY, "NaN", "NaN"),
        (ANY, "1e999", "1e999"),
        (ANY, "007", "007"),
        (ANY, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (ANY, "", ""),
    ],
)
def test_a_glm_value_has_the_type_that_the_schema_allows(schema, text, value):
    offered = tool("f", a=schema)
    offered["function"]["parameters"]["$defs"] = {"size": STR, "itself": {"$ref": "#/$defs/itself"}}
    for tools in ([offered], [offered["function"]]):
        calls, _ = read_calls(glm("f", ("a", text)), "glm45", tools)
        assert functions(calls) == [("f", {"a": value})]
        assert type(functions(calls)[0][1]["a"]) is type(value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        (OPTIONAL, "None", None),
        (ANY, "None", None),
        (STR, "None", "None"),
        (STR, "\n\nkept\n\n", "\n\nkept\n\n"),
    ],
)
def test_a_qwen_coder_value_may_be_spelled_as_in_python(schema, text, value):
    calls, _ = read_calls(coder("f", ("a", text)), "qwen3_coder", [tool("f", a=schema)])
    assert functions(calls) == [("f", {"a": value})]


@pytest.mark.parametrize("parameters", [None, [], {"properties": []}, {"properties": {"a": "integer"}}, {}])
def test_a_schema_of_another_shape_says_nothing(parameters):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}, "junk", {"function": 1}]
    assert functions(read_calls(glm("f", ("a", "1")), "glm45", tools)[0]) == [("f", {"a": 1})]


@pytest.mark.parametrize("schema", [{"enum": 5}, {"type": 5}, {"type": [5]}, {"anyOf": 5}, {"anyOf": [5]}, {"$ref": 5}])
def test_a_schema_that_is_none_says_nothing(schema):
    assert functions(read_calls(glm("f", ("a", "1")), "glm45", [tool("f", a=schema)])[0]) == [("f", {"a": 1})]


# --- what is malformed


@pytest.mark.parametrize(
    ("call_format", "text"),
    [
        ("glm45", "<tool_call>f"),
        ("glm45", "<tool_call></tool_call>"),
        ("glm45", "<tool_call>two words</tool_call>"),
        ("glm45", "<tool_call>\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a\n<arg_value>1</arg_value>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_value>1</arg_value>\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1\n</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</tool_call>" + glm("g", ("a", "2"))),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value> and</tool_call>"),
        ("glm45", "<tool_call>f\n<arg_key></arg_key>\n<arg_value>1</arg_value></tool_call>"),
        ("glm45", glm("f", ("a", "1"), ("a", "2"))),
        ("glm45", "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>"),
        ("glm45", "f\n</tool_call>"),
        ("glm45", glm("f", ("a", "\ud800"))),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1, "a": 2}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1e999}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "\\ud800"}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}, "note": 1}\n</tool_call>'),
        ("hermes", '<tool_call>\n[{"name": "f", "arguments": {}}]\n</tool_call>'),
        ("hermes", "<tool_call>\nf(a=1)\n</tool_call>"),
        ("hermes", "</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n"),
        ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=f\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n</function>"),
        ("qwen3_coder", "<function=f>\n</function>\n"),
        ("qwen3_coder", coder("f", ("a", "1"), ("a", "1"))),
        ("qwen3_coder", hermes("f", {})),
    ],
)
def test_a_broken_call_is_malformed_and_its_text_is_kept(call_format, text):
    turn = f"I call.\n{text}"
    with pytest.raises(MalformedCall):
        read_calls(turn, call_format)
    assert parse_turn(turn, "stop", call_format=call_format) == (
        [{"role": "assistant", "content": turn.strip()}],
        "malformed_call",
    )


def test_one_broken_call_among_good_ones_makes_the_turn_malformed():
    turn = glm("now") + "\n<tool_call>"
    messages, outcome = parse_turn(turn, "stop", call_format="glm45")
    assert (messages[0]["content"], outcome) == (turn, "malformed_call")
    assert "tool_calls" not in messages[0]


@pytest.mark.parametrize("call_format", FORMATS)
def test_a_tool_that_was_not_offered_is_malformed(call_format):
    text = {"glm45": glm("g"), "hermes": hermes("g", {}), "qwen3_coder": coder("g")}[call_format]
    assert parse_turn(text, "stop", call_format=call_format, tools=[tool("f")])[1] == "malformed_call"
    assert parse_turn(text, "stop", call_format=call_format, tools=[tool("g")])[1] == "complete"
    assert parse_turn(text, "stop", call_format=call_format, tools=[])[1] == "complete"


def test_a_value_that_its_schema_forbids_to_be_text_must_be_json():
    with pytest.raises(MalformedCall):
        read_calls(glm("f", ("a", "twelve")), "glm45", [tool("f", a=INT)])


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 200_000])
def test_arguments_nested_too_deep_are_malformed(depth):
    value = "[" * depth + "]" * depth
    with pytest.raises(MalformedCall):
        read_calls(f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>', "hermes")


# --- what a server returns


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        (' {"a": 1}\n', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("", {}),
        ("null", {}),
    ],
)
def test_a_server_s_arguments_become_a_mapping(given, arguments):
    calls = [{"id": "chatcmpl-1", "type": "function", "function": {"name": "f", "arguments": given}}]
    messages, outcome = parse_turn("", "tool_calls", tool_calls=calls)
    assert outcome == "complete"
    assert messages == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "chatcmpl-1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            ],
        }
    ]  # fmt: skip


def test_a_server_s_ids_are_kept_unless_missing_or_used_twice():
    given = [
        {"id": "x", "name": "f"},
        {"id": "x", "name": "f"},
        {"name": "f", "arguments": "{}"},
        {"id": 7, "name": "f"},
    ]
    ids = [call["id"] for call in normalise_calls(given)]
    assert ids[0] == "x"
    assert len(set(ids)) == 4
    assert ids == [call["id"] for call in normalise_calls(given)]


@pytest.mark.parametrize(
    "given",
    [
        ["f"],
        [{"function": "f"}],
        [{"function": {"arguments": "{}"}}],
        [{"function": {"name": "f", "arguments": "{"}}],
        [{"function": {"name": "f", "arguments": "{} {}"}}],
        [{"function": {"name": "f", "arguments": "[1]"}}],
        [{"function": {"name": "f", "arguments": '"{}"'}}],
        [{"function": {"name": "f", "arguments": 7}}],
        [{"function": {"name": "f", "arguments": {"a": float("nan")}}}],
        [{"function": {"name": "f", "arguments": {7: "a"}}}],
    ],
)
def test_a_server_s_broken_call_is_malformed_and_kept_as_text(given):
    messages, outcome = parse_turn("Look.", "tool_calls", reasoning="why", tool_calls=given)
    assert outcome == "malformed_call"
    assert messages[0]["content"] == "Look.\n" + json.dumps(given)
    assert messages[0]["reasoning_content"] == "why"
    assert "tool_calls" not in messages[0]


def test_calls_both_in_the_text_and_beside_it_are_malformed():
    given = [{"function": {"name": "now", "arguments": "{}"}}]
    assert parse_turn(glm("now"), "stop", call_format="glm45", tool_calls=given)[1] == "malformed_call"
    assert parse_turn("Now.", "stop", call_format="glm45", tool_calls=given)[1] == "complete"
    assert parse_turn(glm("now"), "stop", call_format="glm45", tool_calls=[])[1] == "complete"


# --- laws


def scalars():
    return st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts()


def texts():
    looks_like_json = st.sampled_from(["12", "null", "true", "None", '{"a": 1}', '"x"', "[1]", " 1", "\n", "\n1\n", ""])
    return (
        st.text()
        | looks_like_json
        | st.sampled_from([*TAGS, "</parameter>", "```\n", "`<think>`", "</think>", "é\u2028"])
    )


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z_$]([A-Za-z0-9_ .-]{0,8}[a-z])?", fullmatch=True)
VALUES = st.recursive(
    scalars(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=3)
PROSE = st.text(st.characters(exclude_characters='<`"', exclude_categories=["Cs"])).map(str.strip)
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def offered(calls):
    """Tools whose schema is of the calls' own types; a name called twice must have one schema."""
    assume(len({name for name, _ in calls}) == len(calls))
    return [tool(n, **{k: {"type": JSON_TYPES.get(type(v), "null")} for k, v in a.items()}) for n, a in calls]


def fits_xml(calls):
    """Whether the values can be told from markup: no escape exists in these formats."""
    values = [v if isinstance(v, str) else json.dumps(v) for _, arguments in calls for v in arguments.values()]
    return not any(tag in value for value in values for tag in (*TAGS[2:], "</parameter>"))


def turn_of(tokenizer, message, tools):
    """What the template writes after its generation prompt: the text that the model is taught."""
    asked = [{"role": "user", "content": "Do."}]
    prompt = tokenizer.apply_chat_template(asked, tools=tools, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([*asked, message], tools=tools, tokenize=False)
    assert whole.startswith(prompt)
    return whole[len(prompt) :]


def message_of(reasoning, content, calls):
    nested = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return {"role": "assistant", "reasoning_content": reasoning, "content": content, "tool_calls": nested}


@pytest.mark.parametrize("call_format", FORMATS)
@given(calls=CALLS, content=PROSE, reasoning=PROSE.filter(bool))
def test_what_a_template_writes_reads_back_as_it_was(tokenizers, call_format, calls, content, reasoning):
    tools = offered(calls)
    assume(call_format == "hermes" or fits_xml(calls))
    turn = turn_of(tokenizers[call_format], message_of(reasoning, content, calls), tools)
    markers = ("<|im_end|>\n", "<|user|>")
    messages, outcome = parse_turn(turn, "stop", thinking=True, markers=markers, call_format=call_format, tools=tools)
    assert outcome == "complete"
    assert functions(messages[0]["tool_calls"]) == calls
    assert messages[0]["content"] == content
    assert messages[0]["reasoning_content"] == reasoning
    again = {**messages[0], "tool_calls": messages[0]["tool_calls"]}
    assert turn_of(tokenizers[call_format], again, tools) == turn


@given(calls=CALLS)
def test_without_a_schema_only_text_that_is_json_changes_its_type(calls):
    assume(fits_xml(calls))
    text = "".join(glm(n, *((k, v if isinstance(v, str) else json.dumps(v)) for k, v in a.items())) for n, a in calls)
    for (_, arguments), (_, found) in zip(calls, functions(read_calls(text, "glm45")[0]), strict=True):
        for key, value in arguments.items():
            assert found[key] == value or (isinstance(value, str) and json.loads(value) == found[key])


SIMPLE = st.text(st.characters(categories=["L", "N"]), min_size=1).map(lambda text: "x" + text) | st.integers()
SIMPLE_CALLS = st.lists(st.tuples(NAMES, st.dictionaries(KEYS, SIMPLE, max_size=3)), max_size=3)
PLAIN = st.text(st.characters(categories=["L", "N"]), min_size=1)


@pytest.mark.parametrize("call_format", FORMATS)
@given(calls=SIMPLE_CALLS, content=PLAIN, reasoning=PLAIN)
def test_plain_turns_are_read_as_transformers_reads_them(tokenizers, call_format, calls, content, reasoning):
    from transformers.utils.chat_parsing import parse_response
    from trl import chat_template_utils

    name = {"glm45": "glm4moe", "hermes": "qwen3", "qwen3_coder": "qwen3_5"}[call_format]
    tools = offered(calls)
    message = message_of(reasoning, content, calls)
    turn = turn_of(tokenizers[call_format], message if calls else {**message, "tool_calls": None}, tools or None)
    whole = turn if turn.lstrip().startswith("<think>") else "<think>" + turn
    theirs = parse_response(whole, getattr(chat_template_utils, f"{name}_template"), prefix="", tools=tools)
    ours = parse_turn(whole, "stop", markers=["<|im_end|>\n"], call_format=call_format, tools=tools)[0][0]
    assert functions(ours.get("tool_calls", [])) == functions(theirs.get("tool_calls", []))
    assert ours["content"] == theirs["content"].strip() == content
    assert ours["reasoning_content"] == theirs["reasoning_content"].strip() == reasoning


BITS = st.sampled_from([
    *TAGS, "</parameter>", "<function=", "<function=f>", "</function>", ">", "f", "{", "}", '"', ":", ",", "[", "1",
    '{"name": "f", "arguments": {}}', "\n", " ", "`", "'", "<think>", "</think>", "é", "\ud800", "```\n", "<|user|>",
])  # fmt: skip


@given(
    text=st.text() | st.lists(BITS, max_size=40).map("".join),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "prompt_too_long", ""]),
    reasoning=st.none() | st.lists(BITS, max_size=10).map("".join),
    thinking=st.booleans(),
    call_format=st.sampled_from([None, *FORMATS]),
    tools=st.sampled_from([None, [], [tool("f")], [tool("f", f=INT)]]),
    tool_calls=st.none() | st.lists(st.sampled_from([None, "f", {"name": "f"}, {"name": "f", "arguments": "{"}])),
)
def test_no_text_makes_the_parser_raise(text, finish_reason, **options):
    messages, outcome = parse_turn(text, finish_reason, markers=["<|user|>", "</tool_call>"], **options)
    assert bool(messages) == (outcome != "prompt_too_long")
    for message in messages:
        assert isinstance(message["content"], str)
        assert "tool_calls" not in message or message["tool_calls"]
        assert outcome != "complete" or message["content"] or message["tool_calls"]


@pytest.mark.parametrize("call_format", FORMATS)
@given(pieces=st.lists(BITS, max_size=30), thinking=st.booleans())
def test_no_word_of_a_turn_is_lost(call_format, pieces, thinking):
    words = [f"w{index}w" for index in range(len(pieces))]
    text = "".join(piece + word for piece, word in zip(pieces, words, strict=True))
    said = json.dumps(parse_turn(text, "stop", thinking=thinking, call_format=call_format)[0])
    assert [word for word in words if word not in said] == []


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("call_format", "unit"),
    [
        ("glm45", "<tool_call>"), ("glm45", "`<tool_call>`"), ("glm45", "<tool_call>f<arg_key>"), ("glm45", "\n"),
        ("glm45", "<tool_call>f\n<arg_key>a</arg_key>"), ("glm45", "`<tool_call>f</tool_call>`"),
        ("hermes", "<tool_call>{"), ("hermes", '"<tool_call>x'), ("hermes", '<tool_call>{"a":"'), ("hermes", "[{"),
        ("qwen3_coder", "<tool_call>\n<function=f>"), ("qwen3_coder", "<parameter="), ("qwen3_coder", "<function=f"),
    ],
)  # fmt: skip
def test_a_megabyte_of_broken_calls_is_kept_whole(call_format, unit):
    text = "I call. " + unit * (MEGABYTE // len(unit)) + "."
    for turn in (f"<tool_call>{text}", f"<think>{text}</think>{text}"):
        messages, outcome = parse_turn(turn, "stop", call_format=call_format)
        said = messages[0].get("reasoning_content", "") + messages[0]["content"]
        assert outcome in ("complete", "malformed_call")
        assert len(said) >= len(turn) - len("<think></think>")


def test_a_megabyte_of_calls_is_read_in_full():
    one = glm("f", ("a", "1"))
    calls, content = read_calls((one + "\n") * (MEGABYTE // len(one)), "glm45")
    assert len(calls) == MEGABYTE // len(one)
    assert content == ""


def test_quoted_means_directly_between_a_pair():
    assert is_quoted("«a»", 1, 2)
    assert not is_quoted("a", 0, 1)
    assert not is_quoted("`a", 1, 2)
    assert not is_quoted("“a“", 1, 2)
