"""What an architecture needs of a file, what it records, and that the four places that name it agree."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from magnitude_service.engine import architectures
from magnitude_service.engine.architectures import ARCHITECTURES, llama, qwen2
from magnitude_service.engine.batch import RowStatus
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.engine.native import NativeExecutor, NativeOptions
from magnitude_service.engine.program import Op, Program
from magnitude_service.engine.reference import ReferenceExecutor
from magnitude_service.engine.tensors import MATRIX_TYPES
from magnitude_service.errors import MagnitudeError, QuantizationMismatchError, UnsupportedModelError
from magnitude_service.loader import MappedModel, MMapModelLoader
from tests.support.steps import NanPool, Part, page_table, step_plan
from tests.support.tiny_models import TENSOR_TYPES, write_tiny_model

ROOT = Path(__file__).parents[3]
LAYERS, EMBEDDING, HEADS, KEY_VALUE_HEADS, FEED_FORWARD, VOCABULARY = 3, 64, 4, 2, 96, 280
GOLDEN = {"llama": "smollm2-135m-instruct-q4_1", "qwen2": "qwen2.5-coder-1.5b-instruct-q4_k_m"}
"""The golden vector of each architecture."""


def small_model(folder: Path, architecture: str, **options: object) -> MappedModel:
    sizes: dict[str, object] = {
        "layers": LAYERS,
        "embedding": EMBEDDING,
        "heads": HEADS,
        "kv_heads": KEY_VALUE_HEADS,
        "feed_forward": FEED_FORWARD,
        "vocabulary": VOCABULARY,
    }
    path = write_tiny_model(folder / "small.gguf", architecture, **{**sizes, **options})  # type: ignore[arg-type]
    return MMapModelLoader().load(path)


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MappedModel:
    """A sound model of each architecture, with every optional tensor that its writer knows."""
    return small_model(tmp_path_factory.mktemp("model"), request.param, tied=False)


def changed(model: MappedModel, name: str, tensor: object | None) -> MappedModel:
    """The model with one tensor replaced, added, or with None taken away."""
    tensors: dict[str, object] = {**model.tensors, name: tensor}
    if tensor is None:
        del tensors[name]
    return SimpleNamespace(metadata=model.metadata, tensors=tensors)  # type: ignore[return-value]


def described(model: MappedModel, name: str, **changes: object) -> object:
    """A tensor as the file has it, but for its type or shape."""
    return SimpleNamespace(info=dataclasses.replace(model.tensors[name].info, **changes))  # type: ignore[arg-type]


def required_names(architecture: str) -> list[str]:
    roles = {"llama": llama.TENSORS, "qwen2": qwen2.TENSORS}[architecture]
    return [name for role in roles if role.required for name in role.names(LAYERS)]


def test_each_required_tensor_that_is_missing_is_named(model: MappedModel) -> None:
    names = required_names(model.spec.architecture)
    assert len(names) >= 2 + 9 * LAYERS
    for name in names:
        with pytest.raises(UnsupportedModelError, match=rf"The tensor {name} \(.*\) is missing") as caught:
            architectures.record(changed(model, name, None))
        assert caught.value.details["tensor"] == name


def test_each_tensor_of_a_wrong_shape_is_named(model: MappedModel) -> None:
    for name, tensor in model.tensors.items():
        *rest, last = tensor.info.shape
        for shape in ((*rest, last + 1), (*rest, last - 1), (*rest, last, 1), tuple(rest) or (1, 1)):
            with pytest.raises(UnsupportedModelError) as caught:
                architectures.record(changed(model, name, described(model, name, shape=shape)))
            is_embedding = name == "token_embd.weight"  # its rows say how many there are: others then differ from it
            assert caught.value.details.get("tensor") == name or is_embedding, name


def test_transposed_matrices_are_refused(model: MappedModel) -> None:
    for name, tensor in model.tensors.items():
        shape = tuple(reversed(tensor.info.shape))
        if shape != tensor.info.shape:
            with pytest.raises(UnsupportedModelError):
                architectures.record(changed(model, name, described(model, name, shape=shape)))


def test_more_layers_than_tensors_and_fewer_are_refused(tmp_path: Path) -> None:
    for blocks, name in ((LAYERS + 1, f"blk.{LAYERS}.attn_norm.weight"), (LAYERS - 1, f"blk.{LAYERS - 1}.")):
        model = small_model(tmp_path, "llama", metadata={"block_count": blocks})
        with pytest.raises(UnsupportedModelError, match=f"The tensor {name}"):
            architectures.record(model)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.ffn_up_exps.weight", "output.bias", "blk.0.x"])
def test_a_tensor_of_another_forward_pass_is_refused_by_name(model: MappedModel, name: str) -> None:
    extra = described(model, "output_norm.weight")
    with pytest.raises(UnsupportedModelError, match=f"The tensor {name} has no part in {model.spec.architecture}"):
        architectures.record(changed(model, name, extra))


def test_a_tensor_of_something_else_is_known_to_be_unused(model: MappedModel) -> None:
    assert architectures.record(model).unused == ()
    program = architectures.record(changed(model, "my_notes", described(model, "output_norm.weight")))
    assert program.unused == ("my_notes",)
    assert all("my_notes" not in instruction.weights for instruction in program.instructions)


def test_a_type_that_we_do_not_multiply_is_refused_with_those_that_we_do(model: MappedModel) -> None:
    unknown = SimpleNamespace(name="IQ2_XXS", id=16)
    with pytest.raises(
        QuantizationMismatchError, match=r"The tensor blk\.0\.ffn_up\.weight is IQ2_XXS; supported: .*Q6_K"
    ):
        architectures.record(
            changed(model, "blk.0.ffn_up.weight", described(model, "blk.0.ffn_up.weight", type=unknown))
        )
    assert set(TENSOR_TYPES) == MATRIX_TYPES


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"The architecture is 'mamba'; supported: llama, qwen2") as caught:
        architectures.record(small_model(tmp_path, "mamba"))
    assert caught.value.details["field"] == "general.architecture"


def test_a_program_reads_each_weight_and_appends_to_each_layer_once(model: MappedModel) -> None:
    program = architectures.record(model)
    used = Counter(name for instruction in program.instructions for name in instruction.weights)
    assert set(used) == set(model.tensors)
    assert set(used.values()) == {1}
    attentions = [instruction.layer for instruction in program.instructions if instruction.op is Op.ATTENTION]
    assert attentions == list(range(LAYERS)) == list(range(program.cache.layers))
    assert (program.cache.key_value_heads, program.cache.head_size) == (KEY_VALUE_HEADS, EMBEDDING // HEADS)


def test_a_program_begins_with_tokens_and_ends_with_logits(model: MappedModel) -> None:
    program = architectures.record(model)
    assert program.architecture == model.spec.architecture
    ops = [instruction.op for instruction in program.instructions]
    assert (ops[0], ops[-1], ops.count(Op.EMBED), ops.count(Op.LOGITS)) == (Op.EMBED, Op.LOGITS, 1, 1)
    written: set[str] = set()
    for instruction in program.instructions:
        assert written.issuperset(instruction.inputs), f"{instruction} reads what nothing wrote"
        written.update(instruction.outputs)
    assert written == set(program.buffers)
    assert program.buffers["logits"] == program.vocabulary_size == VOCABULARY


def attributes_of(program: Program, op: Op) -> list[Mapping[str, object]]:
    return [instruction.attributes for instruction in program.instructions if instruction.op is op]


@pytest.mark.parametrize(("architecture", "style"), [("llama", "pairs"), ("qwen2", "halves")])
def test_attributes_come_from_the_metadata(tmp_path: Path, architecture: str, style: str) -> None:
    values = {
        "rope.freq_base": 5e5,
        "rope.dimension_count": 8,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0,
        "attention.layer_norm_rms_epsilon": 0.25,
    }
    program = architectures.record(small_model(tmp_path, architecture, metadata=values))
    for heads, rotation in zip([HEADS, KEY_VALUE_HEADS] * LAYERS, attributes_of(program, Op.ROPE), strict=True):
        expected = {"heads": heads, "head_size": 16, "dimensions": 8, "base": 5e5, "scale": 2.0, "style": style}
        assert rotation == expected
    assert {norm["epsilon"] for norm in attributes_of(program, Op.NORM)} == {0.25}
    for attention in attributes_of(program, Op.ATTENTION):
        assert attention == {"heads": HEADS, "key_value_heads": KEY_VALUE_HEADS, "head_size": 16, "scale": 0.25}


def test_a_tied_matrix_is_read_at_both_ends(tmp_path: Path) -> None:
    for architecture in ARCHITECTURES:
        program = architectures.record(small_model(tmp_path, architecture, tied=True))
        assert program.instructions[0].weights == program.instructions[-1].weights == ("token_embd.weight",)


def test_llama_takes_biases_and_frequency_factors_where_a_file_has_them(tmp_path: Path) -> None:
    program = architectures.record(small_model(tmp_path, "llama", biases=True, frequency_factors=True))
    q, k, v = (i.weights[1] for i in program.instructions if i.op is Op.MATMUL and i.layer == 1 and len(i.weights) > 1)
    assert (q, k, v) == ("blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias")
    assert {i.weights for i in program.instructions if i.op is Op.ROPE} == {("rope_freqs.weight",)}


def test_a_bias_that_qwen2_lacks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.bias"):
        architectures.record(small_model(tmp_path, "qwen2", biases=False))


@pytest.mark.parametrize("tied", [True, False])
def test_padded_rows_of_the_embedding_are_never_sampled(tmp_path: Path, tied: bool) -> None:
    model = small_model(tmp_path, "llama", vocabulary=VOCABULARY + 40, token_count=VOCABULARY, tied=tied)
    program = architectures.record(model)
    assert program.vocabulary_size == VOCABULARY
    step = step_plan(Part(np.arange(30, dtype=np.int32), 0, page_table(30, first=0)))
    step.samplers["temperature"] = 1e38  # every id is as likely
    native = NativeExecutor(program, model, NanPool(program, CacheType.F32), NativeOptions(threads=1))
    reference = ReferenceExecutor(program, model, NanPool(program, CacheType.F32))
    for executor in (native, reference):
        logits, result = executor.logits(step), executor.step(step)
        assert logits is not None
        assert result is not None
        assert logits.shape == (30, VOCABULARY)
        assert set(result.status.tolist()) == {RowStatus.OK}
        assert result.token.max() < VOCABULARY
        assert len(set(result.token.tolist())) > 20


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    model = small_model(tmp_path, "llama", token_count=VOCABULARY + 1, metadata={"vocab_size": None})
    with pytest.raises(UnsupportedModelError, match=rf"tokenizer\.ggml\.tokens is a list of {VOCABULARY + 1}"):
        architectures.record(model)


def test_hostile_hyper_parameters_of_a_whole_file_are_refused(tmp_path: Path) -> None:
    for values in (
        {"attention.head_count_kv": HEADS},
        {"attention.head_count": 1},
        {"attention.key_length": 1 << 20, "attention.value_length": 1 << 20},
        {"embedding_length": 1 << 20},
        {"feed_forward_length": FEED_FORWARD * 2},
        {"block_count": 1_024},
        {"expert_count": 4},
        {"vocab_size": VOCABULARY - 1},
    ):
        with pytest.raises(MagnitudeError) as caught:
            architectures.record(small_model(tmp_path, "llama", metadata={"rope.dimension_count": None, **values}))
        assert isinstance(caught.value, UnsupportedModelError), values


def test_file_table_golden_vector_and_readme_name_the_same_architectures() -> None:
    folder = Path(architectures.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(ARCHITECTURES)
    assert set(GOLDEN) == set(ARCHITECTURES)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if line.startswith("- architectures: "))
    assert row == f"- architectures: {', '.join(f'`{name}`' for name in ARCHITECTURES)}"
    for name, record in ARCHITECTURES.items():
        assert record.__module__ == f"magnitude_service.engine.architectures.{name}"
        for suffix in (".json", ".npz"):
            assert (ROOT / "tests/golden" / (GOLDEN[name] + suffix)).is_file()
