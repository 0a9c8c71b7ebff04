#include "bench/speculate_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "bench/speculation_prompts.h"
#include "bench/timing.h"
#include "chat/chat_template.h"
#include "chat/checkpoint_settings.h"
#include "chat/prompt.h"
#include "checkpoint/reader.h"
#include "infer/load_engine.h"

namespace nmoe {
namespace {

// How turns become prompts of a model.
struct Rendering {
  Rendering(const std::string& checkpoint, std::shared_ptr<const Tokenizer> the_tokenizer)
      : tokenizer(std::move(the_tokenizer)) {
    if (checkpoint.empty()) return;
    const CheckpointReader reader = CheckpointReader::open(checkpoint);
    tokenizer = reader.tokenizer();
    settings = read_checkpoint_settings(reader.path(), *tokenizer);
    stop_ids = settings.stop_ids;
    if (settings.chat_template.empty()) return;
    chat.emplace(settings, "", *tokenizer);
    if (const auto end = chat->end_of_turn(*tokenizer)) stop_ids.push_back(*end);
  }

  // The text in front of what is said to the last turn, or of its ids by the template.
  std::string text_of(std::span<const std::string> turns, std::span<const std::string> answers) const {
    std::string text;
    for (size_t i = 0; i < turns.size(); ++i) {
      if (i > 0) text += answers[i - 1] + "\n\n";
      text += turns[i] + "\n\n";
    }
    return text;
  }
  std::vector<int32_t> chat_ids(std::span<const std::string> turns, std::span<const std::string> answers) const {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    for (size_t i = 0; i < turns.size(); ++i) {
      if (i > 0) messages.push_back({{"role", "assistant"}, {"content", as_utf8(answers[i - 1])}});
      messages.push_back({{"role", "user"}, {"content", turns[i]}});
    }
    return encode_rendered(chat->render(messages, /*add_generation_prompt=*/true, nlohmann::ordered_json::object()),
                           *tokenizer);
  }

  std::vector<int32_t> ids_of(const InferenceEngine& engine, std::span<const std::string> turns,
                              std::span<const std::string> answers) const {
    return chat ? chat_ids(turns, answers) : encode_prompt(settings, engine, text_of(turns, answers));
  }

  // Positions that all turns need with answers of so many tokens, and some more for marks around them.
  int64_t positions_of(const SpeculationPrompt& prompt, int64_t tokens) const {
    constexpr int64_t kMarks = 16;
    const std::vector<std::string> answers(prompt.turns.size(), "a");
    std::vector<int32_t> ids;
    if (chat) {
      ids = chat_ids(prompt.turns, answers);
    } else {
      tokenizer->encode(text_of(prompt.turns, answers), ids);
    }
    return std::ssize(ids) + std::ssize(prompt.turns) * (tokens + kMarks);
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  CheckpointSettings settings;  // of a model with random weights: none
  std::optional<ChatTemplate> chat;
  std::vector<int32_t> stop_ids;
};

// Writes answers to all prompts, so many at a time.
class AnswerRun {
 public:
  AnswerRun(InferenceEngine& engine, const Rendering& rendering, std::span<const SpeculationPrompt> prompts,
            int64_t batch, const SpeculateBenchOptions& options)
      : engine_(engine), rendering_(rendering), prompts_(prompts), batch_(batch), options_(options) {}

  // In the order of prompts and their turns.
  std::vector<WrittenTurn> write() {
    warm_up();
    texts_.resize(prompts_.size());
    begin_ = BenchClock::now();
    while (true) {
      for (; num_running_ < batch_ && next_ < prompts_.size(); ++next_) submit(next_);
      if (num_running_ == 0) break;
      engine_.step();
      end_step();
    }
    std::vector<WrittenTurn> all;
    for (Text& text : texts_) std::ranges::move(text.turns, std::back_inserter(all));
    return all;
  }

 private:
  struct Text {
    std::deque<WrittenTurn> turns;
    std::vector<std::string> answers;
    int64_t given = 0;  // tokens in this step
    bool runs = false, has_ended = false;
  };

  double now() const { return ms_since(begin_) / 1e3; }

  std::vector<int32_t> ids_of(const SpeculationPrompt& prompt, std::span<const std::string> answers) const {
    if (!prompt.ids.empty()) return prompt.ids;
    return rendering_.ids_of(engine_, std::span(prompt.turns).first(answers.size() + 1), answers);
  }

  GenerationRequest request_of(std::vector<int32_t> ids, int64_t tokens, size_t number) const {
    GenerationRequest request;
    request.prompt = std::move(ids);
    request.max_tokens = tokens;
    request.sampling = options_.sampling;
    request.sampling.seed += number;
    return request;
  }

