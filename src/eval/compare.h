// Two evaluations of the same items, compared item by item: the items that two models answer differently tell which is
// better, even where their accuracies by themselves say little.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe {

struct TaskComparison {
  std::string task;
  int64_t items = 0;   // that both have
  int64_t only_a = 0;  // right in a alone
  int64_t only_b = 0;
  double value_a = 0.0;  // accuracy, or bits per byte of documents
  double value_b = 0.0;
  double difference = 0.0;      // b - a
  double standard_error = 0.0;  // of the difference, paired
  // Of a difference of at least this size, if there were none: McNemar's exact test (two-sided), or for documents, and
  // where there are several tasks, a normal distribution with that standard error.
  double p_value = 1.0;
  bool has_accuracy = true;
};

struct EvalComparison {
  std::vector<TaskComparison> tasks;  // in a's order
  std::vector<TaskComparison> means;  // of centred accuracies, where both reports have them
};

// `a` and `b` are folders that n eval --out wrote. Error (usage) where one has no finished evaluation, where they have
// no task in common, or not the same items of one; (runtime) where a file cannot be read or is damaged.
EvalComparison compare_evaluations(const fs::path& a, const fs::path& b);

// The probability of at most min(a, b) or at least max(a, b) heads in a + b tosses of a fair coin.
double mcnemar_p(int64_t a, int64_t b);

}  // namespace nmoe
