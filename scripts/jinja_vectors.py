#!/usr/bin/env python3
"""Reference results of Jinja for tests/chat/jinja_vectors_test.cpp.

    scripts/jinja_vectors.py --out tests/chat/fixtures/jinja.json
    scripts/jinja_vectors.py --conversations tests/chat/fixtures/templates

The latter writes conversations.json into the folder: what each of its templates, NAME.jinja, makes of each conversation.
They are of our own, with what the templates of Qwen3, GLM, MiniMax, OLMoE, Mixtral and gpt-oss use. It is 1 May 2025.

It needs the Python package `jinja2` (Debian: python3-jinja2), set up as the package transformers does for chat templates.
Each case is {"name", "template", "context", "expected"}, or "error": true where Jinja refuses the template.
"""

import argparse
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints what is in it; transformers records its place besides."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2025, 5, 1).strftime
    return env


TEXT = "  Grüße, 東京! <b>\"q\"</b> it's\n\tx\u00a0\u2028 "
DATA = {
    "text": TEXT, "empty": "", "word": "river", "lines": "one\ntwo\r\nthree\n\n", "dashed": "a--b----c--", "n": 7, "zero": 0,
    "minus": -3, "real": 2.5, "whole_real": 3.0, "tiny": 1e-7, "huge": 1e16, "yes": True, "no": False, "nothing": None,
    "numbers": [3, 1, 2], "words": ["pear", "Apple", "fig"], "none_list": [], "pairs": [["a", 1], ["b", 2]],
    "dict": {"b": 1, "a": [True, None, 1.5, "é\u0001\""], "items": "shadowed", "content": "text"},
    "people": [{"name": "Ann", "age": 30, "tags": {"x": [1]}}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 41, "tags": None}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi there \n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": None},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
    ],
    "calls": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "f:0", "type": "function", "function": {"name": "get", "arguments": {"city": "Köln", "days": 2}}},
            {"id": "f:1", "type": "function", "function": {"name": "put", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "content": "sun", "tool_call_id": "f:0"},
        {"role": "tool", "content": "rain", "tool_call_id": "f:1"},
        {"role": "assistant", "content": "Sun and rain."},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "description": "<weather> & \"more\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
}