  // The ends of prompts, which no prompt begins with, so that the cache has nothing of what follows.
  void warm_up() {
    constexpr int64_t kTokens = 32;
    constexpr size_t kPromptTokens = 64;
    for (size_t i = 0; i < std::min(prompts_.size(), static_cast<size_t>(batch_)); ++i) {
      std::vector<int32_t> ids = ids_of(prompts_[i], {});
      const size_t size = std::min(kPromptTokens, std::max<size_t>(2, ids.size()) - 1);
      if (ids.size() > size) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(size));
      GenerationRequest request = request_of(std::move(ids), std::min(kTokens, options_.tokens), i);
      request.ignore_eos = true;
      engine_.submit(std::move(request), {});
    }
    while (engine_.step()) {
    }
  }

  // The next turn of the prompt.
  void submit(size_t i) {
    const SpeculationPrompt& prompt = prompts_[i];
    Text& text = texts_[i];
    const size_t number = text.turns.size();
    GenerationRequest request = request_of(ids_of(prompt, text.answers), options_.tokens, 1000 * i + number);
    request.ignore_eos = !prompt.ids.empty();
    if (prompt.ids.empty()) request.stop_ids = rendering_.stop_ids;
    text.answers.emplace_back();
    WrittenTurn& turn = text.turns.emplace_back();
    turn.prompt = prompt.id;
    turn.category = prompt.category;
    turn.turn = static_cast<int64_t>(number);
    turn.submitted_s = now();
    GenerationListener listener;
    listener.on_text = [&text](std::string_view piece) { text.answers.back() += piece; };
    listener.on_token = [this, &text, &turn](const GeneratedToken& token) {
      turn.last_s = now();
      if (turn.ids.empty()) turn.first_s = turn.last_s;
      turn.ids.push_back(token.id);
      ++text.given;
    };
    listener.on_finish = [this, &text, &turn](const GenerationResult& result) {
      turn.drafted = result.drafted_tokens;
      turn.accepted = result.accepted_tokens;
      if (turn.ids.empty()) turn.first_s = turn.last_s = now();
      text.has_ended = true;
    };
    text.runs = true;
    ++num_running_;
    engine_.submit(std::move(request), std::move(listener));
  }

  void end_step() {
    for (size_t i = 0; i < next_; ++i) {
      Text& text = texts_[i];
      if (!text.runs) continue;
      if (text.given > 0) text.turns.back().lengths.push_back(std::exchange(text.given, 0));
      if (!std::exchange(text.has_ended, false)) continue;
      text.runs = false;
      --num_running_;
      if (text.turns.size() < prompts_[i].turns.size()) submit(i);
    }
  }

  InferenceEngine& engine_;
  const Rendering& rendering_;
  std::span<const SpeculationPrompt> prompts_;
  int64_t batch_;
  const SpeculateBenchOptions& options_;
  std::vector<Text> texts_;
  BenchClock::time_point begin_;
  size_t next_ = 0;
  int64_t num_running_ = 0;
};

SpeculateBench::Pace pace_of(std::span<const std::vector<WrittenTurn>> runs) {
  std::vector<double> output, user, first;
  for (const std::vector<WrittenTurn>& run : runs) {
    const SpeculationMeasures measures = measure_speculation(run);
    output.push_back(output_tokens_per_s(run));
    user.push_back(measures.user_tokens_per_s);
    first.push_back(measures.first_token_s);
  }
  return {.output_tokens_per_s = median(output), .user_tokens_per_s = median(user), .first_token_s = median(first)};
}

std::vector<SpeculateBench::Category> categories_of(std::span<const WrittenTurn> plain,
                                                    std::span<const WrittenTurn> drafted) {
  std::vector<std::string> names;
  for (const WrittenTurn& turn : drafted) {
    if (std::ranges::find(names, turn.category) == names.end()) names.push_back(turn.category);
  }
  std::vector<SpeculateBench::Category> categories;
  for (const std::string& name : names) {
    const auto measures_of = [&](std::span<const WrittenTurn> turns) {
      std::vector<WrittenTurn> some;
      std::ranges::copy_if(turns, std::back_inserter(some), [&](const auto& turn) { return turn.category == name; });
      return measure_speculation(some);
    };
    categories.push_back({.name = name,
                          .measures = measures_of(drafted),
                          .plain_user_tokens_per_s = measures_of(plain).user_tokens_per_s});
  }
  return categories;
}

void check_same(std::span<const WrittenTurn> plain, std::span<const WrittenTurn> other, const char* what) {
  const std::optional<std::string> difference = first_difference(plain, other);
  if (!difference) return;
  throw runtime_error(fmt::format("a text is not the same {}: {}", what, *difference),
                      "this is a bug in nmoe: report it with this command and the model");
}

class Bench {
 public:
  Bench(EngineModels models, const Rendering& rendering, const SpeculateBenchOptions& options)
      : models_(std::move(models)), rendering_(rendering), options_(options) {}

  const CachedModel& model() const { return *models_.model; }
  std::vector<int32_t> first_ids() { return encode_prompt(rendering_.settings, InferenceEngine(models_.model), ""); }

