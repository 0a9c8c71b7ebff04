// Whether what generates is what trains: tokens are sampled as generation does it, in batches of several sizes, and
// then the forward pass of training runs over the same tokens with the same weights. Compared are the log-probability
// of each sampled token, at temperature 1 and before truncation, and every choice of a router.
//
// Generation's side is made as uneven as requests make it: prompts of many lengths are read in chunks of different
// sizes beside the tokens of others, and of some prompts the beginning is not read but copied from another sequence's
// states. On training's side, sequences are documents that are packed into windows one behind the other, on CUDA each
// at a multiple of kDocumentAlignment (ops/contracts/attention.h), as data.align_documents has them. The passes there
// are those of a step on one GPU: in its arithmetic, with its losses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "model/intermediate.h"

namespace nmoe {

struct GenerationParityOptions {
  std::string device = "cpu";
  int num_threads = 0;                             // of the CPU; 0: one per available CPU
  int64_t tokens = 4096;                           // sampled in each of `batches`, or a few more
  std::vector<int64_t> batches = {1, 7, 64, 256};  // sequences at a time
  // Of the sequences with their prompts, at least 2; they are shorter where the context is (infer/cached_model.h,
  // context_of).
  int64_t longest = 640;
  uint64_t seed = 1;                               // of prompts and samples
  std::optional<std::string> prompt_text;          // which prompts are cut from; random ids without one
  std::optional<GenerationArithmetic> arithmetic;  // in place of the configuration's generation.arithmetic
  // Training's documents begin at multiples of so many tokens; 0: of kDocumentAlignment on CUDA, anywhere on the CPU.
  int64_t align_documents = 0;
};

// The first value, in the order of execution, that is not the same on both sides, in its first row.
struct FirstDifference {
  Intermediate what = Intermediate::kLosses;
  int64_t layer = kNoLayer;
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t rows = 0;  // in how many it differs
};

// One size of batch.
struct BatchParity {
  int64_t batch = 0;
  int64_t tokens = 0;        // sampled and compared
  int64_t other_tokens = 0;  // that are others than in the first of the batches
  int64_t differing = 0;     // whose log-probability differs
  double largest = 0.0;      // difference of log-probabilities; infinite where one is a NaN
  int64_t choices = 0;       // of experts that were compared, of all tokens that generation ran
  int64_t other_choices = 0;
  std::optional<FirstDifference> first;  // of values that both sides have

  bool equal() const { return other_tokens == 0 && differing == 0 && other_choices == 0 && !first; }
};

// Of a checkpoint, or of the latest in a folder of them. Errors: CheckpointReader's; usage, where the run trains in a
// low precision, options are out of range or the machine has too little memory.
std::vector<BatchParity> compare_generation(const std::filesystem::path& checkpoint,
                                            const GenerationParityOptions& options);
// Of random weights by config.run.seed. config.model.vocab_size is set.
std::vector<BatchParity> compare_generation(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                            const GenerationParityOptions& options);

}  // namespace nmoe
