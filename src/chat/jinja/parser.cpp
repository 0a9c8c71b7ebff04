#include "chat/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>

#include "chat/jinja/builtins.h"
#include "chat/jinja/lexer.h"

namespace nmoe::jinja {
namespace {

constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxNesting = 60;  // of brackets, and of blocks

int depth_of(const ExpressionPtr& expression) { return expression == nullptr ? 0 : expression->depth; }
int depth_of(const std::vector<ExpressionPtr>& expressions) {
  int depth = 0;
  for (const ExpressionPtr& expression : expressions) depth = std::max(depth, depth_of(expression));
  return depth;
}
int depth_of(const CallArguments& arguments) {
  int depth = depth_of(arguments.positional);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, depth_of(value));
  return depth;
}

class Parser {
 public:
  explicit Parser(const Text& source) : tokens_(cut_template(source)) {}

  Body parse() { return parse_body({}); }

 private:
  // Counts levels of recursion, which a file must not be able to drive without end.
  struct NestingGuard {
    explicit NestingGuard(Parser& parser) : levels(parser.nesting_) {
      if (++levels > kMaxNesting) fail_at(parser.token().line, "more than ", std::to_string(kMaxNesting), " levels");
    }
    ~NestingGuard() { --levels; }
    NestingGuard(const NestingGuard&) = delete;
    NestingGuard& operator=(const NestingGuard&) = delete;
    int& levels;
  };

  // ---- tokens ----

