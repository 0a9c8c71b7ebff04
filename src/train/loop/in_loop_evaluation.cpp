#include "train/loop/in_loop_evaluation.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "data/stream/alignment.h"
#include "data/stream/loader.h"
#include "train/step/live_generation.h"

namespace nmoe {

EngineScorer::EngineScorer(Engine& engine, const Config& config)
    : engine_(engine),
      seq_len_(config.data.seq_len),
      num_seqs_(config.train.microbatch_seqs),
      alignment_(config.data.align_documents) {}

std::vector<EngineScorer::Sequence> EngineScorer::place(std::span<const ScoredText* const> texts) const {
  std::vector<Sequence> sequences;
  size_t first_open = 0;  // sequences before it are as good as full
  std::vector<int64_t> used;
  constexpr size_t kOpen = 64;
  for (size_t index = 0; index < texts.size(); ++index) {
    const int64_t size = std::ssize(texts[index]->tokens);
    size_t at = first_open;
    while (at < sequences.size() && (!engine_.masks_documents() || used[at] + size > seq_len_)) ++at;
    if (at == sequences.size()) {
      sequences.emplace_back();
      used.push_back(0);
      if (sequences.size() - first_open > kOpen) ++first_open;
    }
    sequences[at].push_back({.text = texts[index], .index = index, .first = used[at]});
    used[at] += aligned(size, alignment_);
  }
  return sequences;
}

void EngineScorer::run(std::span<const Sequence> sequences, std::vector<TextScore>& scores) {
  const auto size = static_cast<size_t>(num_seqs_ * seq_len_);
  std::vector<int32_t> inputs(size), targets(size, kNoTarget), predictions(size);
  std::vector<float> losses(size);
  Documents documents;
  if (engine_.masks_documents()) documents.positions.resize(size);
  const auto add_document = [&](int64_t begin, int64_t end) {
    if (!engine_.masks_documents() || begin == end) return;
    documents.cu_seqlens.push_back(static_cast<int32_t>(begin));
    for (int64_t at = begin; at < end; ++at)
      documents.positions[static_cast<size_t>(at)] = static_cast<int32_t>(at - begin);
  };
  for (int64_t sequence = 0; sequence < num_seqs_; ++sequence) {
    const int64_t begin = sequence * seq_len_;
    int64_t end = begin;
    if (sequence < std::ssize(sequences)) {
      for (const Place& place : sequences[static_cast<size_t>(sequence)]) {
        const std::vector<int32_t>& tokens = place.text->tokens;
        const auto first = static_cast<size_t>(begin + place.first);
        std::ranges::copy(tokens, inputs.begin() + static_cast<std::ptrdiff_t>(first));
        for (auto at = static_cast<size_t>(place.text->begin); at < tokens.size(); ++at)
          targets[first + at - 1] = tokens[at];
        add_document(end, begin + place.first);
        add_document(begin + place.first, begin + place.first + std::ssize(tokens));
        end = begin + place.first + std::ssize(tokens);
        computed_tokens_ += std::ssize(tokens);
      }
    }
    add_document(end, begin + seq_len_);
  }
  if (engine_.masks_documents()) documents.cu_seqlens.push_back(static_cast<int32_t>(size));
  engine_.evaluate(inputs, targets, losses, documents, predictions);
  for (size_t sequence = 0; sequence < sequences.size(); ++sequence) {
    for (const Place& place : sequences[sequence]) {
      TextScore& score = scores[place.index];
      const size_t first = sequence * static_cast<size_t>(seq_len_) + static_cast<size_t>(place.first);
      for (auto at = static_cast<size_t>(place.text->begin); at < place.text->tokens.size(); ++at) {
        score.nats += static_cast<double>(losses[first + at - 1]);
        score.greedy = score.greedy && predictions[first + at - 1] == place.text->tokens[at];
        ++score.tokens;
      }
    }
  }
}

void EngineScorer::score(std::span<const std::vector<ScoredText>* const> groups,
                         const std::function<void(size_t group, std::span<const TextScore> scores)>& done) {
  std::vector<const ScoredText*> texts;
  for (const auto* group : groups) {
    for (const ScoredText& text : *group) texts.push_back(&text);
  }
  const std::vector<Sequence> sequences = place(texts);
  const Rank& rank = engine_.rank();
  // Pass p of rank r has microbatch p * ranks + r.
  const int64_t count = std::ssize(sequences), of_pass = num_seqs_ * rank.count();
  std::vector<TextScore> mine(texts.size());
  for (int64_t pass = 0; pass * of_pass < count; ++pass) {
    const int64_t begin = std::min(count, pass * of_pass + rank.index() * num_seqs_);
    const int64_t end = std::min(count, begin + num_seqs_);
    run(std::span(sequences).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), mine);
  }
  // A text has tokens at the one rank that scored it.
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(TextScore));
  std::vector<TextScore> of_rank(mine.size()), all(mine.size());
  for (const std::string& theirs : rank.mesh().data().all_gather(bytes)) {
    NMOE_CHECK(theirs.size() == bytes.size(), "{} bytes of scores, not {}", theirs.size(), bytes.size());
    if (!theirs.empty()) std::memcpy(of_rank.data(), theirs.data(), theirs.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (of_rank[i].tokens > 0) all[i] = of_rank[i];
    }
  }
  size_t first = 0;
  for (size_t group = 0; group < groups.size(); ++group) {
    done(group, std::span(all).subspan(first, groups[group]->size()));
    first += groups[group]->size();
  }
}

