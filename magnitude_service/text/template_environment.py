"""The Jinja2 environments in which chat templates run: what they may call, and how marks travel through it.

Settings, filters and globals follow what `transformers` gives to the templates that models are published with. Left
out, because a template that is given by a file has no business with them: `lipsum`, `cycler`, `joiner`, and the filters
`attr`, `random`, `pprint`, `urlize`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from magnitude_service.text.provenance import Marked, adopted, has_marks, joined, marked, plain

FORBIDDEN_GLOBALS = ("lipsum", "cycler", "joiner")
FORBIDDEN_FILTERS = ("attr", "random", "pprint", "urlize")

REVEALING_FILTERS = (
    *("int", "float", "round", "abs", "filesizeformat", "format", "wordcount"),
    *("title", "indent", "center", "wordwrap", "truncate", "striptags"),
    *("escape", "e", "forceescape", "urlencode", "xmlattr"),
)
"""Filters that look at characters: they get the plain text, and all that they make of a marked one is marked.
The others hand texts on, or ask `Marked` itself."""

ESCAPED_IN_JSON = re.compile('["\\\\\x00-\x1f]'.translate({code: code + 0x40000 for code in (*range(32), 34, 92)}))


class TemplateRaised(TemplateError):
    """The template itself refused the conversation, by `raise_exception`."""


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012, so declared by Jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """What renders a conversation as it is. Constants fold at compile time: compiling is as dangerous as rendering."""
    return _prepared(
        ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationBlock], cache_size=0
        )
    )


def shadow_environment() -> ShadowEnvironment:
    """What renders a marked conversation: the same text, but of marks where it comes from the request."""
    env = ShadowEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationBlock], cache_size=0
    )
    _prepared(env)
    for name in REVEALING_FILTERS:
        env.filters[name] = revealing(env.filters[name])
    env.filters.update(
        join=_adopting(env.filters["join"]),
        replace=_replace,
        tojson=_tojson,
        concatenated=lambda pieces: joined(map(str, pieces)),
        searchable=_searchable,
    )
    env.tests["in"] = lambda value, items: value in _searchable(items)
    return env


def _prepared(env: ImmutableSandboxedEnvironment) -> ImmutableSandboxedEnvironment:
    for name in FORBIDDEN_GLOBALS:
        del env.globals[name]
    for name in FORBIDDEN_FILTERS:
        del env.filters[name]
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def raise_exception(message: object) -> NoReturn:
    """Lets a template refuse a conversation in its own words."""
    raise TemplateRaised(str(message))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as published templates expect it: `<`, `&`, `'` and non-ASCII stay as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ShadowEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with marks: wherever a text with marks became a plain `str`, it is made `Marked` again."""

    intercepted_binops = frozenset({"%"})
    concat = staticmethod(joined)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _ShadowSyntax().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A method of a constant (`'a b'.replace(content, …)`) understands marked arguments too."""
        owner = getattr(__obj, "__self__", None)
        if type(owner) is str and any(has_marks(value) for value in args):
            __obj = getattr(Marked(owner), __obj.__name__, __obj)
        return adopted(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return adopted(super().call_binop(context, operator, left, right))


class _ShadowSyntax(NodeTransformer):
    """Puts through filters what compiles to operations on plain `str` alone: `a ~ b`, and `a in 'words'`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(pieces, "concatenated", [], [], None, None, lineno=node.lineno)

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        if node.op in ("in", "notin"):
            node.expr = nodes.Filter(node.expr, "searchable", [], [], None, None, lineno=node.lineno)
        return node


def _tojson(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    text = tojson(plain(value) if ensure_ascii else value, ensure_ascii, **form)
    if ensure_ascii:
        return marked(text) if has_marks(value) else text
    return adopted(ESCAPED_IN_JSON.sub(_escape, text))  # type: ignore[no-any-return]


def _escape(match: re.Match[str]) -> str:
    """A marked quote, backslash or control character as JSON escapes it, marked."""
    return str(marked(tojson(plain(match.group()))[1:-1]))


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    """Jinja2's `replace`, where any of the three may hold marks."""
    return adopted(Marked(text).replace(str(old), str(new), -1 if count is None else count))  # type: ignore[no-any-return]


def _searchable(value: Any) -> Any:
    """What stands right of `in`."""
    return Marked(value) if type(value) is str else value


def _adopting(work: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(work)(lambda *arguments, **named: adopted(work(*arguments, **named)))


def revealing(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work` on plain values; all text that it makes of marked ones is marked."""

    @functools.wraps(work)
    def revealed(*arguments: Any, **named: Any) -> Any:
        result = work(*[plain(value) for value in arguments], **plain(named))
        return marked(result) if has_marks(list(arguments)) or has_marks(named) else result

    return revealed
