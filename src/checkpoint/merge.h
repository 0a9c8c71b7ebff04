// One checkpoint from several: the weighted mean of their weights, as it takes the place of a decay of the learning
// rate (WSM, arXiv 2507.17634; averages of late checkpoints, arXiv 2306.03241), or joins runs from the same start.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace nmoe {

// With n checkpoints, the k-th of them, from 1, has the weight
enum class MergeWeights {
  kUniform,  // 1 / n; of n checkpoints of one run, a step between checkpoints k and k + 1 counts 1 - k / n: as with a
             // rate that falls linearly
  kLinear,   // k / (1 + ... + n); there it counts 1 - k (k + 1) / (n (n + 1)): a rate that falls slowly at first
};

struct MergeOptions {
  std::vector<fs::path> checkpoints;  // two or more, or folders of them, for the latest of each; in this order
  fs::path out;                       // folder to write to, as step_<the largest of their steps>
  MergeWeights weights = MergeWeights::kUniform;
  int num_threads = 0;  // 0: one per available CPU
  std::string version, commit;
};

struct MergeReport {
  struct Part {
    fs::path checkpoint;  // of a folder, the one that was read
    double weight = 0.0;  // they add up to 1
  };
  fs::path checkpoint;
  std::vector<Part> parts = {};  // in the order of the options
  int64_t num_tensors = 0;
};

// Writes a checkpoint without an optimizer's state, in which each element of each tensor of the model is
//   (w_1 x_1 + w_2 x_2 + ... + w_n x_n) / (w_1 + ... + w_n)
// with w_k = 1 or k, in fp64, added from left to right in the checkpoints' order, then rounded to fp32 and to what the
// tensors are stored as: equal checkpoints give the same bits again. Selection biases of routers are among them. What
// else a checkpoint has (tokenizer, files of an imported model, configuration) is of the last one with the most steps.
// Every byte that is read is verified.
//
// Errors: (usage) fewer than two; another model, in what its weights mean (keys of [model] but those of training,
// config/training_keys.h); other tensors or dtypes; another tokenizer; a folder that is a checkpoint, or holds one
// already; (runtime) where something is missing or damaged. Nothing is left behind then.
MergeReport merge_checkpoints(const MergeOptions& options);

}  // namespace nmoe
