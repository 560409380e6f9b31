"""The metrics of a real server are those of the README's table, and nothing that a caller wrote is among them."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from gguf import GGUFReader
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from magnitude.client import Client
from magnitude.errors import CallError
from magnitude.v1 import common_pb2
from tests.support import readme
from tests.support.serving import Served, eventually, serving

ROW = re.compile(r"\| `(magnitude_\w+)` \| (\w+) \| (.*?) \| (.*) \|")
BUCKET = "le"
CANARY = "xylophone-9431"
"""What callers write everywhere in these tests."""


def table() -> dict[str, tuple[str, frozenset[str], str]]:
    """Name → type, labels and sentence, as the README has them."""
    rows = (ROW.fullmatch(line) for line in readme.README.read_text(encoding="utf-8").splitlines())
    return {row[1]: (row[2], frozenset(re.findall(r"`(\w+)`", row[3])), row[4]) for row in rows if row}


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tiny_path: Path, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = tmp_path_factory.mktemp("state")
    with serving(tiny_path, "--metrics-port", str(port), "--state-dir", str(state)) as served:
        yield served


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def families(port: int) -> dict[str, Family]:
    """By the name of the table; the parser leaves a counter's _total out."""
    found = text_string_to_metric_families(page(port))
    return {f"{family.name}{'_total' * (family.type == 'counter')}": family for family in found}


def value(found: Mapping[str, Family], name: str, sample: str = "", **labels: str) -> float:
    """The sum of the samples with these labels."""
    matching = [
        each.value
        for each in found[name].samples
        if each.name == (sample or name) and labels.items() <= each.labels.items()
    ]
    assert matching, f"{name}{labels} has no sample"
    return float(sum(matching))


def test_the_table_of_the_readme_is_what_a_scraper_reads(server: Served, port: int, client: Client) -> None:
    client.infer("hello", max_tokens=4, session_id="agent/one")
    client.sessions.save("agent/one")
    with pytest.raises(CallError):
        client.infer("hello", temperature=-1)
    eventually(lambda: "magnitude_memory_read_bytes_per_second" in page(port), 60)
    found = {name: family for name, family in families(port).items() if name.startswith("magnitude_")}
    documented = table()
    assert found.keys() == documented.keys()
    for name, (kind, labels, sentence) in documented.items():
        family = found[name]
        assert (family.type, family.documentation) == (kind, sentence), name
        for sample in family.samples:
            assert sample.labels.keys() - {BUCKET} == labels, sample


def test_a_request_moves_what_it_should(server: Served, port: int, client: Client) -> None:
    before = families(port)
    with client.stream("a b c d e f", max_tokens=6, temperature=0) as stream:
        list(stream)
        finished = stream.finished
    assert finished is not None
    eventually(lambda: value(families(port), "magnitude_calls_running", method="InferenceService/StreamInfer") == 0)
    after = families(port)

    def moved(name: str, sample: str = "", **labels: str) -> float:
        return value(after, name, sample, **labels) - value(before, name, sample, **labels)

    usage, timings = finished.usage, finished.timings
    assert moved("magnitude_prompt_tokens_total") == usage.prompt_tokens
    assert moved("magnitude_generated_tokens_total") == usage.completion_tokens == 6
    assert moved("magnitude_draft_proposed_tokens_total") == usage.draft_proposed_tokens
    assert moved("magnitude_draft_accepted_tokens_total") == usage.draft_accepted_tokens
    assert moved("magnitude_finishes_total", reason="MAX_TOKENS") == 1
    for name, milliseconds in {
        "queue": timings.queue_ms,
        "prefill": timings.prefill_ms,
        "time_to_first_token": timings.first_token_ms,
        "decode": timings.decode_ms,
        "end_to_end": timings.total_ms,
    }.items():
        name = f"magnitude_{name}_seconds"
        assert moved(name, f"{name}_count") == 1
        assert moved(name, f"{name}_sum") == pytest.approx(milliseconds / 1_000, abs=1e-6)
    gaps = "magnitude_time_between_tokens_seconds"
    assert moved(gaps, f"{gaps}_count") == usage.completion_tokens - 1
    assert moved(gaps, f"{gaps}_sum") == pytest.approx(timings.decode_ms / 1_000, rel=0.05, abs=2e-3)
    assert moved("magnitude_decode_read_bytes_total") > 0
    assert moved("magnitude_key_value_pages_used") == 0


