#include "chat/jinja/renderer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "chat/jinja/builtins.h"

namespace nmoe::jinja {
namespace {

constexpr int kMaxCalls = 20;  // macros within macros

// The variables of a block, and the block around it.
struct Scope {
  Scope* parent = nullptr;
  Context variables = {};
};

enum class Flow { kNext, kBreak, kContinue };

Value arithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo:
      if (b == 0) fail("division by zero");
      if (b == -1) {  // INT64_MIN / -1 traps
        overflow = op == BinaryOp::kFloorDivide && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      result = op == BinaryOp::kModulo ? a % b : a / b;
      if (a % b != 0 && (a % b < 0) != (b < 0)) result += op == BinaryOp::kModulo ? b : -1;  // down, as Python rounds
      break;
    default:  // kPower, of b >= 0
      result = 1;
      for (int64_t i = 0; i < b && !overflow && a != 1; ++i) {
        if (a == 0 || (a == -1 && i >= 2)) break;
        overflow = __builtin_mul_overflow(result, a, &result);
      }
      if (a == 0 && b > 0) result = 0;
      if (a == -1) result = b % 2 == 0 ? 1 : -1;
  }
  if (overflow) fail("an integer of more than 64 bits");
  return result;
}

Value arithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSubtract:
      return a - b;
    case BinaryOp::kMultiply:
      return a * b;
    case BinaryOp::kPower:
      return std::pow(a, b);
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == BinaryOp::kDivide) return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return op == BinaryOp::kModulo ? rest : std::floor((a - rest) / b + 0.5);
}

Value repeat(const Value& what, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const Text* text = as_text(what);
  const auto limit = static_cast<int64_t>(text != nullptr ? kMaxText : kMaxList);
  if (times > 0 && length(what) > limit / times) fail("a repetition that is too long");
  if (text != nullptr) {
    Text result;
    for (int64_t i = 0; i < times; ++i) result += *text;
    return make_text(std::move(result));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < times; ++i) {
    items.insert(items.end(), as_list(what)->items.begin(), as_list(what)->items.end());
  }
  return make_list(std::move(items), as_list(what)->tuple);
}

Value operate(BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kConcatenate) return make_text(to_text(a) + to_text(b));
  for (const Value* value : {&a, &b}) {
    if (const auto* undefined = std::get_if<Undefined>(value)) fail("'", undefined->name, "' is undefined");
  }
  if (is_number(a) && is_number(b)) {
    const bool real =
        !is_whole(a) || !is_whole(b) || op == BinaryOp::kDivide || (op == BinaryOp::kPower && as_whole(b) < 0);
    return real ? arithmetic(op, as_real(a), as_real(b)) : arithmetic(op, as_whole(a), as_whole(b));
  }
  const List* list_a = as_list(a);
  const List* list_b = as_list(b);
  if (op == BinaryOp::kAdd && as_text(a) != nullptr && as_text(b) != nullptr)
    return make_text(*as_text(a) + *as_text(b));
  if (op == BinaryOp::kAdd && list_a != nullptr && list_b != nullptr && list_a->tuple == list_b->tuple) {
    std::vector<Value> items = list_a->items;
    items.insert(items.end(), list_b->items.begin(), list_b->items.end());
    return make_list(std::move(items), list_a->tuple);
  }
  if (op == BinaryOp::kMultiply) {
    if ((as_text(a) != nullptr || list_a != nullptr) && is_whole(b)) return repeat(a, as_whole(b));
    if ((as_text(b) != nullptr || list_b != nullptr) && is_whole(a)) return repeat(b, as_whole(a));
  }
  if (op == BinaryOp::kModulo && as_text(a) != nullptr) fail("formatting strings with % is not supported");
  fail("a ", type_name(a), " and a ", type_name(b), " cannot be combined so");
}

