"""How far real models are from the float32 run, beside llama.cpp: a Markdown table.

    python -m tests.golden.report_kl [--scalar]

`make models` fetches the models; README.md has the measure. The scalar kernels take minutes, and give the same bits as
the others (test_determinism.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from magnitude_service.config import cache_folder
from magnitude_service.engine.cache_layout import CacheType
from magnitude_service.kernels import supported_instruction_sets
from tests.golden.kl32 import QWEN, SMOLLM2, Case, Figures, bar_of, parting
from tests.golden.real_model import RealModel

MODELS: Mapping[str, str] = {
    SMOLLM2: "SmolLM2-135M-Instruct.Q4_1.gguf",
    QWEN: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


def report(isas: Sequence[str]) -> Iterator[str]:
    """The table's lines, each as soon as it is known."""
    yield (
        "| model | executor | pages | KL32 first | after the first | p99 after | of llama.cpp's (first, after) "
        "| greedy texts as float32's | as llama.cpp's |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, file in MODELS.items():
        real = RealModel.open(cache_folder("") / "models" / file, name)
        bar = bar_of(real.cases)
        llama_cpp = [case.greedy_llama_cpp for case in real.cases]
        yield f"| {name} | llama.cpp b11434 | F32 | {_columns(bar, bar)} | {_agreement(llama_cpp, real.cases)} |"
        for isa in isas:
            for cache_type in CacheType:
                measured = real.measured("native", cache_type, isa).figures
                agreement = _agreement(real.greedy("native", cache_type, isa), real.cases)
                yield f"| {name} | native, {isa} | {cache_type.name} | {_columns(measured, bar)} | {agreement} |"
        measured = real.measured("reference").figures
        yield f"| {name} | reference, NumPy | F32 | {_columns(measured, bar)} | | |"


def _columns(figures: Figures, bar: Figures) -> str:
    shares = f"{figures.first / bar.first:.1e}, {figures.after_first / bar.after_first:.1e}"
    return f"{figures.first:.2e} | {figures.after_first:.2e} | {figures.after_first_p99:.2e} | {shares}"


def _agreement(texts: Sequence[Sequence[int]], cases: Sequence[Case]) -> str:
    """How many texts are the golden ones to the end, and at which step of which case the others part."""
    golden = [[case.greedy_float32 for case in cases], [case.greedy_llama_cpp for case in cases]]
    columns = []
    for expected in golden:
        found = [parting(*pair) for pair in zip(texts, expected, strict=True)]
        others = ", ".join(f"{case}:{at}" for case, at in enumerate(found) if at is not None)
        columns.append(f"{found.count(None)}/{len(found)}" + (f" (case:step {others})" if others else ""))
    return " | ".join(columns)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalar", action="store_true", help="measure the scalar kernels too")
    arguments = parser.parse_args()
    isas = [isa for isa in supported_instruction_sets() if isa != "scalar" or arguments.scalar]
    for line in report(isas or ["scalar"]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
