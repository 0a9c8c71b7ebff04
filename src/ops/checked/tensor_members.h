// Every tensor of an operation's arguments: structs are taken apart member by member, vectors one by one.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "ops/contracts/linear.h"
#include "tensor/tensor.h"

namespace nmoe::checked {

struct AnyMember {
  template <class T>
  operator T() const;
};
// With how many values T can be initialised.
template <class T, class... Values>
constexpr size_t num_members() {
  if constexpr (requires { T{Values{}..., AnyMember{}}; }) {
    return num_members<T, Values..., AnyMember>();
  } else {
    return sizeof...(Values);
  }
}

template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;

// Calls fn(Tensor&) for each tensor, in the order of members.
template <class T, class Fn>
void for_each_tensor(T& value, const Fn& fn) {
  const auto all = [&fn](auto&... members) { (for_each_tensor(members, fn), ...); };
  if constexpr (std::is_same_v<T, Tensor>) {
    fn(value);
  } else if constexpr (std::is_same_v<T, OperandRows>) {
    all(value.source, value.index, value.row_of);
  } else if constexpr (kIsVector<T>) {
    for (auto& one : value) for_each_tensor(one, fn);
  } else if constexpr (std::is_aggregate_v<T> && std::is_class_v<T>) {
    constexpr size_t kCount = num_members<T>();
    static_assert(kCount <= 15, "one more line below");
#define NMOE_MEMBERS(count, ...)     \
  if constexpr (kCount == (count)) { \
    auto& [__VA_ARGS__] = value;     \
    all(__VA_ARGS__);                \
  }
    NMOE_MEMBERS(1, a)
    NMOE_MEMBERS(2, a, b)
    NMOE_MEMBERS(3, a, b, c)
    NMOE_MEMBERS(4, a, b, c, d)
    NMOE_MEMBERS(5, a, b, c, d, e)
    NMOE_MEMBERS(6, a, b, c, d, e, f)
    NMOE_MEMBERS(7, a, b, c, d, e, f, g)
    NMOE_MEMBERS(8, a, b, c, d, e, f, g, h)
    NMOE_MEMBERS(9, a, b, c, d, e, f, g, h, i)
    NMOE_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
    NMOE_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
    NMOE_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
    NMOE_MEMBERS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
    NMOE_MEMBERS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
    NMOE_MEMBERS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
#undef NMOE_MEMBERS
  }
}

}  // namespace nmoe::checked
