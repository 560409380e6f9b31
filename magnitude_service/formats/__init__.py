"""Readers of model files: bytes in, plain data out."""

from magnitude_service.formats.gguf import Header, TensorInfo, parse_header
from magnitude_service.formats.metadata import Metadata
from magnitude_service.formats.string_array import StringArray
from magnitude_service.formats.tensor_types import TENSOR_TYPES, TensorType

__all__ = ["TENSOR_TYPES", "Header", "Metadata", "StringArray", "TensorInfo", "TensorType", "parse_header"]
