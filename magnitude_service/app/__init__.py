"""Composition root: builds every object, starts and stops them in order, and listens for signals.

start   loading thread: map → tokenizer → program → memory plan → executor      main thread: imports grpc, listens
        then the engine thread, READY, the metrics port, the content hash at idle priority
stop    SIGTERM: DRAINING, nothing new → running requests end, or the grace period does → saves → engine → port →
        state file → model
        a second signal ends the grace period at once
"""

from __future__ import annotations

from magnitude_service.app.application import Application
from magnitude_service.app.loaded_model import TEMPLATE_KEY, LoadedModel, Phases, describe
from magnitude_service.app.process import in_process, run

__all__ = ["TEMPLATE_KEY", "Application", "LoadedModel", "Phases", "describe", "in_process", "run"]
