"""Magnitude: a typed gRPC service for GGUF language models, computed straight from the mapped file."""

__version__ = "0.1.0"
