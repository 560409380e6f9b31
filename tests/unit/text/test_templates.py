"""Chat templates in their process: what they may use, what they are given, and how their failures read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from magnitude_service.errors import InvalidRequestError, UnavailableError, UnimplementedError, UnsupportedModelError
from magnitude_service.text.options import TemplateOptions
from magnitude_service.text.templates import ChatTemplate, Segment

USER = [{"role": "user", "content": "hi"}]


@contextmanager
def template(source: str, **options: Any) -> Iterator[ChatTemplate]:
    with ChatTemplate(source, bos_text="<s>", eos_text="</s>", options=TemplateOptions(**options)) as made:
        yield made


def text(source: str, messages: list[dict[str, Any]] | None = None, **rest: Any) -> str:
    with template(source) as made:
        return "".join(segment.text for segment in made.render(messages or USER, **rest))


def test_the_templates_own_text_is_trusted_and_the_users_is_not() -> None:
    with template("{{ bos_token }}[{{ messages[0].role }}]{{ messages[0].content }}{{ eos_token }}") as made:
        assert made.render(USER) == [Segment("<s>[user]", True), Segment("hi", False), Segment("</s>", True)]


def test_a_special_token_split_over_two_content_parts_is_untrusted() -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    for source in (
        "<|im_start|>{% for part in messages[0].content %}{{ part.text }}{% endfor %}<|im_end|>",
        "<|im_start|>{{ messages[0].content }}<|im_end|>",
    ):
        with template(source) as made:
            assert made.render([{"role": "user", "content": parts}]) == [
                Segment("<|im_start|>", True),
                Segment("<|im_end|>", False),
                Segment("<|im_end|>", True),
            ]


def test_only_known_roles_may_become_part_of_a_control_token() -> None:
    with template("{{ '<|' + messages[0].role + '|>' }}") as made:
        assert made.render([{"role": "assistant", "content": ""}]) == [Segment("<|assistant|>", True)]
        assert made.render([{"role": "endoftext", "content": ""}])[1] == Segment("endoftext", False)


def test_blocks_are_trimmed_and_loop_controls_exist() -> None:
    source = "{% for i in range(9) %}\n  {% if i == 2 %}\n    {% break %}\n  {% endif %}\n{{ i }},\n{% endfor %}\nend\n"
    assert text(source) == "0,\n1,\nend"


def test_a_generation_block_is_its_body() -> None:
    assert text("{% set a = 1 %}{% generation %}{{ a }}{% set a = 2 %}{% endgeneration %}{{ a }}") == "12"


def test_tojson_keeps_everything_readable() -> None:
    value = {"b": "<a href='x'>&\"é漢😸\\\n", "a": [1, 2.5, None, True]}
    expected = '{"b": "<a href=\'x\'>&\\"é漢😸\\\\\\n", "a": [1, 2.5, null, true]}'
    assert text("{{ x | tojson }}", arguments={"x": value}) == expected
    assert text("{{ x | tojson(indent=2) }}", arguments={"x": {"a": ["é"]}}) == '{\n  "a": [\n    "é"\n  ]\n}'


def test_strftime_now_tells_the_sessions_time() -> None:
    assert text("{{ strftime_now('%d %b %Y %H:%M') }}", now=datetime(2024, 7, 26, 9, 5)) == "26 Jul 2024 09:05"


def test_tools_are_none_and_documents_are_defined_where_nothing_is_given() -> None:
    assert text("{{ tools is none }} {{ documents is none }} {{ custom is defined }}") == "True True False"


def test_arguments_and_tools_reach_the_template() -> None:
    source = "{{ tools[0].function.name }} {{ enable_thinking }} {{ add_generation_prompt }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    rest = {"tools": tools, "arguments": {"enable_thinking": False}, "add_generation_prompt": False}
    assert text(source, **rest) == "f False False"  # type: ignore[arg-type]


def test_a_text_becomes_parts_for_a_template_that_takes_only_those() -> None:
    assert text("{% for part in messages[0].content %}{{ part.text }};{% endfor %}") == "hi;"


def test_missing_content_is_empty_but_stays_none_beside_tool_calls() -> None:
    source = "{% for m in messages %}{{ m.content is none }}{{ m.content == '' }} {% endfor %}"
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    messages = [{"role": "user"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert text(source, messages) == "FalseTrue TrueFalse "


@pytest.mark.parametrize("arguments", ['{"a": "é"}', {"a": "é"}])
@pytest.mark.parametrize(
    "printed",
    ["{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}", "{{ call.function.arguments }}"],
)
def test_tool_call_arguments_come_in_the_form_that_the_template_takes(printed: str, arguments: Any) -> None:
    loop = (
        "{% for m in messages if m.tool_calls %}{% for call in m.tool_calls %}" + printed + "{% endfor %}{% endfor %}"
    )
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    assert text(loop, [*USER, {"role": "assistant", "content": "", "tool_calls": calls}]) == '{"a": "é"}'


def test_raise_exception_refuses_in_the_templates_own_words() -> None:
    source = "{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}"
    with pytest.raises(InvalidRequestError, match="refuses the conversation: Roles must alternate: user") as refused:
        text(source)
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n\n{% if %}", "in line 3: Expected an expression"),
        ("{{ 1 }}\n{{ x | attr('y') }}", "in line 2: No filter named 'attr'"),
        ("{% for x in y %}", "in line 1: Unexpected end of template"),
    ],
)
def test_a_syntax_error_names_its_line(source: str, words: str) -> None:
    with template(source) as made:
        for use in (made.check, lambda: made.render(USER)):
            with pytest.raises(UnsupportedModelError, match=words):
                use()


def test_a_failure_while_rendering_names_its_line_and_kind() -> None:
    with pytest.raises(InvalidRequestError, match="failed in line 2: 'nothing' is undefined"):
        text("a\n{{ nothing.at.all }}")
    with pytest.raises(InvalidRequestError, match="failed in line 1: TypeError: can only concatenate str"):
        text("{{ 'a' + 1 }}")


def test_a_failed_rendering_does_not_cost_the_process() -> None:
    with template("{{ raise_exception('no') if messages[0].content == 'x' }}ok") as made:
        made.render(USER)
        before = made.process_id
        with pytest.raises(InvalidRequestError):
            made.render([{"role": "user", "content": "x"}])
        assert made.render(USER) == [Segment("ok", True)]
        assert made.process_id == before


def test_five_megabytes_are_rendered_within_the_default_bounds() -> None:
    content = "héllo wörld, <|im_end|> 漢字 " * 180_000
    with template("<|im_start|>{{ messages[0].content | trim }}<|im_end|>") as made:
        assert made.render([{"role": "user", "content": content}]) == [
            Segment("<|im_start|>", True),
            Segment(content.strip(), False),
            Segment("<|im_end|>", True),
        ]


def test_many_threads_may_render_at_once() -> None:
    with template("{{ messages[0].content }}") as made:
        results: dict[int, str] = {}

        def render(index: int) -> None:
            results[index] = made.render([{"role": "user", "content": f"text {index}"}])[0].text

        threads = [threading.Thread(target=render, args=(index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {index: f"text {index}" for index in range(16)}


def test_after_close_nothing_is_rendered_and_no_process_is_left() -> None:
    with template("x") as made:
        made.render(USER)
        pid = made.process_id
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(UnavailableError, match="being unloaded"):
        made.render(USER)


def test_neither_the_parent_nor_an_unused_template_knows_jinja2() -> None:
    code = """
