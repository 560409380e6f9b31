"""A server as a process of its own, and as a thread of this one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator

from magnitude_service import config
from magnitude_service.app.application import Application
from magnitude_service.app.loaded_model import LoadedModel, Phases, load_model


def run(configuration: config.Configuration) -> int:
    """Serves until SIGTERM or SIGINT, and prints one line when ready. Returns the exit status."""
    begin = time.perf_counter()
    configure_logging(configuration.layer(config.AppOptions))
    config.quieten_grpc()
    phases = Phases()
    loading = _start_loading(configuration, phases)
    with phases.phase("imports"):
        import magnitude_service.server.build  # noqa: F401, while the model loads

    async def serve() -> None:
        application = Application(configuration, phases)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, application.stop)
        await application.serve(loading, lambda line: print(f"{line}; {_ms(begin)} ({phases})", flush=True))

    asyncio.run(serve())
    return 0


def _ms(begin: float) -> str:
    return f"{(time.perf_counter() - begin) * 1e3:.0f} ms"


@contextlib.contextmanager
def in_process(configuration: config.Configuration) -> Iterator[int]:
    """A server in a thread of this process; its port. Raises what the model could not be loaded for."""
    phases = Phases()
    loading = _start_loading(configuration, phases)
    started: concurrent.futures.Future[tuple[Application, asyncio.AbstractEventLoop]] = concurrent.futures.Future()

    async def serve() -> None:
        application = Application(configuration, phases)
        found = application, asyncio.get_running_loop()
        await application.serve(loading, lambda _: started.set_result(found))

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    # A daemon: Ctrl-C while the model loads ends the process, and there is nothing to stop yet.
    thread = threading.Thread(target=work, name="magnitude-server", daemon=True)
    thread.start()
    application, loop = started.result()
    try:
        yield application.port
    finally:
        loop.call_soon_threadsafe(application.stop)
        thread.join()


def _start_loading(configuration: config.Configuration, phases: Phases) -> concurrent.futures.Future[LoadedModel]:
    loading: concurrent.futures.Future[LoadedModel] = concurrent.futures.Future()
    arguments = (loading, configuration, phases)
    threading.Thread(target=_load_into, args=arguments, name="magnitude-load", daemon=True).start()
    return loading


def _load_into(
    loading: concurrent.futures.Future[LoadedModel], configuration: config.Configuration, phases: Phases
) -> None:
    try:
        loading.set_result(load_model(configuration, phases))
    except BaseException as error:
        loading.set_exception(error)


def configure_logging(options: config.AppOptions) -> None:
    """Log lines to standard error, in the form and from the level on that were asked for."""
    from magnitude_service.server.log_writer import BackgroundHandler
    from magnitude_service.server.request_log import formatter

    handler = BackgroundHandler(sys.stderr.fileno())
    handler.setFormatter(formatter(options.log_format))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler], force=True)
