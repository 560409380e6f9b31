"""Kernels read no byte beside their arguments: a mapped file may end where an unmapped page begins."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from magnitude_service.kernels import _kernels

# Runs in a child, which a stray read kills. Places an array so that it ends (or begins) at a page without access.
CHILD = textwrap.dedent(
    """
    import ctypes, mmap, sys
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
    from magnitude_service.kernels import _kernels

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    kept = []

    def guarded(shape, dtype, at_end):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = -(-size // mmap.PAGESIZE)
        region = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
        kept.append(region)
        begin = mmap.PAGESIZE + (pages * mmap.PAGESIZE - size if at_end else 0)
        array = np.frombuffer(region, dtype, int(np.prod(shape)), begin).reshape(shape)
        address = array.ctypes.data - begin
        for page in (0, pages + 1):
            assert libc.mprotect(address + page * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
        return array

    table = sys.argv[1]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"):
        elements, size = GGML_QUANT_SIZES[T[name]]
        for columns in (elements, elements * 3) if elements > 1 else (7, 64):
            for rows in (1, 15, 16, 33):
                for at_end in (True, False):
                    weights = guarded((rows, columns // elements * size), np.uint8, at_end)
                    for tokens in (1, 3, 8, 9):
                        x = guarded((tokens, columns), np.float32, at_end)
                        y = guarded((tokens, rows), np.float32, at_end)
                        activations = _kernels.ops.Activations(table, x)
                        _kernels.ops.matmul(activations, int(T[name]), weights, y, n_end=rows)
                    _kernels.ops.dequantize(table, int(T[name]), weights[-1], guarded(columns, np.float32, at_end))
    for head_size in (16, 40, 64):
        blocks = -(-head_size // 32)
        widths = {0: 4 * head_size, 1: 2 * head_size, 2: 2 * head_size, 3: 34 * blocks, 4: 18 * blocks}
        for cache_type, width in widths.items():
            for at_end in (True, False):
                keys, values = (guarded((2, 32 * width), np.uint8, at_end) for _ in range(2))
                rows = guarded((50, head_size), np.float32, at_end)
                _kernels.ops.store(table, rows, cache_type, True, keys)
                _kernels.ops.store(table, rows, cache_type, False, values)
                for R in (1, 3, 5, 13):
                    q, o = (guarded((R, head_size), np.float32, at_end) for _ in range(2))
                    limit = guarded(R, np.int32, at_end)
                    limit[:] = 50
                    m, l = (guarded(R, np.float32, at_end) for _ in range(2))
                    _kernels.ops.attention_chunk(table, q, limit, 0, keys, values, cache_type, 0.1, 30, 0.0, m, l, o)
    for count in (1, 16, 33):
        for at_end in (True, False):
            a, b, c = (guarded(count, np.float32, at_end) for _ in range(3))
            _kernels.ops.rms_norm(table, a, b, 1e-5, c)
            _kernels.ops.silu_multiply(table, a, b, c)
            _kernels.ops.add(table, a, b)
            _kernels.ops.softmax_statistics(table, a)
            head, angles = (guarded(2 * count, np.float32, at_end) for _ in range(2))
            _kernels.ops.rope(table, head, angles, True)
            _kernels.ops.rope(table, head, angles, False)
    print("untouched")
    """
)


def test_no_table_reads_or_writes_beside_its_arguments():
    for table in _kernels.supported_tables():
        child = subprocess.run([sys.executable, "-c", CHILD, table], capture_output=True, text=True, timeout=60)
        assert child.returncode == 0, f"{table} died with {child.returncode}: {child.stderr[-2000:]}"
        assert child.stdout.strip() == "untouched"