bool holds(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEqual:
      return equal(a, b);
    case CompareOp::kUnequal:
      return !equal(a, b);
    case CompareOp::kIn:
      return contains(b, a);
    case CompareOp::kNotIn:
      return !contains(b, a);
    case CompareOp::kLess:
      return compare(a, b) < 0;
    case CompareOp::kLessEqual:
      return compare(a, b) <= 0;
    case CompareOp::kGreater:
      return compare(a, b) > 0;
    case CompareOp::kGreaterEqual:
      break;
  }
  return compare(a, b) >= 0;
}

// object[begin:end:step], with Python's rules for negative and large bounds.
Value slice(const Value& object, std::optional<int64_t> begin, std::optional<int64_t> end, int64_t step) {
  if (is_undefined(object)) fail("a slice of what is undefined");
  const Text* text = as_text(object);
  if (text == nullptr && as_list(object) == nullptr) fail("a ", type_name(object), " has no slices");
  if (step == 0) fail("a slice with a step of 0");
  const int64_t count = length(object);
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? count : count - 1;
  const auto bound = [&](std::optional<int64_t> place, int64_t otherwise) {
    if (!place) return otherwise;
    return std::clamp(*place < 0 ? std::max(*place, -count - 1) + count : *place, lowest, highest);
  };
  const int64_t first = bound(begin, step > 0 ? lowest : highest);
  const int64_t last = bound(end, step > 0 ? highest : lowest);
  step = std::clamp(step, -count - 1, count + 1);
  Text part;
  std::vector<Value> items;
  for (int64_t i = first; step > 0 ? i < last : i > last; i += step) {
    if (text != nullptr) {
      part += (*text)[static_cast<size_t>(i)];
    } else {
      items.push_back(as_list(object)->items[static_cast<size_t>(i)]);
    }
  }
  return text != nullptr ? make_text(std::move(part)) : make_list(std::move(items), as_list(object)->tuple);
}

class Renderer {
 public:
  Renderer(const Context& context, const std::tm& now) : context_(context), now_(now) {}

  Text render(const Body& body) {
    run(body);
    return std::move(output_);
  }

 private:
  // ---- statements ----