  const Token& token() const { return tokens_[place_]; }
  const Token& next_token() const { return tokens_[std::min(place_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[place_ < tokens_.size() - 1 ? place_++ : place_]; }
  static bool is(const Token& token, TokenKind kind, TextView text) { return token.kind == kind && token.text == text; }
  bool at_operator(TextView text) const { return is(token(), TokenKind::kOperator, text); }
  bool at_name(TextView text) const { return is(token(), TokenKind::kName, text); }
  bool skip_operator(TextView text) {
    const bool found = at_operator(text);
    if (found) take();
    return found;
  }
  bool skip_name(TextView text) {
    const bool found = at_name(text);
    if (found) take();
    return found;
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    std::string found = "the end of the template";
    if (token().kind == TokenKind::kBlockEnd || token().kind == TokenKind::kOutputEnd) {
      found = "the end of the tag";
    } else if (token().kind != TokenKind::kEnd) {
      found = "'" + encode(token().text) + "'";
    }
    fail_at(token().line, "expected ", expected, ", but found ", found);
  }
  void expect_operator(TextView text) {
    if (!skip_operator(text)) unexpected("'" + encode(text) + "'");
  }
  void expect_name(TextView text) {
    if (!skip_name(text)) unexpected("'" + encode(text) + "'");
  }
  std::string expect_identifier(std::string_view what) {
    if (token().kind != TokenKind::kName) unexpected(what);
    return encode(take().text);
  }
  void expect_block_end() {
    if (token().kind != TokenKind::kBlockEnd) unexpected("the end of the tag");
    take();
  }

  // ---- statements ----

  // Up to a block tag of one of `ends`, whose name is left as the current token; or to the template's end.
  Body parse_body(std::initializer_list<TextView> ends) {
    const NestingGuard guard(*this);
    Body body;
    while (true) {
      const int line = token().line;
      switch (token().kind) {
        case TokenKind::kEnd:
          if (ends.size() > 0) unexpected("{% " + encode(*(ends.end() - 1)) + " %}");
          return body;
        case TokenKind::kData:
          body.push_back({Data{take().text}, line});
          break;
        case TokenKind::kOutputBegin: {
          take();
          ExpressionPtr value = parse_tuple_or_expression();
          if (token().kind != TokenKind::kOutputEnd) unexpected("'}}'");
          take();
          body.push_back({Output{std::move(value)}, line});
          break;
        }
        default: {
          take();  // {%
          const bool ends_here = std::ranges::any_of(ends, [&](TextView name) { return at_name(name); });
          if (ends_here) return body;
          parse_block(body, line);
        }
      }
    }
  }

  void parse_block(Body& body, int line) {
    const std::string name = expect_identifier("the name of a block");
    if (name == "if") {
      body.push_back({parse_if(), line});
    } else if (name == "for") {
      body.push_back({parse_for(), line});
    } else if (name == "set") {
      body.push_back({parse_set(), line});
    } else if (name == "macro") {
      body.push_back({parse_macro(line), line});
    } else if (name == "generation") {
      expect_block_end();
      Body inside = parse_body({U"endgeneration"});
      take();
      expect_block_end();
      body.push_back({Scoped{std::move(inside)}, line});
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(line, "{% ", name, " %} outside of a loop");
      expect_block_end();
      if (name == "break") {
        body.push_back({Break{}, line});
      } else {
        body.push_back({Continue{}, line});
      }
    } else {
      fail_at(line, "the block {% ", name, " %} is not supported here");
    }
  }

  If parse_if() {
    If result;
    while (true) {
      ExpressionPtr condition = parse_tuple_or_expression();
      expect_block_end();
      Body body = parse_body({U"elif", U"else", U"endif"});
      result.branches.emplace_back(std::move(condition), std::move(body));
      if (!skip_name(U"elif")) break;
    }
    if (skip_name(U"else")) {
      expect_block_end();
      result.otherwise = parse_body({U"endif"});
    }
    take();
    expect_block_end();
    return result;
  }

  // "a", "a, b" or "(a, b)".
  std::vector<std::string> parse_targets() {
    const bool bracket = skip_operator(U"(");
    std::vector<std::string> names = {expect_identifier("the name of a variable")};
    while (skip_operator(U",")) {
      if (token().kind != TokenKind::kName || at_name(U"in")) break;
      names.push_back(expect_identifier("the name of a variable"));
    }
    if (bracket) expect_operator(U")");
    return names;
  }

  For parse_for() {
    For result;
    result.targets = parse_targets();
    expect_name(U"in");
    result.items = parse_tuple_or_expression(/*conditional=*/false);
    if (skip_name(U"if")) result.condition = parse_expression();
    if (at_name(U"recursive")) fail_at(token().line, "a recursive loop is not supported");
    expect_block_end();
    ++loops_;
    result.body = parse_body({U"else", U"endfor"});
    --loops_;
    if (skip_name(U"else")) {
      expect_block_end();
      result.otherwise = parse_body({U"endfor"});
    }
    take();
    expect_block_end();
    return result;
  }

  Set parse_set() {
    Set result;
    result.names = parse_targets();
    if (result.names.size() == 1 && skip_operator(U".")) {
      result.attribute = expect_identifier("the name of an attribute");
    }
    if (skip_operator(U"=")) {
      result.value = parse_tuple_or_expression();
      expect_block_end();
      return result;
    }
    if (result.names.size() > 1 || token().kind != TokenKind::kBlockEnd) unexpected("'='");
    expect_block_end();
    result.body = parse_body({U"endset"});
    take();
    expect_block_end();
    return result;
  }

  MacroDefinition parse_macro(int line) {
    if (loops_ > 0 || in_macro_) fail_at(line, "a macro inside of a loop or a macro is not supported");
    auto macro = std::make_shared<Macro>();
    macro->name = expect_identifier("the name of the macro");
    expect_operator(U"(");
    while (!at_operator(U")")) {
      if (!macro->parameters.empty()) expect_operator(U",");
      if (at_operator(U")")) break;
      std::string name = expect_identifier("the name of a parameter");
      ExpressionPtr otherwise;
      if (skip_operator(U"=")) otherwise = parse_expression();
      macro->parameters.emplace_back(std::move(name), std::move(otherwise));
    }
    expect_operator(U")");
    expect_block_end();
    in_macro_ = true;
    macro->body = parse_body({U"endmacro"});
    in_macro_ = false;
    take();
    expect_block_end();
    return {std::move(macro)};
  }

  // ---- expressions, the loosest first ----

  template <class Node>
  static ExpressionPtr make(int line, int depth_below, Node&& node) {
    if (depth_below >= kMaxExpressionDepth) fail_at(line, "an expression of too many parts");
    return ExpressionPtr(new Expression{std::forward<Node>(node), line, depth_below + 1});
  }
  static ExpressionPtr make_binary(int line, BinaryOp op, ExpressionPtr left, ExpressionPtr right) {
    const int depth = std::max(depth_of(left), depth_of(right));
    return make(line, depth, Binary{op, std::move(left), std::move(right)});
  }

  // `conditional`: "a if b" belongs to it.
  ExpressionPtr parse_tuple_or_expression(bool conditional = true) {
    const int line = token().line;
    ExpressionPtr first = conditional ? parse_expression() : parse_or();
    if (!at_operator(U",")) return first;
    ListDisplay tuple{.items = {}, .tuple = true};
    tuple.items.push_back(std::move(first));
    while (skip_operator(U",")) {
      const bool over = token().kind == TokenKind::kBlockEnd || token().kind == TokenKind::kOutputEnd ||
                        at_operator(U")") || at_name(U"if");
      if (over) break;
      tuple.items.push_back(conditional ? parse_expression() : parse_or());
    }
    const int depth = depth_of(tuple.items);
    return make(line, depth, std::move(tuple));
  }

  ExpressionPtr parse_expression() {
    const NestingGuard guard(*this);
    ExpressionPtr value = parse_or();
    while (at_name(U"if")) {
      const int line = take().line;
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = skip_name(U"else") ? parse_expression() : nullptr;
      const int depth = std::max({depth_of(value), depth_of(condition), depth_of(otherwise)});
      value = make(line, depth, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
    }
    return value;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (at_name(U"or")) {
      const int line = take().line;
      left = make_binary(line, BinaryOp::kOr, std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (at_name(U"and")) {
      const int line = take().line;
      left = make_binary(line, BinaryOp::kAnd, std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr parse_not() {
    if (!at_name(U"not")) return parse_comparison();
    const NestingGuard guard(*this);
    const int line = take().line;
    ExpressionPtr operand = parse_not();
    const int depth = depth_of(operand);
    return make(line, depth, Unary{UnaryOp::kNot, std::move(operand)});
  }

  std::optional<CompareOp> take_comparison() {
    constexpr std::pair<TextView, CompareOp> kOperators[] = {
        {U"==", CompareOp::kEqual},     {U"!=", CompareOp::kUnequal}, {U"<", CompareOp::kLess},
        {U"<=", CompareOp::kLessEqual}, {U">", CompareOp::kGreater},  {U">=", CompareOp::kGreaterEqual}};
    for (const auto& [name, op] : kOperators) {
      if (skip_operator(name)) return op;
    }
    if (skip_name(U"in")) return CompareOp::kIn;
    if (at_name(U"not") && is(next_token(), TokenKind::kName, U"in")) {
      take();
      take();
      return CompareOp::kNotIn;
    }
    return std::nullopt;
  }

  ExpressionPtr parse_comparison() {
    const int line = token().line;
    Comparison result;
    result.first = parse_sum();
    int depth = depth_of(result.first);
    while (const auto op = take_comparison()) {
      result.rest.emplace_back(*op, parse_sum());
      depth = std::max(depth, depth_of(result.rest.back().second));
    }
    if (result.rest.empty()) return std::move(result.first);
    return make(line, depth, std::move(result));
  }

  // A chain of operators of one rank, from the left; `parse_operand` parses the next tighter rank.
  template <class Operand>
  ExpressionPtr parse_chain(std::initializer_list<std::pair<TextView, BinaryOp>> operators, Operand&& parse_operand) {
    ExpressionPtr left = parse_operand();
    while (true) {
      const auto* op = std::ranges::find_if(operators, [&](const auto& known) { return at_operator(known.first); });
      if (op == operators.end()) return left;
      const int line = take().line;
      left = make_binary(line, op->second, std::move(left), parse_operand());
    }
  }
  ExpressionPtr parse_sum() {
    return parse_chain({{U"+", BinaryOp::kAdd}, {U"-", BinaryOp::kSubtract}}, [&] { return parse_concatenation(); });
  }
  ExpressionPtr parse_concatenation() {
    return parse_chain({{U"~", BinaryOp::kConcatenate}}, [&] { return parse_product(); });
  }
  ExpressionPtr parse_product() {
    return parse_chain({{U"*", BinaryOp::kMultiply},
                        {U"/", BinaryOp::kDivide},
                        {U"//", BinaryOp::kFloorDivide},
                        {U"%", BinaryOp::kModulo}},
                       [&] { return parse_power(); });
  }
  ExpressionPtr parse_power() {
    return parse_chain({{U"**", BinaryOp::kPower}}, [&] { return parse_unary(/*with_filters=*/true); });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const NestingGuard guard(*this);
    const int line = token().line;
    ExpressionPtr value;
    if (at_operator(U"-") || at_operator(U"+")) {
      const UnaryOp op = take().text == U"-" ? UnaryOp::kNegate : UnaryOp::kPlus;
      ExpressionPtr operand = parse_unary(/*with_filters=*/false);
      const int depth = depth_of(operand);
      value = make(line, depth, Unary{op, std::move(operand)});
    } else {
      value = parse_primary();
    }
    value = parse_postfix(std::move(value));
    return with_filters ? parse_filters(std::move(value)) : std::move(value);
  }

  ExpressionPtr parse_primary() {
    const Token first = token();
    switch (first.kind) {
      case TokenKind::kName: {
        take();
        const std::string name = encode(first.text);
        if (name == "true" || name == "True") return make(first.line, 0, Literal{true});
        if (name == "false" || name == "False") return make(first.line, 0, Literal{false});
        if (name == "none" || name == "None") return make(first.line, 0, Literal{None{}});
        for (const char* word : {"and", "or", "not", "in", "is", "if", "else", "elif"}) {
          if (name == word) fail_at(first.line, "expected a value, but found '", name, "'");
        }
        return make(first.line, 0, Variable{name});
      }
      case TokenKind::kString: {
        Text text;
        while (token().kind == TokenKind::kString) text += take().text;
        return make(first.line, 0, Literal{make_text(std::move(text))});
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        take();
        return make(first.line, 0, Literal{number(first)});
      default:
        break;
    }
    if (skip_operator(U"(")) {
      if (skip_operator(U")")) return make(first.line, 0, ListDisplay{.items = {}, .tuple = true});
      ExpressionPtr value = parse_tuple_or_expression();
      expect_operator(U")");
      return value;
    }
    if (skip_operator(U"[")) return parse_list(first.line);
    if (skip_operator(U"{")) return parse_dict(first.line);
    unexpected("a value");
  }

  static Value number(const Token& token) {
    const std::string digits = encode(token.text);
    const char* end = digits.data() + digits.size();
    if (token.kind == TokenKind::kFloat) {
      double real = 0;
      if (std::from_chars(digits.data(), end, real).ec == std::errc()) return real;
    } else {
      int64_t whole = 0;
      if (std::from_chars(digits.data(), end, whole).ec == std::errc()) return whole;
    }
    fail_at(token.line, "the number ", digits, " is too large");
  }

  ExpressionPtr parse_list(int line) {
    ListDisplay list;
    while (!skip_operator(U"]")) {
      if (!list.items.empty()) expect_operator(U",");
      if (skip_operator(U"]")) break;
      list.items.push_back(parse_expression());
    }
    const int depth = depth_of(list.items);
    return make(line, depth, std::move(list));
  }

  ExpressionPtr parse_dict(int line) {
    DictDisplay dict;
    int depth = 0;
    while (!skip_operator(U"}")) {
      if (!dict.items.empty()) expect_operator(U",");
      if (skip_operator(U"}")) break;
      ExpressionPtr key = parse_expression();
      expect_operator(U":");
      ExpressionPtr value = parse_expression();
      depth = std::max({depth, depth_of(key), depth_of(value)});
      dict.items.emplace_back(std::move(key), std::move(value));
    }
    return make(line, depth, std::move(dict));
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
    while (true) {
      const int line = token().line;
      const int depth = depth_of(value);
      if (skip_operator(U".")) {
        if (token().kind == TokenKind::kInteger) {
          ExpressionPtr index = make(line, 0, Literal{number(take())});
          value = make(line, depth, Subscript{std::move(value), std::move(index)});
        } else {
          std::string name = expect_identifier("the name of an attribute");
          value = make(line, depth, Attribute{std::move(value), std::move(name)});
        }
      } else if (skip_operator(U"[")) {
        value = parse_subscript(std::move(value), line);
      } else if (at_operator(U"(")) {
        CallArguments arguments = parse_arguments();
        const int below = std::max(depth, depth_of(arguments));
        value = make(line, below, Call{std::move(value), std::move(arguments)});
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr object, int line) {
    std::vector<ExpressionPtr> parts(3);
    size_t count = 0;
    while (true) {
      if (!at_operator(U":") && !at_operator(U"]")) parts[count] = parse_expression();
      if (count == 2 || !skip_operator(U":")) break;
      ++count;
    }
    expect_operator(U"]");
    const int depth = std::max(depth_of(object), depth_of(parts));
    if (count > 0) {
      return make(line, depth, Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])});
    }
    if (parts[0] == nullptr) fail_at(line, "expected a value in [ ]");
    return make(line, depth, Subscript{std::move(object), std::move(parts[0])});
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_operator(U"(");
    bool first = true;
    while (!skip_operator(U")")) {
      if (!first) expect_operator(U",");
      first = false;
      if (skip_operator(U")")) break;
      if (at_operator(U"*") || at_operator(U"**")) fail_at(token().line, "arguments with * are not supported");
      if (token().kind == TokenKind::kName && is(next_token(), TokenKind::kOperator, U"=")) {
        std::string name = encode(take().text);
        take();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!arguments.named.empty()) fail_at(token().line, "an argument without name after one with a name");
        arguments.positional.push_back(parse_expression());
      }
    }
    return arguments;
  }

  ExpressionPtr parse_filters(ExpressionPtr value) {
    while (true) {
      if (skip_operator(U"|")) {
        value = parse_filter(std::move(value));
      } else if (at_name(U"is")) {
        take();
        value = parse_test(std::move(value));
      } else if (at_operator(U"(")) {
        value = parse_postfix(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr parse_filter(ExpressionPtr input) {
    const int line = token().line;
    std::string name = expect_identifier("the name of a filter");
    if (!is_filter(name)) fail_at(line, "the filter '", name, "' is not supported");
    CallArguments arguments;
    if (at_operator(U"(")) arguments = parse_arguments();
    const int depth = std::max(depth_of(input), depth_of(arguments));
    return make(line, depth, Filter{std::move(input), std::move(name), std::move(arguments)});
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    const int line = token().line;
    const bool negated = skip_name(U"not");
    std::string name = expect_identifier("the name of a test");
    if (!is_test(name)) fail_at(line, "the test '", name, "' is not supported");
    CallArguments arguments;
    if (at_operator(U"(")) {
      arguments = parse_arguments();
    } else if (takes_argument(name)) {
      arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    if (at_name(U"is")) fail_at(line, "a test of a test");
    const int depth = std::max(depth_of(input), depth_of(arguments));
    return make(line, depth, Test{std::move(input), std::move(name), std::move(arguments), negated});
  }

  std::vector<Token> tokens_;
  size_t place_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

Body parse_template(const Text& source) { return Parser(source).parse(); }

}  // namespace nmoe::jinja
