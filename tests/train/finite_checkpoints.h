// Whether what checkpoints hold is finite.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "checkpoint/reader.h"
#include "support/tensors.h"
#include "tensor/convert.h"

namespace nmoe::test {

// Fails at the first weight, bias or moment that is not finite in any checkpoint of a run's folder, and without one.
inline ::testing::AssertionResult checkpoints_are_finite(const fs::path& folder) {
  int64_t found = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    ++found;
    TensorPool pool;
    const CheckpointReader checkpoint = CheckpointReader::open(entry.path());
    for (const auto tensors : {checkpoint.model(), checkpoint.optimizer()}) {
      for (const ManifestTensor& tensor : tensors) {
        if (!is_weight_dtype(tensor.dtype)) continue;
        const Tensor stored = pool.zeros(tensor.dtype, tensor.shape);
        checkpoint.load(tensor.name, stored);
        std::vector<float> values(static_cast<size_t>(stored.num_elements()));
        widen(tensor.dtype, stored.raw(), values.data(), values.size());
        for (const float value : values) {
          if (!std::isfinite(value)) return ::testing::AssertionFailure() << entry.path() << ": " << tensor.name;
        }
      }
    }
  }
  if (found > 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no checkpoint in " << folder;
}

}  // namespace nmoe::test