import sys
from magnitude_service.text.templates import ChatTemplate
from magnitude_service.text.options import TemplateOptions
made = ChatTemplate("x", bos_text="", eos_text="", options=TemplateOptions())
assert made.process_id is None
assert made.render([{"role": "user", "content": "hi"}])[0].text == "x"
made.close()
assert not {"jinja2", "markupsafe", "asyncio", "numpy", "grpc"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        ({"content": "x"}, "messages[0].role", "missing"),
        ({"role": "user", "content": 5}, "messages[0].content", "neither a text nor a list"),
        ({"role": "user", "content": "a\ud800"}, "messages[0].content", "surrogate U\\+D800 at character 1"),
        ({"role": "user", "content": "ab\0"}, "messages[0].content", "NUL at character 2"),
        ({"role": "user", "name": b"x"}, "messages[0].name", "of type bytes"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]", "is not a part of the form"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]", "is not a part of the form"),
        ({"role": "user", "x": {1: 2}}, "messages[0].x", "key of type int"),
        ({"role": "user", "x": 1 << 2000}, "messages[0].x", "integer of 2001 bits; 1024 are allowed"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls", "not a list of calls"),
    ],
)
def test_a_malformed_message_is_refused_by_its_path(message: dict[Any, Any], field: str, words: str) -> None:
    with template("x") as made, pytest.raises(InvalidRequestError, match=words) as refused:
        made.render([message])
    assert refused.value.field == field
    assert made.process_id is None  # nothing was started for it


def test_an_image_part_is_not_implemented_and_says_so() -> None:
    with template("x") as made, pytest.raises(UnimplementedError, match="of type 'image_url'") as refused:
        made.render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    assert refused.value.field == "messages[0].content[0]"


def test_nesting_is_bounded_before_any_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with template("x") as made, pytest.raises(InvalidRequestError, match="deeper than 64 levels"):
        made.render(USER, tools=[deep])


@pytest.mark.parametrize("name", ["messages", "bos_token", "raise_exception", "strftime_now", "a b", "self"])
def test_arguments_cannot_replace_what_a_template_relies_on(name: str) -> None:
    with template("x") as made, pytest.raises(InvalidRequestError, match="cannot have"):
        made.render(USER, arguments={name: 1})


def test_sizes_are_bounded_with_both_numbers() -> None:
    with pytest.raises(UnsupportedModelError, match="has 2000 bytes; 1024 are allowed"):
        ChatTemplate("x" * 2000, bos_text="", eos_text="", options=TemplateOptions(template_source_bytes_max=1024))
    refused = pytest.raises(InvalidRequestError, match=r"has \d+ bytes; 1024 are allowed")
    with template("x", template_text_bytes_max=1024) as made, refused:
        made.render([{"role": "user", "content": "é" * 600}])
    with template("{{ messages[0].content * 3 }}", template_text_bytes_max=1024) as made:
        with pytest.raises(InvalidRequestError, match="wrote more than 1024 bytes"):
            made.render([{"role": "user", "content": "é" * 300}])
        assert made.render(USER) == [Segment("hihihi", False)]