def test_a_session_looks_its_history_up_in_the_pages_that_it_kept(server: Served, port: int, client: Client) -> None:
    names = [f"magnitude_{name}_total" for name in ("prefix_cache_queries", "prefix_cache_hits", "cached_tokens")]

    def counts() -> list[float]:
        found = families(port)
        return [value(found, name) for name in names]

    def moved(before: list[float]) -> list[float]:
        return [new - old for new, old in zip(counts(), before, strict=True)]

    before = counts()
    client.infer("a b c d e f g h", max_tokens=4, temperature=0)
    first = client.infer("a b c d e f g h", max_tokens=4, temperature=0, session_id="agent/looks").usage
    assert moved(before) == [0, 0, 0], "nothing came before"
    second = client.infer("i", max_tokens=4, temperature=0, session_id="agent/looks").usage
    history = first.prompt_tokens + first.completion_tokens
    assert moved(before) == [history, history - 1, second.cached_tokens], "the last token is chosen, never computed"
    assert second.cached_tokens == history - 1


def test_a_machine_full_of_idle_sessions_is_not_full(server: Served, port: int, client: Client) -> None:
    """Whoever picks a server for a request asks what it cannot get; the pages of an idle session it can."""
    client.infer("a b c d", max_tokens=40, session_id="agent/idle", ignore_eos=True)
    eventually(lambda: value(families(port), "magnitude_key_value_pages_idle") > 0)
    found = families(port)
    assert value(found, "magnitude_key_value_pages_used") == value(found, "magnitude_key_value_pages_idle")
    assert value(found, "magnitude_key_value_usage_ratio") == 0
    client.sessions.delete("agent/idle")
    held = value(found, "magnitude_key_value_pages_used")
    eventually(lambda: value(families(port), "magnitude_key_value_pages_used") < held)