# Expressions, each printed as {{ ... }}; one that Jinja refuses is an error there.
EXPRESSIONS = {
    "arithmetic": ["1 + 2 * 3", "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7 / 2", "6 / 2", "2 ** 10", "2 ** 3 ** 2",
                   "2 ** -1", "-2 ** 2", "7.5 // 2", "-7.5 % 2", "1.5 + 1", "0.1 + 0.2", "1e3", "1_000", "n * 2.0", "1 / 0",
                   "1 % 0", "3 * 'ab'", "'ab' * 0", "[1, 2] * 2", "[1] + [2, 'x']", "'a' + 'b'", "'a' + 1", "1 + none", "-n",
                   "+n", "- - n", "true + 1", "n - missing", "(-3)|abs", "-3|abs", "minus|abs", "1 - -1", "0 ** 0", "(-1) ** 3"],
    "comparison": ["1 < 2 < 3", "1 < 3 < 2", "1 == 1.0", "1 == true", "'a' < 'b'", "'a' < 1", "[1, 2] < [1, 3]", "1 != 2",
                   "'1' == 1", "none == false", "missing == none", "missing == missing2", "2 >= 2", "'B' < 'a'", "'é' > 'z'",
                   "{'a': 1} == {'a': 1.0}", "[1] == (1,)", "1 in numbers", "9 not in numbers", "'a' in dict", "'z' in dict",
                   "'iv' in word", "'' in word", "1 in word", "'x' in missing", "not 1 in numbers", "none in [none]"],
    "logic": ["1 and 2", "0 and 2", "0 or 'x'", "'' or none", "not 0", "not not 1", "not true and false", "true or 1 / 0",
              "'a' if yes else 'b'", "'a' if no else 'b'", "'a' if no", "('a' if no) is defined",
              "'a' if no else 'b' if no else 'c'", "1 if no else 2 + 3", "'x' ~ ('a' if yes)", "missing or 'default'"],
    "printing": ["none", "true", "1.0", "1e16", "1e15", "123456789.125", "1e-5", "0.0001", "1e100", "real", "whole_real", "tiny",
                 "huge", "numbers", "words", "dict", "pairs", "(1,)", "(1, 'a')", "()", "[]", "{}", "\"it's\"",
                 "[\"it's\", 'say \"x\"', 'both \\' and \"', 'tab\\t\\\\', '\\x7f\\xa0é']", "missing", "[missing]", "1, 2", "'<&>'",
                 "-0.0", "{'k': none, 1: (2, 3)}"],
    "strings": ["'\\n\\t\\\\\\'\\\"'", "'a' 'b'", "'\\x41\\u00e9\\U0001F600\\101\\q'", "\"double 'q'\"", "'a\\\nb'", "'é' ~ 1 ~ none ~ true",
                "1 ~ 2 + 3", "'a' ~ 'b' * 2", "'%s' % 1", "'{}' ~ '{{'", "'}}'", "'%}'"],
    "text methods": ["text.strip()", "text.lstrip()", "text.rstrip()", "'xxaxx'.strip('x')", "'xyaxy'.strip('yx')",
                     "'\\n\\na\\n'.lstrip('\\n')", "'a\\n'.rstrip('\\n')", "'a b  c '.split()", "' a b'.split(' ')",
                     "dashed.split('--')", "dashed.split('--', 1)", "dashed.rsplit('--', 1)", "'a b c'.split(none, 1)",
                     "'a b c'.rsplit(maxsplit=1)", "''.split()", "''.split(',')", "'ab'.split('')", "lines.splitlines()",
                     "word.startswith('ri')", "word.endswith('er')", "word.startswith(('x', 'r'))", "word.startswith(['r'])",
                     "word.startswith('')", "word.upper()", "'ÀB'.lower()", "'hello wORLD x1y'.title()", "'hELLO'.capitalize()",
                     "'aXbXc'.replace('X', '--')", "'aXbXc'.replace('X', '', 1)", "'abc'.replace('', '-')", "'abab'.find('b')",
                     "'abab'.rfind('b')", "'abab'.find('z')", "'abab'.index('z')", "'aaaa'.count('aa')", "', '.join(words)",
                     "','.join(numbers)", "'12'.isdigit()", "''.isdigit()", "'prefix-x'.removeprefix('prefix-')",
                     "'x-suffix'.removesuffix('-suffix')", "'a' .strip ( )", "word.strip(1)", "word.nosuch()", "word.nosuch",
                     "'<think>a</think>b'.split('</think>')[-1]", "'<think>\\na</think>b'.split('</think>')[0].split('<think>')[-1].lstrip('\\n')"],
    "containers": ["numbers[0]", "numbers[-1]", "numbers[9]", "numbers[9].x", "word[0]", "word[-1]", "word[9]", "dict.b", "dict['b']",
                   "dict.nosuch", "dict.nosuch.deeper", "dict['items']", "dict.get('b')", "dict.get('z')", "dict.get('z', 5)",
                   "dict.keys()|list", "dict.values()|list", "dict.items()|list", "numbers[::-1]", "numbers[1:]", "numbers[:-1]",
                   "numbers[-2:]", "numbers[5:]", "numbers[::2]", "numbers[2:0:-1]", "numbers[::0]", "word[1:3]", "word[::-1]",
                   "word[-3:-1]", "word[:100]", "missing[0]", "missing.x", "numbers.0", "pairs[1][0]", "pairs.1.0", "none.x",
                   "numbers.index(2)", "numbers.count(2)", "numbers.append(4)", "numbers['x']", "word['upper']()", "(1, 2)[1]",
                   "{'a': {'b': 'deep'}}.a.b", "numbers[true]", "missing[1:]", "messages[0].content", "people[0]['tags'].x[0]"],
    "filters": ["text|trim", "'xax'|trim('x')", "n|trim", "numbers|length", "word|length", "dict|count", "missing|length", "n|length",
                "'東京'|length", "missing|default('d')", "none|default('d')", "none|default('d', true)", "''|d('d', boolean=true)",
                "0|default", "missing|default", "numbers|join", "numbers|join(', ')", "words|join('-')|upper",
                "people|join(',', attribute='name')", "numbers|first", "numbers|last", "none_list|first", "word|first", "word|last",
                "word|upper|lower", "'hello wORLD (x-y'|title", "'hELLO w'|capitalize", "dict|items|list", "missing|items|list",
                "n|items|list", "'aXb'|replace('X', 'Y')", "'aaa'|replace('a', 'b', 2)", "n|replace('7', '8')", "n|string ~ 'x'",
                "[1]|string", "'12'|int", "'x'|int", "'x'|int(5)", "'3.9'|int", "3.9|int", "none|int", "' 4 '|int", "'2.5'|float",
                "'x'|float", "n|float", "'abc'|list", "dict|list", "people|map(attribute='name')|list",
                "people|map(attribute='tags.x')|list", "people|map(attribute='zip', default='-')|list", "words|map('upper')|list",
                "numbers|map('string')|join('/')", "people|selectattr('tags')|map(attribute='name')|list",
                "people|selectattr('age', 'gt', 28)|map(attribute='name')|list",
                "people|rejectattr('age', 'gt', 28)|map(attribute='name')|list", "people|selectattr('tags', 'defined')|list|length",
                "numbers|select('odd')|list", "numbers|reject('odd')|list", "[0, 1, '', 'a']|select|list", "words|sort",
                "words|sort(case_sensitive=true)", "numbers|sort(reverse=true)", "people|sort(attribute='age')|map(attribute='name')|list",
                "[1, 'a']|sort", "numbers|reverse|list", "word|reverse", "'<b>'|safe", "'a\\nb\\n\\nc'|indent",
                "'a\\nb'|indent(2, true)", "'a\\nb'|indent('>', first=true)", "numbers|length + 1", "1 + numbers|length",
                "'a,b'.split(',')|last", "word|nosuch", "word|upper()", "word|trim|length == 5", "n|abs", "'x'|abs"],
    "tojson": ["dict|tojson", "tools|tojson", "text|tojson", "1.0|tojson", "1e16|tojson", "none|tojson", "'/é😀\\x7f'|tojson",
               "'é😀'|tojson(ensure_ascii=true)", "dict|tojson(indent=2)", "dict|tojson(indent=none)", "none_list|tojson(indent=4)",
               "{}|tojson(indent=4)", "tools|tojson(separators=(',', ':'))", "dict|tojson(sort_keys=true)", "(1, 2)|tojson",
               "missing|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "tools[0].function.parameters|tojson(2)", "tools|tojson(indent=4)"],
    "tests": ["missing is defined", "n is defined", "missing is undefined", "none is none", "n is not none", "word is string",
              "n is string", "dict is mapping", "numbers is mapping", "numbers is sequence", "word is iterable", "n is iterable",
              "dict is iterable", "n is number", "true is number", "'1' is number", "n is integer", "true is integer", "real is float",
              "yes is true", "1 is true", "no is false", "no is boolean", "0 is false", "3 is odd", "3 is even", "9 is divisibleby 3",
              "9 is divisibleby(4)", "1 is eq 1", "1 is ne 1", "1 is lt 2", "2 is ge(2)", "1 is in numbers", "'a' is in ['a']",
              "none is sameas none", "range is callable", "word is callable", "'ab' is lower", "'AB' is upper", "'1' is lower",
              "not missing is defined", "missing is not defined and true", "n is nosuch", "n is string or n is number",
              "dict.content is string", "dict.b is string", "'x' if n is string else 'y'", "n + 1 is integer", "missing is none",
              "missing is iterable", "messages[3].content is not string"],
    "functions": ["range(4)|list", "range(1, 4)|list", "range(5, 0, -2)|list", "range(0)|list", "range(1000000)|list", "range(1, 2, 0)|list",
                  "dict(a=1)", "namespace(a=1).a", "namespace().b", "raise_exception('no')", "nosuch()", "word()", "namespace({'a': 2}, b=3).b"],
    "syntax": ["1 +", "(1", "[1, 2", "{'a' 1}", "a b", "1 | ", "'open", "@", "not", "a.", "[1,]", "{'a': 1,}", "(1,)", "f(a=1, 2)",
               "1 if", "x[]", "a[1:2:3:4]", "()", "1abc", "a is", "a is not", "n is defined is true", "{{}}", "**x", ""],
}

TEMPLATES = {
    "whitespace": [
        "a\n", "a\n\n", "a", "\n", "", "a\r\nb\rc\r\n", "{% if yes %}\nx\n{% endif %}\ny", "  {% if yes %}  \n  x\n  {% endif %}\ny",
        "a {% if yes %} b {% endif %} c", "a {%- if yes -%} b {%- endif -%} c", "a\n  {{ n }}\n  b", "a\n  {{- n -}}\n  b",
        "a\n {# comment #}\nb", "a {#- comment -#} b", "a{# {{ n }} {% if %} #}b", "  {%+ if yes %}x{% endif %}", "{% if yes +%}\nx{% endif %}",
        "{% if yes -%}\n\n  x {%- endif %}", "\t{% if yes %}x{% endif %}\t\n\ty", "x{% if yes %}\n\ny{% endif %}\n\n",
        "{{ n }}\n{{ n }}\n", "{{ n }}\n\n", "{% set a = 1 %}\n\n{{ a }}", "a\n\n  {% set b = 1 %}  \nc", "{# open", "{% if yes", "{{ n",
        "{{ n }", "{ { n } }", "100% {a} #}", "  {# x #}  {% if yes %}y{% endif %}", "  {{ n }}  {% if yes %}y{% endif %}",
        "{%- for i in numbers -%}\n  {{ i }}\n{%- endfor -%}\n", "{% for i in numbers %}\n  {{ i }}\n{% endfor %}\n",
        "a\u00a0{%- if yes %}b{% endif %}", "{%if yes%}tight{%endif%}", "{{- '  x  ' -}}", "a\n{{+ n }}", "x {{ n -}} \n y"],
    "if": [
        "{% if n > 5 %}big{% elif n > 2 %}mid{% else %}small{% endif %}", "{% if missing %}x{% else %}y{% endif %}",
        "{% if numbers %}x{% endif %}{% if none_list %}y{% endif %}", "{% if not missing is defined %}x{% endif %}",
        "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}", "{% if no %}{{ 1 / 0 }}{% endif %}ok", "{% if yes %}", "{% endif %}",
        "{% if %}{% endif %}", "{% if yes %}{% else %}{% else %}{% endif %}", "{% if yes and not no or 1 / 0 %}x{% endif %}",
        "{% elif yes %}", "{% if n == 7 and word == 'river' and word|length == 5 %}x{% endif %}"],
    "for": [
        "{% for i in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}",
        "{% for i in numbers %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}",
        "{% for i in numbers %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
        "{% for k, v in pairs %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for k, v in dict|items %}{{ k }};{% endfor %}", "{% for k in dict %}{{ k }};{% endfor %}", "{% for c in word %}{{ c }}.{% endfor %}",
        "{% for i in none_list %}x{% else %}none{% endfor %}", "{% for i in missing %}x{% else %}none{% endfor %}", "{% for i in n %}x{% endfor %}",
        "{% for i in none %}x{% endfor %}", "{% for i in numbers if i > 1 %}{{ i }}{{ loop.length }}{{ loop.last }};{% endfor %}",
        "{% for i in numbers if i > 5 %}{{ i }}{% else %}no{% endfor %}", "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}", "{% for i in numbers[::-1] %}{{ i }}{% endfor %}",
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% set x = 0 %}{% for i in numbers %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }}",
        "{% set x = 0 %}{% for i in numbers %}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}",
        "{% set ns = namespace(x=0, found=false) %}{% for i in numbers %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.found }}",
        "{% for a in numbers %}{% for b in words %}{{ loop.index }}{{ loop.length }}{% endfor %}{{ loop.index }};{% endfor %}",
        "{% for a in numbers %}{% set outer = loop %}{% for b in words %}{{ outer.index }}{{ b }}{% endfor %}{% endfor %}",
        "{% for i in numbers %}{{ i }}{% endfor %}{{ i }}", "{% for a, b in numbers %}{% endfor %}", "{% for i in numbers %}", "{% for in numbers %}{% endfor %}",
        "{% for i in numbers %}{{ loop.nosuch }}{% endfor %}", "{{ loop }}", "{% break %}", "{% for (a, b) in pairs %}{{ a }}{% endfor %}",
        "{% for message in messages %}{{ message.role }}{% if not loop.last %}, {% endif %}{% endfor %}",
        "{% for i in numbers %}{% if loop.index0 == 0 %}{{ 'first' }}{% elif loop.last %}{{ 'last' }}{% endif %}{% endfor %}"],
    "set": [
        "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 'x' %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set a %}x{{ n }}y{% endset %}{{ a|upper }}",
        "{% set a %}\n  x\n{% endset %}[{{ a }}]", "{% set n = 1 %}{{ n }}", "{% set a = n if yes else 0 %}{{ a }}", "{% set %}", "{% set a %}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}",
        "{% set dict.x = 1 %}", "{% set a.b = 1 %}", "{% set ns = namespace(list=[]) %}{% for i in numbers %}{% set ns.list = ns.list + [i * 2] %}{% endfor %}{{ ns.list }}",
        "{% set a = {'x': [1, {'y': 2}]} %}{{ a.x[1].y }}", "{% set a = missing %}{{ a is defined }}", "{% set a = 'x' %}{% set b %}{% set a = 'y' %}{{ a }}{% endset %}{{ a }}{{ b }}"],
    "macro": [
        "{% macro f(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}", "{% macro f() %}  x  {% endmacro %}[{{ f()|trim }}]",
        "{% macro f(x) -%}\n  {%- if x is string -%}\n    {{ x }}\n  {%- else -%}\n    {%- for i in x -%}{{ i.text }}{%- endfor -%}\n  {%- endif -%}\n{%- endmacro -%}\n{% for m in messages %}{{ f(m.content) }}|{% endfor %}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(c=2) }}", "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ word }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{% set a = 2 %}{{ a }}{% endmacro %}{% set a = 1 %}{{ f(0) }}{{ a }}",
        "{% macro f() %}{{ i }}{% endmacro %}{% for i in numbers %}{{ f() }}{% endfor %}", "{% macro f(a=word) %}{{ a }}{% endmacro %}{{ f() }}", "{% macro f %}{% endmacro %}", "{% macro f() %}x{% endmacro f %}{{ f() }}"],
    "blocks": [
        "a{% generation %}b{{ n }}{% endgeneration %}c", "{% generation %}\nx\n{% endgeneration %}\ny", "{% generation %}", "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% nosuch %}", "{{ raise_exception('only user and assistant') }}", "{% if yes %}{{ raise_exception('x') }}{% endif %}", "{% if no %}{{ raise_exception('x') }}{% endif %}fine"],
    "models": [
        # ChatML.
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{{ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        # Thoughts of earlier turns are dropped, the last question is searched from the end.
        "{%- set ns = namespace(last=messages|length - 1, searching=true) %}\n{%- for message in messages[::-1] %}\n    {%- set i = (messages|length - 1) - loop.index0 %}\n    {%- if ns.searching and message.role == 'user' and message.content is string and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}\n        {%- set ns.searching = false %}\n        {%- set ns.last = i %}\n    {%- endif %}\n{%- endfor %}\n{%- for message in messages %}\n    {%- set content = message.content if message.content is string else '' %}\n    {%- if message.role == 'assistant' %}\n        {%- set thought = '' %}\n        {%- if message.reasoning is string %}\n            {%- set thought = message.reasoning %}\n        {%- elif '</think>' in content %}\n            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n        {%- endif %}\n        {%- if loop.index0 > ns.last and (loop.last or thought) %}\n            {{- '[' + message.role + ']<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}\n        {%- else %}\n            {{- '[' + message.role + ']' + content }}\n        {%- endif %}\n    {%- else %}\n        {{- '[' ~ message.role ~ ']' ~ content }}\n    {%- endif %}\n{%- endfor %}\n",
        # Calls of tools and their answers.
        "{{ bos_token }}{%- for message in calls %}\n{%- if message.tool_calls %}\n{%- for call in message.tool_calls %}\n{%- set call = call.function %}\n{{- '\\n<call>\\n{\"name\": \"' ~ call.name ~ '\", \"arguments\": ' }}\n{%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}\n{{- '}\\n</call>' }}\n{%- endfor %}\n{%- elif message.role == 'tool' %}\n{%- if loop.first or calls[loop.index0 - 1].role != 'tool' %}{{ '[answers]' }}{% endif %}\n{{- '<answer>' + message.content + '</answer>' }}\n{%- if loop.last or calls[loop.index0 + 1].role != 'tool' %}{{ '[end]' }}{% endif %}\n{%- else %}{{ message.role + ':' + message.content + eos_token }}{% endif %}\n{%- endfor %}",
        # Alternating roles are checked, the system prompt comes first.
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, system='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{ '<|User|>' ~ message['content'] }}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|Assistant|>' + content + '<|end|>' }}{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}",
        "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n{{- '<|header|>system<|/header|>\\n\\n' + system + '<|eot|>' }}\n{%- for message in messages %}\n    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}\n        {{- raise_exception('roles must alternate') }}\n    {%- endif %}\n    {{- '<|header|>' + message.role + '<|/header|>\\n\\n' }}{{ message.content|string|trim }}{{- '<|eot|>' }}\n{%- endfor %}",
        # Tools declared in the system prompt.
        "{%- if tools %}\n{{- '<|system|>\\n' }}{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}\n{{- '# Tools\\n<tools>' }}\n{%- for tool in tools %}\n{{- '\\n' }}{{ tool | tojson }}\n{%- endfor %}\n{{- '\\n</tools>' }}\n{%- endif %}{{ tools | tojson(separators=(',', ':')) }}\n{% for tool in tools %}{% for name, spec in tool.function.parameters.properties|items %}{{ name }}: {{ spec.type }}{% endfor %}{% endfor %}",
        "{%- for message in messages %}{%- if loop.first and message['role'] != 'system' -%}default{%- endif -%}{% set role = message.get('name') or message['role'] %}{%- if message['role'] == 'user' -%}<|user|>{{ role }}<|mid|>{%- elif message['role'] == 'assistant' -%}<|assistant|>{{ role }}<|mid|>{%- else -%}<|system|>{{ role }}<|mid|>{%- endif -%}{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}{%- for part in message['content'] -%}{%- if part['type'] == 'image' or 'image' in part -%}<|image|>{%- else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}<|end|>{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>assistant<|mid|>{%- endif -%}",
        # Which turns keep their thoughts, as a list in a text; functions without some of their keys.
        "{%- macro shown(tool) -%}{{ '{' }}{%- set first = namespace(value=true) -%}{%- for k, v in tool.items() -%}{%- if k not in ['parameters', 'strict'] -%}{%- if not first.value -%}{{- ', ' -}}{%- endif -%}{%- set first.value = false -%}\"{{ k }}\": {{ v | tojson(ensure_ascii=False) }}{%- endif -%}{%- endfor -%}{{- '}' -}}{%- endmacro -%}[x]<y>{%- for tool in tools %}\n{%- if 'function' in tool -%}{%- set tool = tool['function'] -%}{%- endif %}\n{% if tool.defer is not defined or not tool.defer %}{{ shown(tool) }}{% endif %}{%- endfor %}\n{%- set ns = namespace(last=-1, kept='') -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- elif m.role == 'assistant' -%}{%- if m.content is string and '</think>' in m.content -%}{%- set ns.kept = ns.kept ~ ',' ~ ns.last ~ ',' -%}{%- endif -%}{%- endif -%}{%- endfor -%}{%- for m in messages -%}{%- if m.role == 'assistant' and ((clear_thinking is defined and not clear_thinking) or loop.index0 > ns.last or ',' ~ (loop.index0 - 1) ~ ',' in ns.kept) -%}{%- set content = m.content.split('</think>') -%}{{ '<think>' ~ (content | first).split('<think>') | last | trim ~ '</think>' }}{{ (content | last).strip() }}{%- else -%}{{ '|' ~ m.role ~ '|' ~ (m.content if m.content is string else m.content | map(attribute='text') | join) }}{%- endif -%}{%- endfor -%}{{- '<think>' if (enable_thinking is not defined or enable_thinking) else '</think>' -}}"],
}


TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Says what it is like \"outside\".", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "heure", "description": "L'heure à Zürich <b>", "parameters": {"type": "object", "properties": {}}}},
]
SPECS = {
    "city": {"type": "string", "description": "Which?", "enum": ["Zürich", "東京"], "default": "東京"}, "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
    "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number", "nullable": True}, "names": {"type": "array", "items": {"type": "string"}, "nullable": True}}, "required": ["x"]}},
    "maps": {"type": "array", "items": {"type": "object"}}, "lists": {"type": "array"}, "either": {"type": ["string", "null"]}, "one": {"type": ["number"]},
    "of": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "integer", "default": 3}]}, "any": {"oneOf": [{"type": "object"}, {"type": "string"}]},
    "where": {"type": "object", "properties": {"lat": {"type": "number"}, "note": {"type": "string", "nullable": True}}, "required": ["lat"]}, "loose": {"type": "object"}, "on": {"type": "boolean", "default": False}, "what": {}}
TYPED_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": SPECS, "required": ["city", "places"]}}}, {"type": "function", "function": {"name": "now", "description": "It is."}}]
CALL = {"type": "function", "id": "call_1", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "exact": True, "unit": None, "at": [1.5, "x"]}}}
CALL_AS_TEXT = {"type": "function", "id": "call_2", "function": {"name": "heure", "arguments": "{}"}}
SAID = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello.  "}]
ASKED = {"role": "user", "content": "What is it like\nin 東京?"}
CALLED = {"role": "assistant", "content": "", "reasoning_content": "I must look. ", "tool_calls": [CALL, CALL_AS_TEXT]}
ANSWERS = [{"role": "tool", "content": "{\"sky\": \"blue\"}"}, {"role": "tool", "content": "12:00"}]
CONVERSATIONS = {
    "a question": {"messages": [ASKED], "add_generation_prompt": True},
    "a question and how to answer": {"messages": [{"role": "system", "content": "Be brief."}, ASKED], "add_generation_prompt": True, "enable_thinking": False},
    "turns": {"messages": [*SAID, ASKED, {"role": "assistant", "content": "<think>\nhm\n\n</think>\n\nFine."}], "add_generation_prompt": False, "show_roles": True},
    "turns behind a system's": {"messages": [{"role": "system", "content": "Be brief.", "current_date": "1 May"}, *SAID, ASKED], "add_generation_prompt": True, "enable_thinking": True},
    "thoughts apart": {"messages": [*SAID, ASKED, {"role": "assistant", "content": "Fine.", "reasoning_content": "\nhm "}], "add_generation_prompt": False},
    "tools": {"messages": [{"role": "system", "content": "Be brief."}, ASKED], "tools": TOOLS, "add_generation_prompt": True},
    "calls": {"messages": [*SAID, ASKED, CALLED, *ANSWERS, {"role": "assistant", "content": "Blue.", "reasoning_content": "So it is."}], "tools": TOOLS, "add_generation_prompt": False},
    "calls of which more follow": {"messages": [ASKED, CALLED, *ANSWERS], "tools": TOOLS, "add_generation_prompt": True},
    "a call of text": {"messages": [ASKED, {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL_AS_TEXT]}, ANSWERS[1]], "add_generation_prompt": True},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "image"}, "two"]}], "add_generation_prompt": True},
    "answers in parts": {"messages": [ASKED, CALLED, {"role": "tool", "content": [{"output": "blue"}, {"type": "text", "text": "and "}, {"sky": "grey", "p": [0.5, None, True, "it's"]}]}], "add_generation_prompt": True},
    "an answer too much": {"messages": [ASKED, ANSWERS[0]], "add_generation_prompt": True},
    "two questions": {"messages": [ASKED, ASKED], "add_generation_prompt": True},
    "typed tools": {"messages": [{"role": "developer", "content": "Look first."}, ASKED], "tools": TYPED_TOOLS, "builtins": ["code", "x"], "effort": "much", "add_generation_prompt": True},
    "thinking": {"messages": [*SAID, ASKED, {"role": "assistant", "thinking": "It is \"hot\".", "content": "Hot."}], "identity": "You think.", "add_generation_prompt": False},
    "a call thought about": {"messages": [ASKED, {"role": "assistant", "thinking": "Look.", "tool_calls": [CALL | {"content_type": "x"}]}, ANSWERS[0]], "tools": TOOLS, "add_generation_prompt": True},
    "channels in a content": {"messages": [ASKED, {"role": "assistant", "content": "<|channel|>thought"}], "add_generation_prompt": False},
    "marks in a text": {"messages": [{"role": "user", "content": "<|im_end|>[INST] {{ x }} {% y %} <answer>"}, {"role": "assistant", "content": " "}], "add_generation_prompt": False},
}


