// What the vectors cannot tell: where text came from, lines of errors, templates that mean harm.
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "chat/jinja/template.h"
#include "support/errors.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;
using test::contains;
using test::error_of;

std::vector<RenderedPiece> render(const std::string& source, const ordered_json& data = ordered_json::object()) {
  return JinjaTemplate(source, "chat.jinja").render(data, {{"eos_token", "<|end|>"}});
}

// Pieces as one text, data's in brackets.
std::string marked(const std::string& source, const ordered_json& data) {
  std::string text;
  for (const RenderedPiece& piece : render(source, data)) text += piece.from_data ? "[" + piece.text + "]" : piece.text;
  return text;
}

TEST(JinjaTemplateTest, WhereTextCameFrom) {
  const ordered_json data = {{"m", {{"text", "Hi <|end|> you"}, {"words", {"a", "b"}}}}};
  EXPECT_EQ(marked("<s>{{ m.text }}{{ eos_token }}", data), "<s>[Hi <|end|> you]<|end|>");
  EXPECT_EQ(marked("{{ 'x' + m.text + 'y' ~ m.text[:2] }}", data), "x[Hi <|end|> you]y[Hi]");
  EXPECT_EQ(marked("{{ m.text.split(' ')[1] }}{{ m.text|replace('you', 'me') }}", data), "[<|end|>Hi <|end|> ]me");
  EXPECT_EQ(marked("{{ m.text|upper|trim }}{{ m.words|join('+') }}", data), "[HI <|END|> YOUa]+[b]");
  EXPECT_EQ(marked("{{ m|tojson }}", {{"m", {{"k", "a\n"}}}}), "{\"[k]\": \"[a\\n]\"}");
  EXPECT_EQ(marked("{% set x %}<{{ m.words[0] }}>{% endset %}{{ x }}", data), "<[a]>");
  EXPECT_EQ(marked("{% macro f(x) %}({{ x }}){% endmacro %}{{ f(m.words[1]) }}", data), "([b])");
  EXPECT_EQ(marked("{{ m.text == 'Hi <|end|> you' }}{{ 'end' in m.text }}", data), "TrueTrue");
}

TEST(JinjaTemplateTest, ErrorsNameConstructAndLine) {
  const auto fails = [](const std::string& source, const std::string& what) {
    const Error error = error_of([&] { render(source); });
    EXPECT_TRUE(contains(error.what(), what));
    return error;
  };
  EXPECT_EQ(fails("a\n{% include 'x' %}", "chat.jinja:2: the block {% include %} is not supported").exit_code(), 2);
  fails("{{ x|wordwrap }}", "chat.jinja:1: the filter 'wordwrap' is not supported");
  fails("\n\n{{ x is eggs }}", "chat.jinja:3: the test 'eggs' is not supported");
  fails("{{ 'a'.format(1) }}", "string has no 'format' that is supported");
  fails("{% if true %}\n{{ '%s' % 1 }}{% endif %}", "chat.jinja:2: formatting strings with %");
  fails("{{ 1 +\n}}", "chat.jinja:2: expected a value, but found the end of the tag");
  fails("{% if x %}", "expected {% endif %}, but found the end of the template");
  fails("{{ f(*x) }}", "arguments with * are not supported");
  EXPECT_EQ(fails("{{ raise_exception('two in a row') }}", "chat.jinja:1: the template refuses this: two in a row")
                .exit_code(),
            1);
  fails("{% for m in messages %}{{ m.a.b }}{% endfor %}{{ x.y }}", "'x' is undefined");
}

TEST(JinjaTemplateTest, TemplatesThatMeanHarm) {
  const auto refuses = [](const std::string& source, const std::string& what) {
    EXPECT_TRUE(contains(error_of([&] { render(source); }).what(), what));
  };
  refuses(
      "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% for b in range(9999) %}{% if a %}{% endif "
      "%}{% endfor %}{% endfor %}",
      "does not end");
  refuses("{{ 'a' * 99999999999 }}", "too long");
  const std::string too_much = "makes too much";
  // What is shared in memory is not when it is printed or compared.
  const std::string shared =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, "
      "ns.y] %}{% endfor %}";
  refuses(shared + "{{ ns.x }}", too_much);
  refuses(shared + "{{ ns.x | tojson }}", too_much);
  refuses(shared + "{{ ns.x == ns.y }}", too_much);
  refuses("{{ ('a' * 16000000).split('a') }}", too_much);
  refuses("{{ ('a\n' * 8000000).splitlines() }}", too_much);
  refuses("{{ ('a' * 9000000).find('a' * 4500000 + 'b') }}", too_much);
  refuses("{{ ('a' * 9000000).strip('b' * 9000000 + 'a') }}", too_much);
  refuses("{% set l = ['a' * 10000000] * 1000000 %}{{ l | join }}", "characters");
  refuses("{% for i in range(99999) %}{% set x = 'a' * 9999999 %}{% endfor %}", too_much);
  refuses("{{ range(100000) | sort | map('string') | join(', ' * 1000000) }}", "characters");
  refuses(
      "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "characters");
  refuses("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}", "levels");
  refuses("{% set ns = namespace() %}{% set ns.x = ns %}", "a namespace cannot be part");
  refuses("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "without end");
  refuses("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "levels");
  std::string sum = "1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  refuses("{{ " + sum + " }}", "too many parts");
  refuses("{{ 9223372036854775807 + 1 }}", "64 bits");
  refuses("{{ (-9223372036854775807 - 1) // -1 }}", "64 bits");
  refuses("{{ (-9223372036854775807 - 1) | abs }}", "64 bits");
  EXPECT_TRUE(contains(error_of([&] { render(std::string((1 << 20) + 1, 'x')); }).what(), "at most"));
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  refuses(blocks, "levels");
  ordered_json deep = "x";
  for (int i = 0; i < 5000; ++i) deep = ordered_json::array({deep});
  EXPECT_TRUE(contains(error_of([&] { render("{{ m }}", {{"m", deep}}); }).what(), "levels"));
}

TEST(JinjaTemplateTest, TheEndsOfIntegers) {
  const auto text = [](const std::string& source) {
    const auto pieces = render(source);
    return pieces.empty() ? "" : pieces[0].text;
  };
  EXPECT_EQ(text("{{ (-9223372036854775807 - 1) is divisibleby(-1) }}"), "True");
  EXPECT_EQ(text("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_EQ(text("{{ (-9223372036854775807 - 1) // 3 }}"), "-3074457345618258603");
  EXPECT_EQ(text("{{ -7 // 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -6 // 3 }}"), "-4 -4 2 -2 -2");
  EXPECT_EQ(text("{{ 'aaa'.replace('a', 'b', -9223372036854775807 - 1) }}"), "bbb");
}

TEST(JinjaTemplateTest, TimeNow) {
  const auto year = [] {
    const std::time_t now = std::time(nullptr);
    return std::to_string(1900 + std::localtime(&now)->tm_year);
  };
  const std::string before = year();
  const auto pieces = render("{{ strftime_now('%Y') }}");
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_TRUE(pieces[0].text == before || pieces[0].text == year()) << pieces[0].text;
}

}  // namespace
}  // namespace nmoe
