// How much sooner texts are written with guesses (infer/draft), by the measures of SPEED-Bench
// (bench/speculation_measures.h), and that they are the same texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/speculation_measures.h"
#include "config/config.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/draft/drafter.h"
#include "infer/sampler.h"
#include "ops/device.h"

namespace nmoe {

struct SpeculateBenchOptions {
  std::string device = "cpu";  // InferenceOptions, as the next two
  int num_threads = 0;
  int64_t cache_positions = 0;
  int64_t context = 0;  // 0: as many positions as the prompts and their answers need
  DraftOptions draft = {.kind = DraftKind::kNgram};
  SamplingOptions sampling = {.temperature = 0.0};  // answers have seeds of their own, from this one on
  // "qualitative", "throughput" (all tiers, and random tokens beside them) or a file: bench/speculation_prompts.h.
  std::string prompts = "qualitative";
  std::vector<int64_t> input_tokens = {1024};  // of throughput, each measured
  // Prompts of each category; 0: all of a set, and of throughput as many as are written at a time, at least 4.
  int64_t limit = 0;
  std::vector<int64_t> batches = {1};  // texts at a time, each measured
  int64_t tokens = 256;                // of an answer, at most
  int64_t runs = 3;                    // that are timed, of each kind; one more is not
};

struct SpeculateBench {
  // Medians of runs.
  struct Pace {
    double output_tokens_per_s = 0.0;
    double user_tokens_per_s = 0.0;  // mean over turns
    double first_token_s = 0.0;
  };
  struct Category {
    std::string name;
    SpeculationMeasures measures;          // of the last run with guesses
    double plain_user_tokens_per_s = 0.0;  // of the last run without
  };
  // The same prompts written with guesses and without.
  struct Case {
    std::string name;          // "qualitative", a tier, "random", or the file's name
    int64_t batch = 1;         // texts at a time
    int64_t input_tokens = 0;  // of each prompt; 0: of their own lengths
    int64_t prompts = 0;
    SpeculationMeasures measures;      // of the last run with guesses
    std::vector<Category> categories;  // where there are several, in their order
    Pace plain, drafted;
    // Output tokens/s with guesses over those without, of runs next to each other: median, and the range.
    double gain = 0.0, least_gain = 0.0, most_gain = 0.0;
    bool is_random() const { return name == "random"; }
  };
  std::string device;
  SoftwareVersions software;
  bool by_chat_template = false;  // turns were put as the checkpoint's template says, else as text
  std::vector<Case> cases;
};

// Of a checkpoint, or of random weights of `config` (model.vocab_size set) where `checkpoint` is empty.
//
// Runs with and without guesses take turns; each begins with an empty cache, and writes some tokens before its time
// begins, so that all that is recorded or learned from times is. Answers of texts end where the model ends them;
// throughput's and those to random tokens all have `tokens` tokens. Turns of a prompt follow each other, with the
// answers before in their prompts.
//
// Errors: InferenceEngine's and those of the prompts; runtime, where a text was not the same with guesses.
SpeculateBench bench_speculate(const std::string& checkpoint, const Config& config,
                               std::shared_ptr<const Tokenizer> tokenizer, const SpeculateBenchOptions& options);

}  // namespace nmoe
