#include "train/step/live_generation.h"

#include <algorithm>

#include "eval/task.h"
#include "infer/load_model.h"

namespace nmoe {
namespace {

bool writes_answers(const EvalConfig& eval) {
  if (eval.every == 0) return false;
  const std::vector<TaskSuite> suites = find_task_suites(eval.tasks);
  return std::ranges::any_of(
      suites, [](const TaskSuite& suite) { return std::ranges::any_of(suite.tasks, &Task::is_generated); });
}

}  // namespace

LiveGenerationNeeds live_generation_needs(const Config& config) {
  // The last token that is written needs no position.
  const int64_t most = config.data.seq_len - 1;
  if (writes_answers(config.eval)) return {.capacity = most};
  int64_t longest = 0;
  for (const std::string& prompt : config.train.sample_prompts) longest = std::max(longest, std::ssize(prompt));
  if (longest == 0) return {};
  return {.capacity = std::min(most, kMostBeginIds + longest + config.train.sample_tokens - 1)};
}

int64_t live_generation_host_bytes(const Config& config) {
  if (!live_generation_needs(config)) return 0;
  constexpr int64_t kRows = std::max(CachedModel::kMaxLogits, LiveGeneration::kSequences);
  return kRows * config.model.vocab_size * static_cast<int64_t>(sizeof(float));
}

LiveGeneration::LiveGeneration(const Config& config, Engine& engine, std::shared_ptr<const Tokenizer> tokenizer,
                               const LiveGenerationNeeds& needs)
    : scope_(engine.room_between_steps().activations),
      runner_(config.model, engine.model().weights(), engine.rank().device, engine.room_between_steps(),
              generation_runner(needs.capacity, config.generation.arithmetic)),
      cached_(std::make_shared<CachedModel>(config, std::move(tokenizer), runner_.model(), engine.room_between_steps(),
                                            CachedModelOptions{.num_slots = kSequences, .capacity = needs.capacity})),
      inference_(cached_) {}

}  // namespace nmoe