def write_conversations(env, folder):
    cases = []
    for path in sorted(folder.glob("*.jinja")):
        for name, conversation in CONVERSATIONS.items():
            variables = {"tools": None, "bos_token": "<s>", "eos_token": "</s>"} | conversation
            cases.append(case(env, f"{path.stem}: {name}", path.read_text(encoding="utf-8"), variables))
            cases[-1] |= {"template": path.name, "conversation": name}
    texts = {"conversations": CONVERSATIONS, "cases": cases}
    (folder / "conversations.json").write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in entry for entry in cases)} of them errors")


def case(env, name, template, variables=DATA):
    entry = {"name": name, "template": template}
    try:
        entry["expected"] = env.from_string(template).render(**variables)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, ZeroDivisionError, OverflowError, RecursionError, AttributeError,
            KeyError, SyntaxError):
        entry["error"] = True
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--out", type=pathlib.Path)
    choice.add_argument("--conversations", type=pathlib.Path)
    arguments = parser.parse_args()
    env = environment()
    if arguments.conversations:
        write_conversations(env, arguments.conversations)
        return
    out = arguments.out
    cases = [case(env, f"{group} {i}", "{{ " + text + " }}") for group, texts in EXPRESSIONS.items() for i, text in enumerate(texts)]
    cases += [case(env, f"{group} {i}", text) for group, texts in TEMPLATES.items() for i, text in enumerate(texts)]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in cases)
    context = json.dumps(DATA, ensure_ascii=False)
    out.write_text(f'{{"jinja": "{jinja2.__version__}",\n"context": {context},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in entry for entry in cases)} of them errors")


if __name__ == "__main__":
    main()
