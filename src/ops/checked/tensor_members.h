// Every tensor of an operation's arguments: structs are taken apart member by member, vectors one by one.
#pragma once

#include <type_traits>
#include <vector>

#include "ops/checked/members.h"
#include "ops/contracts/linear.h"
#include "tensor/tensor.h"

namespace nmoe::checked {

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
    with_members(value, all);
  }
}

}  // namespace nmoe::checked
