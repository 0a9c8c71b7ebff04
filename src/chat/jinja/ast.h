// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "chat/jinja/value.h"

namespace nmoe::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Literal {
  Value value;
};
struct Variable {
  std::string name;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  bool tuple = false;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Subscript {
  ExpressionPtr object;
  ExpressionPtr key;
};
// object[begin:end:step]; what is left out is null.
struct Slice {
  ExpressionPtr object;
  ExpressionPtr begin, end, step;
};
struct Call {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct Filter {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
struct Test {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
  bool negated = false;
};
enum class UnaryOp { kNot, kNegate, kPlus };
struct Unary {
  UnaryOp op;
  ExpressionPtr operand;
};
enum class BinaryOp { kOr, kAnd, kAdd, kSubtract, kConcatenate, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
struct Binary {
  BinaryOp op;
  ExpressionPtr left, right;
};
enum class CompareOp { kEqual, kUnequal, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
// first op second op third ...: all of them hold, as in Python.
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<CompareOp, ExpressionPtr>> rest;
};
// `otherwise` may be null: then it is undefined.
struct Conditional {
  ExpressionPtr condition, then, otherwise;
};

struct Expression {
  std::variant<Literal, Variable, ListDisplay, DictDisplay, Attribute, Subscript, Slice, Call, Filter, Test, Unary,
               Binary, Comparison, Conditional>
      node;
  int line;
  int depth;  // levels of expressions below, and this one
};

struct Statement;
using Body = std::vector<Statement>;

struct Data {
  Text text;
};
struct Output {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  std::vector<std::string> targets;  // several: each item is taken apart
  ExpressionPtr items;
  ExpressionPtr condition;  // or null
  Body body;
  Body otherwise;
};
// names = value; name.attribute = value, where name is a namespace; or name = what the body prints, where value is
// null.
struct Set {
  std::vector<std::string> names;
  std::string attribute;
  ExpressionPtr value;
  Body body;
};
// A block whose assignments stay inside: {% generation %}.
struct Scoped {
  Body body;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults, or null
  Body body;
};
struct MacroDefinition {
  std::shared_ptr<const Macro> macro;
};
struct Break {};
struct Continue {};

struct Statement {
  std::variant<Data, Output, If, For, Set, Scoped, MacroDefinition, Break, Continue> node;
  int line;
};

}  // namespace nmoe::jinja