  SpeculateBench::Case run(std::string name, std::span<const SpeculationPrompt> prompts, int64_t batch,
                           int64_t input_tokens) {
    std::vector<std::vector<WrittenTurn>> plain, drafted;
    std::vector<double> gains;
    const std::vector<WrittenTurn> first = write(prompts, batch, {});
    check_same(first, write(prompts, batch, options_.draft), "with guesses");
    for (int64_t i = 0; i < options_.runs; ++i) {
      if (i % 2 == 0) plain.push_back(write(prompts, batch, {}));
      drafted.push_back(write(prompts, batch, options_.draft));
      if (i % 2 == 1) plain.push_back(write(prompts, batch, {}));
      check_same(first, plain.back(), "in another run");
      check_same(first, drafted.back(), "with guesses");
      gains.push_back(output_tokens_per_s(drafted.back()) / output_tokens_per_s(plain.back()));
    }
    std::vector<SpeculateBench::Category> categories = categories_of(plain.back(), drafted.back());
    if (categories.size() == 1) categories.clear();
    return {.name = std::move(name),
            .batch = batch,
            .input_tokens = input_tokens,
            .prompts = std::ssize(prompts),
            .measures = measure_speculation(drafted.back()),
            .categories = std::move(categories),
            .plain = pace_of(plain),
            .drafted = pace_of(drafted),
            .gain = median(gains),
            .least_gain = std::ranges::min(gains),
            .most_gain = std::ranges::max(gains)};
  }

 private:
  std::vector<WrittenTurn> write(std::span<const SpeculationPrompt> prompts, int64_t batch, const DraftOptions& draft) {
    InferenceEngine engine(draft.kind == DraftKind::kNone ? EngineModels{.model = models_.model} : models_, draft);
    std::vector<WrittenTurn> turns = AnswerRun(engine, rendering_, prompts, batch, options_).write();
    if (std::ranges::all_of(turns, [](const WrittenTurn& turn) { return turn.ids.size() < 2; })) {
      throw runtime_error("the model ends its answers before their second token: there is nothing to measure",
                          "take a model that has learned more, or --prompts throughput, whose texts do not end");
    }
    return turns;
  }

  EngineModels models_;
  const Rendering& rendering_;
  const SpeculateBenchOptions& options_;
};

}  // namespace

SpeculateBench bench_speculate(const std::string& checkpoint, const Config& config,
                               std::shared_ptr<const Tokenizer> tokenizer, const SpeculateBenchOptions& options) {
  if (options.draft.kind == DraftKind::kNone) {
    throw usage_error("nothing drafts", "name a drafter: --draft ngram, mtp or a checkpoint");
  }
  const Rendering rendering(checkpoint, std::move(tokenizer));
  const bool is_throughput = options.prompts == "throughput";
  std::vector<SpeculationPrompt> texts;
  int64_t positions = is_throughput ? std::ranges::max(options.input_tokens) + options.tokens : 0;
  if (!is_throughput) {
    texts = options.prompts == "qualitative" ? qualitative_prompts() : read_speculation_prompts(options.prompts);
    texts = limit_categories(std::move(texts), options.limit);
    for (const SpeculationPrompt& text : texts) {
      positions = std::max(positions, rendering.positions_of(text, options.tokens));
    }
  }
  const InferenceOptions engine{.device = options.device,
                                .num_threads = options.num_threads,
                                .max_sequences = std::ranges::max(options.batches),
                                .max_context = options.context > 0 ? options.context : positions,
                                .cache_positions = options.cache_positions,
                                .draft = options.draft};
  Bench bench(checkpoint.empty() ? random_engine_models(config, rendering.tokenizer, engine)
                                 : load_engine_models(checkpoint, engine),
              rendering, options);
  SpeculateBench result{.device = bench.model().device().description(),
                        .software = bench.model().device().software(),
                        .by_chat_template = !is_throughput && rendering.chat.has_value(),
                        .cases = {}};
  for (const int64_t batch : options.batches) {
    if (!is_throughput) {
      const bool is_own = options.prompts == "qualitative";
      const std::string name = is_own ? options.prompts : std::filesystem::path(options.prompts).filename().string();
      result.cases.push_back(bench.run(name, texts, batch, 0));
      continue;
    }
    const std::vector<int32_t> begin = bench.first_ids();
    const int64_t count = options.limit > 0 ? options.limit : std::max<int64_t>(batch, 4);
    for (const int64_t tokens : options.input_tokens) {
      for (const std::string_view tier : kEntropyTiers) {
        result.cases.push_back(bench.run(
            std::string(tier), throughput_prompts(*rendering.tokenizer, begin, tier, count, tokens), batch, tokens));
      }
      result.cases.push_back(
          bench.run("random", random_prompts(*rendering.tokenizer, begin, count, tokens), batch, tokens));
    }
  }
  return result;
}

}  // namespace nmoe
