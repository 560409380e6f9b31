"""The servers that clients are held against, of a small random model: two places to run and one to wait."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conformance import faults
from tests.support.certificates import Authority
from tests.support.serving import serving
from tests.support.tiny_models import write_tiny_model

PLACES = ("--sequences-max", "2", "--waiting-max", "1")
ADDRESSES = ("127.0.0.1", "127.0.0.2")
NAME = "magnitude-of-two"
TOKEN = "conformance-token-0123456789abcdef"


@dataclass(frozen=True)
class Reached:
    """A server, and the flags by which a client's program reaches it."""

    address: str
    flags: tuple[str | Path, ...] = ()
    calls: dict[str, int] = field(default_factory=dict)
    """Of a disturbed server: the calls of each method until now."""
    before: tuple[str | Path, ...] = ()
    """What a client's program is run by, where it must find a name."""


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", tensor_type="Q8_0", context=16_384)


@pytest.fixture(scope="package")
def plain(model: Path) -> Iterator[Reached]:
    with serving(model, *PLACES) as served:
        yield Reached(served.address)


@pytest.fixture(scope="package")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="package")
def secured(authority: Authority) -> Iterator[Reached]:
    """Speaks TLS only, and wants a token."""
    folder = authority.file.parent
    pair = authority.issue("server")
    (folder / "tokens").write_text(f"{TOKEN}\n")
    (folder / "tokens").chmod(0o600)
    own = write_tiny_model(folder / "secured.gguf", tensor_type="Q8_0")
    flags = ("--tls-certificate", pair.certificate, "--tls-key", pair.key, "--token-file", folder / "tokens")
    with serving(own, *PLACES, *map(str, flags)) as served:
        yield Reached(served.address, ("--ca", authority.file, "--token", TOKEN))


@pytest.fixture
def wrong_token(secured: Reached, authority: Authority) -> Reached:
    """The same, with a token that nobody was given."""
    return Reached(secured.address, ("--ca", authority.file, "--token", TOKEN[::-1]))


@pytest.fixture(scope="package")
def mutual(authority: Authority) -> Iterator[Reached]:
    """Wants a certificate of its callers."""
    own, caller = authority.issue("mutual"), authority.issue("caller")
    model = write_tiny_model(authority.file.parent / "mutual.gguf", tensor_type="Q8_0")
    flags = ("--tls-certificate", own.certificate, "--tls-key", own.key, "--tls-client-ca", authority.file)
    with serving(model, *PLACES, *map(str, flags)) as served:
        shown = ("--certificate", caller.certificate, "--key", caller.key)
        yield Reached(served.address, ("--ca", authority.file, *shown))


@pytest.fixture
def no_certificate(mutual: Reached, authority: Authority) -> Reached:
    """The same, of a caller that shows none."""
    return Reached(mutual.address, ("--ca", authority.file))


@pytest.fixture(scope="package")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    """Two servers under one name, whose models have different names."""
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("two")
        models = [write_tiny_model(folder / f"{name}.gguf", tensor_type="Q8_0") for name in ("one", "two")]
        served = [stack.enter_context(serving(model, *PLACES)) for model in models]
        yield Reached("ipv4:" + ",".join(each.address for each in served))


@pytest.fixture(scope="package")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    """The same two at one port of two addresses, which are looked up by their name."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "hosts").write_text("".join(f"{address} {NAME}\n" for address in ADDRESSES))
    before = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', folder / "hosts")
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a name of this test's own needs a mount namespace, and this user may make none")
    port = str(free_port(ADDRESSES))
    with contextlib.ExitStack() as stack:
        for model, address in zip(("one", "two"), ADDRESSES, strict=True):
            path = write_tiny_model(folder / f"{model}.gguf", tensor_type="Q8_0")
            stack.enter_context(serving(path, *PLACES, "--host", address, "--port", port))
        yield Reached(f"dns:///{NAME}:{port}", before=before)


def free_port(addresses: Sequence[str]) -> int:
    """A port that none of the addresses has in use."""
    with contextlib.ExitStack() as stack:
        port = int(stack.enter_context(socket.create_server((addresses[0], 0))).getsockname()[1])
        for address in addresses[1:]:
            stack.enter_context(socket.create_server((address, port)))
        return port


@pytest.fixture
def refusing(plain: Reached) -> Iterator[Reached]:
    disturbance = faults.Refusing(plain.address)
    with faults.serving(disturbance) as address:
        yield Reached(address, calls=disturbance.calls)


@pytest.fixture
def losing(plain: Reached) -> Iterator[Reached]:
    disturbance = faults.Losing(plain.address)
    with faults.serving(disturbance) as address:
        yield Reached(address, calls=disturbance.calls)
