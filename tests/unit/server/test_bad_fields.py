"""Every field out of its bounds is refused with its path, its value and its bound, before anything runs."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from magnitude.errors import InvalidRequest, Unimplemented, call_error
from magnitude.v1 import inference_pb2
from magnitude_service.server.served_models import Runtime

LONG = "x" * 2_000

BAD = [
    # field, request in text format, what the message must say
    ("sampling.temperature", "text: 'a' sampling { temperature: -1 }", "-1", "0 … 2"),
    ("sampling.temperature", "text: 'a' sampling { temperature: nan }", "nan", "0 … 2"),
    ("sampling.temperature", "text: 'a' sampling { temperature: 1e38 }", "1e+38", "0 … 2"),
    ("sampling.temperature", "text: 'a' sampling { temperature: 123456789 }", "123456792", "0 … 2"),
    ("sampling.temperature", "text: 'a' sampling { temperature: inf }", "inf", "0 … 2"),
    ("sampling.temperature", "text: 'a' sampling { temperature: 2.01 }", "2.01", "0 … 2"),
    ("sampling.top_k", "text: 'a' sampling { top_k: 1000001 }", "1000001", "0 … 1000000"),
    ("sampling.top_p", "text: 'a' sampling { top_p: 0 }", "0", "above 0, up to 1"),
    ("sampling.top_p", "text: 'a' sampling { top_p: 1.5 }", "1.5", "above 0, up to 1"),
    ("sampling.min_p", "text: 'a' sampling { min_p: -0.1 }", "-0.1", "0 … 1"),
    ("sampling.typical_p", "text: 'a' sampling { typical_p: nan }", "nan", "above 0, up to 1"),
    ("sampling.repetition_penalty", "text: 'a' sampling { repetition_penalty: 0 }", "0", "above 0, up to 10"),
    ("sampling.penalty_window", "text: 'a' sampling { penalty_window: 65537 }", "65537", "65536"),
    ("sampling.presence_penalty", "text: 'a' sampling { presence_penalty: 3 }", "3", "-2 … 2"),
    ("sampling.frequency_penalty", "text: 'a' sampling { frequency_penalty: -3 }", "-3", "-2 … 2"),
    ("sampling.logit_bias[300]", "text: 'a' sampling { logit_bias { key: 300 value: 1 } }", "300", "0 … 299"),
    ("sampling.logit_bias[5]", "text: 'a' sampling { logit_bias { key: 5 value: nan } }", "nan", "-100 … 100"),
    ("sampling.logit_bias[5]", "text: 'a' sampling { logit_bias { key: 5 value: -101 } }", "-101", "-100 … 100"),
    ("sampling.allowed_token_ids[1]", "text: 'a' sampling { allowed_token_ids: [1, 4294967295] }", "4294967295", "299"),
    ("sampling.n", "text: 'a' sampling { n: 0 }", "0", "1 … 16"),
    ("sampling.n", "text: 'a' sampling { n: 17 }", "17", "1 … 16"),
    ("stopping.min_tokens", "text: 'a' stopping { max_tokens: 2 min_tokens: 3 }", "3", "0 … 2"),
    ("stopping.stop_strings", "text: 'a' stopping {" + " stop_strings: 'x'" * 17 + "}", "17 entries", "16"),
    ("stopping.stop_strings[1]", "text: 'a' stopping { stop_strings: ['x', ''] }", "0 bytes", "1 … 1000"),
    ("stopping.stop_strings[0]", f"text: 'a' stopping {{ stop_strings: '{LONG}' }}", "2000 bytes", "1 … 1000"),
    ("stopping.stop_token_ids[0]", "text: 'a' stopping { stop_token_ids: 300 }", "300", "0 … 299"),
    ("stopping.time_limit_ms", "text: 'a' stopping { time_limit_ms: 0 }", "0", "1 … 86400000"),
    ("return_options.logprobs", "text: 'a' return_options { logprobs: 33 }", "33", "0 … 32"),
    ("return_options.prompt_logprobs", "text: 'a' return_options { prompt_logprobs: 33 }", "33", "0 … 32"),
    ("request_id", "text: 'a' request_id: 'a b'", "'a b'", "128 letters"),
    ("request_id", f"text: 'a' request_id: '{LONG}'", "…", "128 letters"),
    ("expected_model_id", "text: 'a' expected_model_id: 'xyz'", "'xyz'", "64 hexadecimal digits"),
    ("expected_content_sha256", "text: 'a' expected_content_sha256: 'xyz'", "'xyz'", "64 hexadecimal digits"),
    ("priority", "text: 'a' priority: -101", "-101", "-100 … 100"),
    ("metadata", "text: 'a'" + "".join(f" metadata {{ key: '{i}' }}" for i in range(17)), "17 entries", "16"),
    ("metadata['k']", f"text: 'a' metadata {{ key: 'k' value: '{LONG}' }}", "2000 bytes", "0 … 512"),
    ("input", "sampling { n: 1 }", "absent", "text, token_ids or chat"),
    ("text", "text: ''", "no token", "at least one token"),
    ("token_ids.ids", "token_ids { }", "no token", "at least one token"),
    ("token_ids.ids[1]", "token_ids { ids: [1, 300] }", "300", "0 … 299"),
    ("tokenization", "token_ids { ids: 1 } tokenization { add_special: true }", "set", "absent with token_ids"),
    ("text", r"text: 'a\000b'", "U+0000 at character 1", "without it"),
    ("stopping.stop_strings[0]", r"text: 'a' stopping { stop_strings: '\000' }", "U+0000", "without it"),
    (r"metadata['k']", r"text: 'a' metadata { key: 'k' value: '\000' }", "U+0000", "without it"),
    ("prefix_reuse", "text: 'a' prefix_reuse: 99", "99", "a value of PrefixReuse"),
    ("chat.messages", "chat { }", "empty", "at least one message"),
    ("chat.messages[0].role", "chat { messages { } }", "0", "one of 1 … 5"),
    ("chat.messages[0].role", "chat { messages { role: 9 } }", "9", "a value of Role"),
    ("chat.messages[0].content[0]", "chat { messages { role: ROLE_USER content { } } }", "empty", ""),
    ("chat.messages[0].tool_calls", "chat { messages { role: ROLE_USER tool_calls { } } }", "set", "ASSISTANT"),
    ("chat.messages[0].reasoning", "chat { messages { role: ROLE_USER reasoning: 'x' } }", "set", "ASSISTANT"),
    ("chat.messages[0].tool_call_id", "chat { messages { role: ROLE_USER tool_call_id: 'x' } }", "set", "ROLE_TOOL"),
    ("chat.messages[0].name", f"chat {{ messages {{ role: ROLE_USER name: '{LONG}' }} }}", "2000 bytes", "128"),
    ("chat.messages[0].content[0].text", r"chat { messages { role: ROLE_USER content { text: '\000' } } }", "U+", ""),
    ("tokenization.parse_special", "chat { messages { role: 2 } } tokenization { parse_special: true }", "set", ""),
]  # fmt: skip

CALL = "chat.messages[0].tool_calls[0].arguments_json"
ARGUMENTS = "chat.template_arguments_json"
BAD_JSON = [
    ("{", "no JSON"),
    ("[]", "a JSON list"),
    ('{"a": NaN}', "no JSON"),
    ('{"a": 1e999}', "no JSON"),
    (r'{"a": "\ud800"}', "surrogate"),
    (r'{"a": "\u0000"}', "U+0000"),
    ('{"a": ' + "[" * 20_000 + "]" * 20_000 + "}", "nested too deep"),
    ('{"a": ' + "9" * 5_000 + "}", "no JSON"),
    ('{"a": "' + "x" * 70_000 + '"}', "bytes long"),
]

UNIMPLEMENTED = [
    ("structured_output", "structured_output { json_object { } }"),
    ("structured_output", "structured_output { }"),
    ("structured_output", "structured_output { gbnf: 'root ::= ' }"),
    ("adapters", "adapters { name: 'a' }"),
    ("cache_salt", "cache_salt: 's'"),
    ("prefix_reuse", "prefix_reuse: PREFIX_REUSE_RELAXED"),
    ("truncation", "truncation { strategy: TRUNCATION_STRATEGY_DROP_START }"),
    ("truncation", "truncation { keep_tokens: 3 }"),
    ("chat.tools", "chat { messages { role: ROLE_USER } tools { name: 'x' } }"),
    ("chat.tool_choice", "chat { messages { role: ROLE_USER } tool_choice { mode: TOOL_CHOICE_MODE_NONE } }"),
]


def infer(served: Any, request: inference_pb2.InferRequest) -> Any:
    return served.client.call(served.client.inference.Infer, request)


@pytest.mark.parametrize(("field", "text", "value", "bound"), BAD, ids=[f"{row[0]}-{i}" for i, row in enumerate(BAD)])
def test_a_bad_field_is_refused_with_path_value_and_bound(
    served: Any, field: str, text: str, value: str, bound: str
) -> None:
    request = text_format.Parse(text, inference_pb2.InferRequest())
    with pytest.raises(InvalidRequest) as caught:
        infer(served, request)
    assert list(caught.value.field_violations) == [field]
    assert caught.value.reason == "INVALID_REQUEST"
    assert caught.value.message.startswith(field)
    assert value in caught.value.message
    assert bound in caught.value.details["allowed"]
    assert served.engine.submitted == []


def test_who_gave_an_unknown_value_of_an_enum_hears_all_that_there_are(served: Any) -> None:
    with pytest.raises(InvalidRequest, match=", PREFIX_REUSE_EXACT, PREFIX_REUSE_RELAXED, PREFIX_REUSE_NONE"):
        infer(served, text_format.Parse("text: 'a' prefix_reuse: 99", inference_pb2.InferRequest()))


def test_in_a_stream_the_path_begins_at_its_own_message(served: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(served.client.stream("x", temperature=-1))
    assert list(caught.value.field_violations) == ["request.sampling.temperature"]
    with pytest.raises(InvalidRequest) as caught:
        list(served.client.stream("x", delta_interval_ms=10_001))
    assert list(caught.value.field_violations) == ["delta_interval_ms"]
    with pytest.raises(grpc.RpcError) as failed:
        next(served.client.inference.StreamInfer(inference_pb2.StreamInferRequest()))
    assert list(call_error(failed.value).field_violations) == ["request"]


@pytest.mark.parametrize(("text", "words"), BAD_JSON, ids=[words + str(i) for i, (_, words) in enumerate(BAD_JSON)])
@pytest.mark.parametrize("field", [CALL, ARGUMENTS])
def test_json_that_no_template_should_see_is_refused(served: Any, field: str, text: str, words: str) -> None:
    request = inference_pb2.InferRequest()
    message = request.chat.messages.add(role="ROLE_ASSISTANT")
    if field == CALL:
        message.tool_calls.add(name="f", arguments_json=text)
    else:
        request.chat.template_arguments_json = text
    with pytest.raises(InvalidRequest, match=re.escape(words)) as caught:
        infer(served, request)
    assert list(caught.value.field_violations) == [field]
    assert served.template.calls == []


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception"])
def test_template_arguments_cannot_replace_what_the_template_gets_from_elsewhere(served: Any, name: str) -> None:
    chat = {"messages": [{"role": "ROLE_USER"}], "template_arguments_json": json.dumps({name: 1})}
    with pytest.raises(InvalidRequest) as caught:
        infer(served, inference_pb2.InferRequest(chat=chat))
    assert list(caught.value.field_violations) == [f"{ARGUMENTS}[{name!r}]"]


@pytest.mark.parametrize(("field", "text"), UNIMPLEMENTED, ids=[f"{f}-{i}" for i, (f, _) in enumerate(UNIMPLEMENTED)])
def test_what_is_not_built_yet_is_refused_by_its_path_and_never_ignored(served: Any, field: str, text: str) -> None:
    request = inference_pb2.InferRequest()
    if not field.startswith("chat"):
        request.text = "a"
    text_format.Merge(text, request)
    with pytest.raises(Unimplemented) as caught:
        infer(served, request)
    assert list(caught.value.field_violations) == [field]
    assert caught.value.reason == "NOT_IMPLEMENTED"
    assert served.engine.submitted == []


@pytest.mark.parametrize("reuse", ["PREFIX_REUSE_EXACT", "PREFIX_REUSE_NONE", "PREFIX_REUSE_UNSPECIFIED"])
def test_reuse_that_changes_no_answer_is_accepted(served: Any, reuse: str) -> None:
    request = inference_pb2.InferRequest(text="a", prefix_reuse=reuse)  # type: ignore[arg-type]
    assert infer(served, request).usage.cached_tokens == 0


def test_a_chat_is_refused_by_a_model_without_a_template(served: Any) -> None:
    served.model.runtime = Runtime(served.engine, served.tokenizer)
    with pytest.raises(InvalidRequest, match="without a chat template") as caught:
        served.client.infer([{"role": "user", "content": "x"}])
    assert list(caught.value.field_violations) == ["chat"]


def test_prompt_progress_belongs_to_streams(served: Any) -> None:
    with pytest.raises(InvalidRequest, match="StreamInfer") as caught:
        served.client.infer("x", return_options={"prompt_progress": True})
    assert list(caught.value.field_violations) == ["return_options.prompt_progress"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (
            "sampling.logit_bias",
            "text: 'a' sampling {" + "".join(f" logit_bias {{ key: {i} value: 1 }}" for i in range(1_025)) + "}",
        ),
        ("sampling.allowed_token_ids", "text: 'a' sampling { allowed_token_ids: [" + "1," * 65_536 + "1] }"),
        ("stopping.stop_token_ids", "text: 'a' stopping { stop_token_ids: [" + "1," * 256 + "1] }"),
        ("token_ids.ids", "token_ids { ids: [" + "1," * 8_192 + "1] }"),
        ("chat.messages", "chat {" + " messages { role: ROLE_USER }" * 4_097 + "}"),
        ("chat.messages[0].content", "chat { messages { role: ROLE_USER" + " content { text: 'a' }" * 1_025 + "} }"),
        (
            "chat.messages[0].tool_calls",
            "chat { messages { role: ROLE_ASSISTANT" + " tool_calls { name: 'a' }" * 129 + "} }",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_a_list_that_is_too_long_is_refused_by_its_length(served: Any, field: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="entries long") as caught:
        infer(served, text_format.Parse(text, inference_pb2.InferRequest()))
    assert list(caught.value.field_violations) == [field]


def test_abort_and_detokenize_have_limits_too(served: Any) -> None:
    stub, call = served.client.inference, served.client.call
    for names in ([], ["x"] * 1_025):
        with pytest.raises(InvalidRequest) as caught:
            call(stub.Abort, inference_pb2.AbortRequest(request_ids=names))
        assert list(caught.value.field_violations) == ["request_ids"]
    with pytest.raises(InvalidRequest) as caught:
        call(stub.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[1, 300]))
    assert list(caught.value.field_violations) == ["token_ids[1]"]
    with pytest.raises(InvalidRequest) as caught:
        call(stub.Tokenize, inference_pb2.TokenizeRequest())
    assert list(caught.value.field_violations) == ["input"]
