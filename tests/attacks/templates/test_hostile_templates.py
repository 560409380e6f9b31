"""Chat templates that want out of the sandbox, or all time, or all memory. Each ends in a typed error, soon."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnitude_service.errors import InvalidRequestError, UnsupportedModelError
from magnitude_service.text.options import TemplateOptions
from magnitude_service.text.templates import ChatTemplate, Segment

SECONDS = 0.5
MEMORY_BYTES = 192 << 20
USER = [{"role": "user", "content": "hi"}]
ATTACKED = [{"role": "user", "content": "attack"}]
SLACK_SECONDS = 5.0
"""This machine may be busy; the deadline itself is SECONDS."""


@contextmanager
def template(source: str) -> Iterator[ChatTemplate]:
    options = TemplateOptions(
        template_seconds=SECONDS, template_memory_bytes=MEMORY_BYTES, template_text_bytes_max=1 << 20
    )
    with ChatTemplate(source, bos_text="", eos_text="", options=options) as made:
        yield made


ESCAPES = [
    "{{ lipsum.__globals__['os'].popen('touch PWNED').read() }}",
    "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}",
    "{{ joiner.__init__.__globals__.os.system('touch PWNED') }}",
    "{{ namespace.__init__.__globals__.os.system('touch PWNED') }}",
    "{{ raise_exception.__globals__.x }}",
    "{{ strftime_now.__self__.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages[0].content.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages[0].content._plain_text() }}{{ messages[0].content._plain_cache.x }}",
    "{{ (messages.__class__.__base__.__subclasses__)() }}",
    "{{ ''['__class__']['__base__']['__subclasses__']() }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ messages[0].content.format.__self__.__class__.x }}",
    "{{ '{a.__class__.__base__.__subclasses__}'.format_map({'a': ''}) }}",
    "{{ [''.format] | map('call', '{0.__class__}') | list }}",
    "{{ ['{0.__class__.__init__.__globals__}'.format] | map('string') | first }}{{ ''.__class__.x }}",
    "{{ '' | attr('__class__') | attr('__mro__') }}",
    "{{ ['' ] | map(attribute='__class__.__mro__') | list | first | first }}",
    "{{ messages | groupby('__class__.__mro__') | length }}{{ messages.__class__.y }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ dict.mro() }}{{ dict.__base__.__subclasses__() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages.append(messages) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}{{ m._func.__globals__ }}",
    "{{ (range(3)).__class__.__base__ }}{{ loop.__class__ }}",
    "{% for x in [1] %}{{ loop._recurse.__globals__ }}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{{ messages | tojson(cls=messages.__class__) }}",
]

COSTS = {
    "a power": "{{ 9**(9**8) }}",
    "a power behind a variable": "{% set x = 9 %}{{ x**(x**8) }}",
    "a power while it is compiled": "{% if 9**(9**8) %}{% endif %}",
    "a long text": "{{ 'A' * 10**9 }}",
    "a long list": "{{ [0] * 10**9 }}",
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a width": "{{ '%900000000d' % 1 }}",
    "a width in format": "{{ '{:>900000000}'.format(1) }}",
    "a centred text": "{{ 'x' | center(900000000) }}",
    "a centred variable": "{{ messages[0].content | center(900000000) }}",
    "an indent": "{{ [1] | tojson(indent=900000000) }}",
    "a product": "{% set x = 10**4000 %}{% for i in range(99999) %}{% set y = (x ** 400) * (x ** 400) %}{% endfor %}",
    "an output of 1 GB": "{% for i in range(99999) %}{{ 'A' * 10000 }}{% endfor %}",
    "a doubling": "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "a doubling list": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "a replacement": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "a macro without end": "{% macro m(x) %}{{ m(x + 1) }}{% endmacro %}{{ m(0) }}",
    "a factor": "{{ messages[0].content * 10**9 }}",
    "a digit string": "{% set x = 10 %}{{ (x ** 5000) | string }}",
}


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """In the rendering and in what the child tries for itself: both run the same template."""
    with template(source) as made:
        with pytest.raises((InvalidRequestError, UnsupportedModelError)) as refused:
            made.render(USER)
        assert "chat template" in refused.value.message
    assert not Path("PWNED").exists()
    assert not Path("/PWNED").exists()


@pytest.mark.parametrize("cost", COSTS)
def test_a_costly_template_ends_with_a_typed_error_and_the_next_rendering_works(cost: str) -> None:
    source = "{% if messages[0].content == 'attack' %}" + COSTS[cost] + "{% endif %}ok"
    is_compiled_away = cost in ("a power", "a power while it is compiled", "a centred text", "a long text", "a width")
    with template(source) as made:
        before = time.monotonic()
        with pytest.raises(InvalidRequestError, match=r"took longer|memory|wrote more|failed|was stopped") as refused:
            made.render(ATTACKED)
        assert time.monotonic() - before < SECONDS + SLACK_SECONDS
        assert refused.value.field == "messages"
        if not is_compiled_away:
            assert made.render(USER) == [Segment("ok", True)]


@pytest.mark.parametrize("cost", ["a power", "a long text", "a doubling"])
def test_a_costly_template_without_any_condition_fails_at_the_check(cost: str) -> None:
    with template(COSTS[cost]) as made, pytest.raises(InvalidRequestError):
        made.check()


def test_this_process_does_not_grow_with_a_templates_appetite() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with template("{% if messages[0].content == 'attack' %}" + COSTS["an output of 1 GB"] + "{% endif %}") as made:
        made.render(USER)
        before = resident()
        with pytest.raises(InvalidRequestError, match="wrote more than 1048576 bytes"):
            made.render(ATTACKED)
        assert resident() - before < 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_has_no_environment_no_files_and_no_room_for_more() -> None:
    with template("x") as made:
        made.render(USER)
        proc = Path(f"/proc/{made.process_id}")
        assert (proc / "environ").read_bytes() == b""
        assert sorted(os.listdir(proc / "fd")) == ["0", "1", "2"]
        assert os.readlink(proc / "fd" / "2") == "/dev/null"
        assert os.getsid(made.process_id or 0) == made.process_id
        limits = (proc / "limits").read_text()
        for name, bound in [("open files", 8), ("file size", 0), ("address space", MEMORY_BYTES), ("processes", 0)]:
            line = next(line for line in limits.splitlines() if f"Max {name}" in line)
            assert line.split()[-3 if line.split()[-1] != str(bound) else -2] == str(bound), line


PARENT = """
import sys
from magnitude_service.text.templates import ChatTemplate
from magnitude_service.text.options import TemplateOptions
source = "{% if messages[0].content == 'attack' %}{% set x = 9 %}{{ x**(x**8) }}{% endif %}ok"
made = ChatTemplate(source, bos_text="", eos_text="", options=TemplateOptions(template_seconds=1.0))
made.check()
print(made.process_id, flush=True)
made.render([{"role": "user", "content": sys.argv[1]}])
print("rendered", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
@pytest.mark.parametrize("content", ["attack", "hi"])
def test_the_child_dies_with_its_parent_whatever_it_is_doing(content: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, content], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        if content == "hi":
            assert parent.stdout.readline() == b"rendered\n"
        parent.send_signal(signal.SIGKILL)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert poll.poll(20_000), "the child is still there after 20 s"
        os.close(child)


def test_a_child_that_was_killed_from_outside_is_replaced() -> None:
    with template("ok") as made:
        made.render(USER)
        first = made.process_id
        assert first is not None
        os.kill(first, signal.SIGKILL)
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        assert made.render(USER) == [Segment("ok", True)]
        assert made.process_id != first


def test_a_reply_that_a_broken_out_template_forges_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    from magnitude_service.text import template_process

    for forged in (
        "b'\\xff' * 8",
        "(9).to_bytes(8) + b'[1, 2, 3]' + bytes(8)",
        "(2).to_bytes(8) + b'{}' + (4).to_bytes(8) + b'\\xff' * 4",
        "(2).to_bytes(8) + b'{}' + bytes(8)",
        '(22).to_bytes(8) + b\'{"spans": [[0, "x", 3]]}\' + bytes(8)',
        "(20000).to_bytes(8) + b'[' * 20000 + bytes(8)",
    ):
        boot = (
            "import sys\nprint('ready', flush=True)\n"
            "sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8)))\n"
            "sys.stdout.buffer.write((12).to_bytes(8) + b'{\"spans\":[]}' + bytes(8)); sys.stdout.flush()\n"
            "sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8)))\n"
            f"sys.stdout.buffer.write({forged}); sys.stdout.flush()\nsys.stdin.buffer.read()"
        )
        monkeypatch.setattr(template_process, "BOOT", boot)
        with template("x") as made, pytest.raises(InvalidRequestError, match="answered"):
            made.render(USER)
