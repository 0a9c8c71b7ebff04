// What one call of an operation is made with: tensors with random contents in an arena.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "model/spec/part_kinds.h"
#include "model/weight_formats.h"
#include "train/step/engine.h"

namespace nmoe {

// Of a part by itself.
inline std::vector<WeightSpec> weights_of(const LayerPart& part) {
  WeightList list(part.config);
  describe_part(part, list);
  return list.take();
}

class Workbench {
 public:
  // format: what layers' products round their operands to, but for gradients of weights.
  Workbench(Storage& storage, OperandFormat format)
      : ops_(storage.device().ops()), arena_(storage[ArenaKind::kActivations]), format_(format) {}

  Ops& ops() { return ops_; }
  Arena& arena() { return arena_; }

  Tensor empty(Shape shape) { return arena_.allocate(ops_.compute_dtype(), shape); }
  Tensor empty_stat(Shape shape) { return arena_.allocate(ops_.stat_dtype(), shape); }
  Tensor empty_i32(Shape shape) { return arena_.allocate(DType::kI32, shape); }
  // Normal numbers of this standard deviation.
  Tensor stat(Shape shape, double std = 1.0) {
    const Tensor x = empty_stat(shape);
    ops_.fill_truncated_normal({x, {.seed = 1, .stream = ++num_streams_, .std = std, .truncation = 5.0}});
    return x;
  }
  Tensor act(Shape shape, double std = 1.0) {
    if (ops_.compute_dtype() == ops_.stat_dtype()) return stat(shape, std);
    const Tensor x = empty(shape);
    const ArenaScope scope(arena_);
    const Tensor master = stat(shape, std), low = arena_.allocate(DType::kI16, shape);
    ops_.split_weight({master, x, low});
    return x;
  }
  Tensor i32(const std::vector<int32_t>& values) {
    const Tensor x = empty_i32({static_cast<int64_t>(values.size())});
    ops_.device().upload(x, values.data());
    return x;
  }
  // 0, 1, 2 and so on.
  Tensor numbers(int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 0);
    return i32(values);
  }
  OperandFormat format() const { return format_; }
  std::shared_ptr<Weight> weight_of(Tensor w, OperandFormat format) {
    const auto weight = std::make_shared<Weight>(WeightSpec{.name = "bench", .shape = w.shape()}, w.shape());
    weight->value = w;
    weight->copies.format = format;
    allocate_weight_codes(*weight, ops_, arena_);
    return weight;
  }
  // Of a product with the weight w, whose codes are made before the call where the device wants some.
  OperandRounding rounding(Tensor w) { return weight_of(w, format_)->rounding(ops_); }
  // 0 ... limit - 1, in no order.
  Tensor random_ids(int64_t count, int64_t limit) {
    const Philox random(1, ++num_streams_);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<int32_t>(random.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(limit)));
    }
    return i32(ids);
  }
  Tensor f64(const std::vector<double>& values) {
    const Tensor x = arena_.allocate(DType::kF64, {static_cast<int64_t>(values.size())});
    ops_.device().upload(x, values.data());
    return x;
  }

 private:
  Ops& ops_;
  Arena& arena_;
  OperandFormat format_;
  uint64_t num_streams_ = 0;
};

}  // namespace nmoe