std::unique_ptr<const InLoopEvaluation> InLoopEvaluation::make(const Config& config,
                                                               std::shared_ptr<const Tokenizer> tokenizer,
                                                               std::vector<int32_t> begin_ids) {
  if (config.eval.every == 0) return nullptr;
  return std::unique_ptr<const InLoopEvaluation>(
      new InLoopEvaluation(config, std::move(tokenizer), std::move(begin_ids)));
}

namespace {

// Answers that a run writes between its steps.
void check_written(const Config& config, const std::string& suite, const Task& task) {
  const std::string what = fmt::format("eval.tasks: answers to {}/{}", suite, task.name);
  const std::string otherwise = "leave it out, and evaluate the run's checkpoints with n eval";
  if (task.generation.metric == AnswerMetric::kCode) {
    throw usage_error(what + " are programs, which a run that trains does not run", otherwise);
  }
  if (config.parallel.ranks > 1) {
    throw usage_error(what + " are written, which a run of several ranks does not do", otherwise);
  }
  if (task.generation.max_tokens >= config.data.seq_len) {
    throw usage_error(fmt::format("{} have up to {} tokens, and data.seq_len is {}", what, task.generation.max_tokens,
                                  config.data.seq_len),
                      "raise data.seq_len; or " + otherwise);
  }
}

}  // namespace

InLoopEvaluation::InLoopEvaluation(const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
                                   std::vector<int32_t> begin_ids)
    : tokenizer_(std::move(tokenizer)) {
  rules_ = {.tokenizer = tokenizer_.get(), .begin_ids = std::move(begin_ids), .max_tokens = config.data.seq_len};
  ThreadPool pool(static_cast<int>(config.run.threads));
  for (TaskSuite& description : find_task_suites(config.eval.tasks)) {
    Suite& suite = suites_.emplace_back(Suite{.description = std::move(description), .tasks = {}});
    check_limit(std::span(&suite.description, 1), config.eval.limit, "eval.limit =");
    for (const Task& task : suite.description.tasks) {
      if (task.is_generated()) check_written(config, suite.description.name, task);
      suite.tasks.emplace_back(suite.description.name, task, config.eval.data_dir, config.eval.limit, rules_);
      suite.tasks.back().make_items({}, pool);
    }
  }
}

EvalReport InLoopEvaluation::run(Engine& engine, const Config& config) const {
  using Clock = std::chrono::steady_clock;
  EngineScorer scorer(engine, config);
  EvalReport report;
  for (const Suite& suite : suites_) {
    const size_t first = report.tasks.size();
    for (size_t i = 0; i < suite.tasks.size(); ++i) {
      const TaskEvaluation& task = suite.tasks[i];
      const auto begin = Clock::now();
      ItemResults results;
      const auto add = [&](ItemResult result) {
        const int64_t item = result.item;
        results.emplace(item, std::move(result));
      };
      if (suite.description.tasks[i].is_generated()) {
        LiveGeneration generation(config, engine, tokenizer_, live_generation_needs(config));
        AnswerWriter writer(generation.engine(), /*stop_ids=*/{});
        ThreadPool pool(/*num_threads=*/1);
        task.generate({.writer = writer, .pool = pool}, add);
      } else {
        task.score(scorer, add);
      }
      report.tasks.push_back(task.report(results));
      report.tasks.back().seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (!suite.description.mean.empty()) {
      report.means.push_back(mean_of(suite.description, std::span(report.tasks).subspan(first)));
    }
  }
  return report;
}

}  // namespace nmoe