  Flow run(const Body& body) {
    for (const Statement& statement : body) {
      const Flow flow = at_line(
          statement.line, [&] { return std::visit([&](const auto& node) { return execute(node); }, statement.node); });
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // Gives failures their line, and is paid for.
  template <class Action>
  std::invoke_result_t<Action> at_line(int line, Action&& action) {
    try {
      charge(kStepUnits);
      return action();
    } catch (Failure& failure) {
      if (failure.line == 0) failure.line = line;
      throw;
    }
  }

  // Runs with variables of its own.
  template <class Action>
  std::invoke_result_t<Action> scoped(Scope* parent, Action&& action) {
    Scope inner{.parent = parent};
    struct Restore {
      Scope*& place;
      Scope* before;
      ~Restore() { place = before; }
    } restore{scope_, scope_};
    scope_ = &inner;
    return action();
  }

  // What `action` prints.
  template <class Action>
  Text captured(Action&& action) {
    Text outside = std::move(output_);
    output_.clear();
    action();
    std::swap(output_, outside);
    return outside;
  }

  void print(TextView text) {
    if (output_.size() + text.size() > kMaxText) fail("more than ", std::to_string(kMaxText), " characters of output");
    charge(static_cast<int64_t>(text.size()));
    output_ += text;
  }

  Flow execute(const Data& data) {
    print(data.text);
    return Flow::kNext;
  }
  Flow execute(const Output& output) {
    print(to_text(evaluate(output.value)));
    return Flow::kNext;
  }
  Flow execute(const If& node) {
    for (const auto& [condition, body] : node.branches) {
      if (truth(evaluate(condition))) return run(body);
    }
    return run(node.otherwise);
  }
  Flow execute(const Scoped& node) {
    return scoped(scope_, [&] { return run(node.body); });
  }
  Flow execute(const MacroDefinition& node) {
    set(node.macro->name, node.macro);
    return Flow::kNext;
  }
  Flow execute(const Break&) { return Flow::kBreak; }
  Flow execute(const Continue&) { return Flow::kContinue; }

  Flow execute(const For& node) {
    std::vector<Value> all = iterate(evaluate(node.items));
    auto list = std::make_shared<List>();
    if (node.condition == nullptr) {
      list->items = std::move(all);
    } else {
      for (Value& item : all) {
        const bool wanted = scoped(scope_, [&] {
          assign(node.targets, item);
          return truth(evaluate(node.condition));
        });
        if (wanted) list->items.push_back(std::move(item));
      }
    }
    if (list->items.empty()) return scoped(scope_, [&] { return run(node.otherwise); });
    ++loop_depth_;
    for (size_t i = 0; i < list->items.size(); ++i) {
      const Flow flow = scoped(scope_, [&] {
        set("loop", std::make_shared<const Loop>(Loop{list, static_cast<int64_t>(i), loop_depth_}));
        assign(node.targets, list->items[i]);
        return run(node.body);
      });
      if (flow == Flow::kBreak) break;
    }
    --loop_depth_;
    return Flow::kNext;
  }

  Flow execute(const Set& node) {
    Value value;
    if (node.value != nullptr) {
      value = evaluate(node.value);
    } else {
      Flow flow = Flow::kNext;
      value = make_text(captured([&] { flow = scoped(scope_, [&] { return run(node.body); }); }));
      if (flow != Flow::kNext) return flow;
    }
    if (node.attribute.empty()) {
      assign(node.names, value);
      return Flow::kNext;
    }
    const Value object = lookup(node.names[0]);
    const auto* space = std::get_if<std::shared_ptr<Namespace>>(&object);
    if (space == nullptr) fail("'", node.names[0], "' is not a namespace, so its attributes cannot be set");
    make_list({value});  // checks what it may hold
    auto& items = (*space)->items;
    const auto found = std::ranges::find(items, node.attribute, &std::pair<std::string, Value>::first);
    if (found != items.end()) {
      found->second = std::move(value);
    } else {
      items.emplace_back(node.attribute, std::move(value));
    }
    return Flow::kNext;
  }

  void set(const std::string& name, Value value) { scope_->variables.insert_or_assign(name, std::move(value)); }

  void assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return set(names[0], value);
    const std::vector<Value> items = iterate(value);
    if (items.size() != names.size()) {
      fail(std::to_string(items.size()), " values for ", std::to_string(names.size()), " variables");
    }
    for (size_t i = 0; i < names.size(); ++i) set(names[i], items[i]);
  }

  Value lookup(const std::string& name) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return found->second;
    }
    const auto found = context_.find(name);
    if (found != context_.end()) return found->second;
    if (is_function(name)) return std::make_shared<const Function>(Function{name});
    return Undefined{name};
  }

  // ---- expressions ----

  Value evaluate(const ExpressionPtr& expression) {
    return at_line(expression->line,
                   [&] { return std::visit([&](const auto& node) { return evaluate(node); }, expression->node); });
  }

  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& expressions) {
    std::vector<Value> values;
    values.reserve(expressions.size());
    for (const ExpressionPtr& expression : expressions) values.push_back(evaluate(expression));
    return values;
  }
  Arguments evaluate_arguments(const CallArguments& arguments) {
    Arguments values;
    values.positional = evaluate_all(arguments.positional);
    for (const auto& [name, value] : arguments.named) values.named.emplace_back(name, evaluate(value));
    return values;
  }

  Value evaluate(const Literal& node) { return node.value; }
  Value evaluate(const Variable& node) { return lookup(node.name); }
  Value evaluate(const ListDisplay& node) { return make_list(evaluate_all(node.items), node.tuple); }
  Value evaluate(const DictDisplay& node) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, value] : node.items) items.emplace_back(evaluate(key), evaluate(value));
    return make_dict(std::move(items));
  }
  Value evaluate(const Attribute& node) { return get_attribute(evaluate(node.object), node.name); }
  Value evaluate(const Subscript& node) {
    const Value object = evaluate(node.object);
    return get_item(object, evaluate(node.key));
  }
  Value evaluate(const Slice& node) {
    const auto bound = [&](const ExpressionPtr& expression) -> std::optional<int64_t> {
      if (expression == nullptr) return std::nullopt;
      const Value value = evaluate(expression);
      if (is_none(value)) return std::nullopt;
      if (!is_whole(value)) fail("a slice needs integers, not a ", type_name(value));
      return as_whole(value);
    };
    const Value object = evaluate(node.object);
    const auto begin = bound(node.begin), end = bound(node.end), step = bound(node.step);
    return slice(object, begin, end, step.value_or(1));
  }
  Value evaluate(const Filter& node) {
    const Value input = evaluate(node.input);
    return apply_filter(node.name, input, evaluate_arguments(node.arguments));
  }
  Value evaluate(const Test& node) {
    const Value input = evaluate(node.input);
    return apply_test(node.name, input, evaluate_arguments(node.arguments)) != node.negated;
  }
  Value evaluate(const Unary& node) {
    const Value operand = evaluate(node.operand);
    if (node.op == UnaryOp::kNot) return !truth(operand);
    if (!is_number(operand)) fail("a sign before a ", type_name(operand));
    if (!is_whole(operand)) return node.op == UnaryOp::kNegate ? -as_real(operand) : as_real(operand);
    return node.op == UnaryOp::kNegate ? arithmetic(BinaryOp::kSubtract, int64_t{0}, as_whole(operand))
                                       : Value(as_whole(operand));
  }
  Value evaluate(const Binary& node) {
    Value left = evaluate(node.left);
    if (node.op == BinaryOp::kOr) return truth(left) ? left : evaluate(node.right);
    if (node.op == BinaryOp::kAnd) return truth(left) ? evaluate(node.right) : left;
    return operate(node.op, left, evaluate(node.right));
  }
  Value evaluate(const Comparison& node) {
    Value left = evaluate(node.first);
    for (const auto& [op, operand] : node.rest) {
      Value right = evaluate(operand);
      if (!holds(op, left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  Value evaluate(const Conditional& node) {
    if (truth(evaluate(node.condition))) return evaluate(node.then);
    return node.otherwise == nullptr ? Value(Undefined{"the other branch of an if without else"})
                                     : evaluate(node.otherwise);
  }

  Value evaluate(const Call& node) {
    const Value callee = evaluate(node.callee);
    const Arguments arguments = evaluate_arguments(node.arguments);
    if (const auto* method = std::get_if<std::shared_ptr<const Method>>(&callee)) {
      return call_method((*method)->object, (*method)->name, arguments);
    }
    if (const auto* function = std::get_if<std::shared_ptr<const Function>>(&callee)) {
      return call_function((*function)->name, arguments, now_);
    }
    if (const auto* macro = std::get_if<std::shared_ptr<const Macro>>(&callee)) return call_macro(**macro, arguments);
    if (const auto* undefined = std::get_if<Undefined>(&callee)) fail("'", undefined->name, "' is undefined");
    fail("a ", type_name(callee), " cannot be called");
  }

  // A macro is defined at the outermost level, and sees the variables of that level.
  Value call_macro(const Macro& macro, const Arguments& arguments) {
    if (++calls_ > kMaxCalls) fail("macros call each other without end");
    std::vector<std::string_view> names;
    for (const auto& [name, otherwise] : macro.parameters) names.emplace_back(name);
    const Bound bound("the macro " + macro.name, arguments, std::move(names));
    Text text = scoped(&outermost_, [&] {
      for (size_t i = 0; i < macro.parameters.size(); ++i) {
        const auto& [name, otherwise] = macro.parameters[i];
        set(name, bound.has(i) ? bound.value(i) : otherwise != nullptr ? evaluate(otherwise) : Value(Undefined{name}));
      }
      return captured([&] { run(macro.body); });
    });
    --calls_;
    return make_text(std::move(text));
  }

  const Context& context_;
  const std::tm& now_;
  Scope outermost_;
  Scope* scope_ = &outermost_;
  Text output_;
  int64_t loop_depth_ = 0;
  int calls_ = 0;
};

}  // namespace

Text render(const Body& body, const Context& context, const std::tm& now) {
  return Renderer(context, now).render(body);
}

}  // namespace nmoe::jinja