def test_saving_and_restoring_a_session_is_counted_and_what_it_had_is_no_new_work(
    server: Served, port: int, client: Client
) -> None:
    client.infer("a b c d", max_tokens=4, session_id="agent/two", temperature=0)
    client.sessions.save("agent/two", b"x" * 10_000)
    before = families(port)
    client.sessions.save("agent/two", b"y" * 10_000)
    client.sessions.delete("agent/two", [1])
    client.sessions.restore("agent/two", as_session_id="agent/three")
    cached = client.infer("e", max_tokens=2, session_id="agent/two").usage.cached_tokens
    after = families(port)

    def moved(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert moved("magnitude_snapshot_saves_total") == 1
    assert moved("magnitude_snapshot_restores_total") >= 1
    assert moved("magnitude_snapshot_bytes", kind="dead") > 10_000
    dead, live = (value(after, "magnitude_snapshot_bytes", kind=kind) for kind in ("dead", "live"))
    assert value(after, "magnitude_snapshot_dead_ratio") == pytest.approx(dead / (dead + live))
    assert moved("magnitude_cached_tokens_total") == cached > 0


def test_a_waiting_request_is_seen_as_an_autoscaler_needs_it(slow_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    flags = ("--metrics-port", str(port), "--sequences-max", "1", "--cpu-isa", "scalar")
    with serving(slow_path, *flags) as served, Client(served.address, retries=False) as client:
        streams = [client.stream("count to a thousand", max_tokens=2_000) for _ in range(3)]
        iterators = [iter(stream) for stream in streams]
        for iterator in iterators:
            next(iterator)
        eventually(lambda: value(families(port), "magnitude_requests_waiting") == 2)
        found = families(port)
        assert value(found, "magnitude_requests_running") == 1
        used, total = value(found, "magnitude_key_value_pages_used"), value(found, "magnitude_key_value_pages")
        assert value(found, "magnitude_key_value_usage_ratio") == pytest.approx(used / total)
        [info] = found["magnitude_key_value_cache_info"].samples
        assert int(info.labels["num_gpu_blocks"]) == total
        assert int(info.labels["block_size"]) == value(found, "magnitude_key_value_page_size_tokens")
        for stream in streams:
            stream.cancel()


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "seconds"),
    [("smollm2_path", 2), pytest.param("qwen_path", 20, marks=pytest.mark.heavy)],
    ids=["SmolLM2", "Qwen"],
)
def test_weights_are_read_as_fast_as_tokens_come(model: str, seconds: int, request: pytest.FixtureRequest) -> None:
    """All tensors but a table that is only looked up, by gguf's own count, once for each token after the first."""
    path: Path = request.getfixturevalue(model)
    tensors = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    looked_up = tensors["token_embd.weight"] if "output.weight" in tensors else 0
    token_bytes = sum(tensors.values()) - looked_up
    read_bytes, read_seconds = "magnitude_decode_read_bytes_total", "magnitude_decode_read_seconds_total"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with serving(path, "--metrics-port", str(port)) as served, Client(served.address, timeout_seconds=60) as client:
        eventually(lambda: "magnitude_memory_read_bytes_per_second" in page(port), 60)
        client.infer("Once", max_tokens=2, ignore_eos=True)
        before = families(port)
        answer = client.infer("Once upon", max_tokens=8_000, ignore_eos=True, time_limit_ms=1_000 * seconds)
        after = families(port)
    steps = answer.usage.completion_tokens - 1
    moved_bytes, moved_seconds = (value(after, name) - value(before, name) for name in (read_bytes, read_seconds))
    assert steps > 2 * seconds
    assert moved_bytes in (steps * token_bytes, (steps + 1) * token_bytes), "a step may have run beyond the time limit"
    rate, token_rate = moved_bytes / moved_seconds, steps * token_bytes / (answer.timings.decode_ms / 1_000)
    roof = value(after, "magnitude_memory_read_bytes_per_second")
    print(f"{rate / 1e9:.2f} GB/s, tokens x weights {token_rate / 1e9:.2f} GB/s, machine {roof / 1e9:.2f} GB/s")
    assert 0.98 * token_rate < rate < 2 * token_rate, "steps take most of the time between tokens, and no more"
    assert rate < 2 * roof


def test_nothing_that_a_caller_writes_becomes_a_label(server: Served, port: int, client: Client) -> None:
    for options in ({"model": CANARY}, {"request_id": CANARY}, {"stop_strings": [CANARY]}, {"metadata": {"a": CANARY}}):
        with contextlib.suppress(CallError):
            client.infer(CANARY, max_tokens=2, **options)
    with contextlib.suppress(CallError):
        client.infer([{"role": "user", "content": CANARY, "name": CANARY}], max_tokens=2)
    assert CANARY not in page(port)
    assert value(families(port), "magnitude_request_errors_total", reason="MODEL_NOT_FOUND") == 1


def test_the_metrics_are_there_while_the_model_loads_and_until_the_last_call_has_ended(slow_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with serving(slow_path, "--metrics-port", str(port), "--cpu-isa", "scalar") as served:
        load = families(port)["magnitude_model_load_time_seconds"].samples
        assert {"map", "tokenizer", "program", "memory", "executor"} <= {sample.labels["phase"] for sample in load}
        with Client(served.address, retries=False) as client, client.stream("a", max_tokens=100) as stream:
            events = iter(stream)
            next(events)
            served.process.terminate()
            eventually(lambda: client.list_models()[0].state == common_pb2.MODEL_STATE_DRAINING)
            assert value(families(port), "magnitude_calls_running", method="InferenceService/StreamInfer") == 1
            list(events)
