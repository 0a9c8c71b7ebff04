#include "cli/model_evaluation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/progress.h"
#include "base/say.h"
#include "base/version.h"
#include "chat/checkpoint_settings.h"
#include "checkpoint/reader.h"
#include "checkpoint/saved_config.h"
#include "cli/named_checkpoint.h"
#include "data/prep/inputs.h"
#include "eval/cached_scorer.h"
#include "eval/packed_scorer.h"
#include "hf/import.h"
#include "infer/load_model.h"
#include "track/metrics.h"
#include "track/metrics_file.h"
#include "train/loop/run_config.h"
#include "train/loop/training_data.h"

namespace nmoe::cli {

namespace {

// A checkpoint to evaluate. A Hugging Face model becomes one, which goes when the evaluation ends.
class ModelFolder {
 public:
  explicit ModelFolder(const EvalArguments& arguments) : path_(arguments.model) {
    if (!fs::exists(path_ / "config.json") || fs::exists(path_ / "manifest.json")) return;
    imported_.emplace(fs::temp_directory_path() / "nmoe-eval");
    const ImportReport report = import_model({.source = path_,
                                              .out = imported_->path() / "model",
                                              .num_threads = arguments.threads,
                                              .version = std::string(version()),
                                              .commit = std::string(commit())});
    if (!report.no_tokenizer.empty()) {
      throw usage_error(
          fmt::format("'{}' cannot be evaluated without its tokenizer: {}", path_.string(), report.no_tokenizer),
          "put a tokenizer.json of a kind that nmoe reads beside its weights");
    }
    path_ = report.checkpoint;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::optional<TemporaryFolder> imported_;
};

// What is evaluated: a checkpoint, or random weights of a configuration.
struct Subject {
  std::optional<CheckpointReader> checkpoint;
  CheckpointSettings settings;
  Config config;
  std::shared_ptr<const Tokenizer> tokenizer;
};

bool is_configuration(const std::string& model) { return model.ends_with(".toml") && !fs::is_directory(model); }

Subject random_subject(const EvalArguments& arguments) {
  Subject subject{.config = load_run_config(arguments.model),
                  .tokenizer = load_tokenizer(tokenizer_source(arguments.tokenizer))};
  subject.config = resolve_vocab_size(subject.config, *subject.tokenizer);
  return subject;
}

Subject stored_subject(const fs::path& path) {
  Subject subject{.checkpoint = CheckpointReader::open(path)};
  const CheckpointReader& reader = *subject.checkpoint;
  subject.config = saved_config(reader);
  subject.tokenizer = reader.tokenizer();
  subject.settings = read_checkpoint_settings(reader.path(), *subject.tokenizer);
  return subject;
}

// What every text begins with, as generation does it (chat/prompt.h).
std::vector<int32_t> begin_ids(const Subject& subject) {
  const CheckpointSettings& settings = subject.settings;
  if (settings.imported) return settings.begin_ids;
  if (subject.config.data.mask_documents) return {};
  return {subject.tokenizer->eos_id()};
}

// A model is in memory once: to score texts or to write answers.
class EvaluatedModel {
 public:
  // Texts have up to `context` tokens.
  EvaluatedModel(const Subject& subject, const EvalArguments& arguments, int64_t context)
      : subject_(subject), arguments_(arguments), context_(context) {}

  Scorer& scorer() {
    engine_.reset();
    if (scorer_ == nullptr) scorer_ = make_scorer();
    return *scorer_;
  }
  // Of a checkpoint.
  InferenceEngine& engine() {
    scorer_.reset();
    if (engine_ == nullptr) {
      engine_ = std::make_unique<InferenceEngine>(subject_.checkpoint->path(),
                                                  InferenceOptions{.device = arguments_.device,
                                                                   .num_threads = arguments_.threads,
                                                                   .max_sequences = items_at_a_time(),
                                                                   .max_context = context_,
                                                                   .arithmetic = arguments_.arithmetic,
                                                                   .draft = arguments_.draft});
    }
    return *engine_;
  }

 private:
  bool on_cpu() const { return arguments_.device == "cpu"; }
  int64_t items_at_a_time() const { return arguments_.batch > 0 ? arguments_.batch : on_cpu() ? 16 : 256; }

  std::unique_ptr<Scorer> make_scorer() const {
    if (on_cpu()) {
      const LoadOptions options{
          .num_threads = arguments_.threads,
          .cached = {.num_slots = items_at_a_time(), .capacity = context_, .max_scores = CachedScorer::kMaxScores},
          .arithmetic = arguments_.arithmetic};
      auto model = subject_.checkpoint ? load_cached_model(subject_.checkpoint->path(), options)
                                       : random_cached_model(subject_.config, subject_.tokenizer, options);
      return std::make_unique<CachedScorer>(std::move(model), arguments_.share_prefixes);
    }
    const PackedScorerOptions options{.device = arguments_.device,
                                      .compute_dtype = arguments_.fp32 ? DType::kF32 : DType::kBF16,
                                      .num_threads = arguments_.threads,
                                      .max_tokens = context_,
                                      .share_prefixes = arguments_.share_prefixes};
    if (subject_.checkpoint) return std::make_unique<PackedScorer>(subject_.checkpoint->path(), options);
    return std::make_unique<PackedScorer>(subject_.config, options);
  }

  const Subject& subject_;
  const EvalArguments& arguments_;
  int64_t context_;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<InferenceEngine> engine_;
};

// The Error (usage) for a folder where a file is wanted; it names those that are in it.
Error folder_of_texts(const fs::path& folder) {
  const std::string what = fmt::format("--text {}: that is a folder", folder.string());
  if (fs::exists(folder / "tokenizer.json") && fs::is_directory(folder / "train")) {
    return usage_error(what + " of tokens", "name the text that it was prepared from, with --text FILE");
  }
  constexpr size_t kShown = 3;
  std::string files;
  const std::vector<fs::path> found = expand_inputs({folder.string()}, "evaluation").files;
  for (size_t i = 0; i < std::min(kShown, found.size()); ++i) files += fmt::format(" --text {}", found[i].string());
  return usage_error(what, fmt::format("name its files, each with an option of its own:{}{}", files,
                                       found.size() > kShown ? " ..." : ""));
}

std::vector<TaskSuite> suites_of(const EvalArguments& arguments) {
  std::vector<TaskSuite> suites;
  for (const std::string& name : arguments.tasks) suites.push_back(find_task_suite(name));
  if (arguments.texts.empty()) return suites;
  TaskSuite texts{.name = "text"};
  for (const std::string& file : arguments.texts) {
    if (!fs::exists(file)) throw usage_error(fmt::format("--text {}: there is no such file", file), "check the path");
    if (fs::is_directory(file)) throw folder_of_texts(file);
    texts.tasks.push_back(
        {.name = file, .kind = TaskKind::kText, .file = fs::absolute(file).string(), .prompt = "{text}"});
  }
  suites.push_back(std::move(texts));
  return suites;
}

template <class Predicate>
bool any_task(const std::vector<TaskSuite>& suites, Predicate predicate) {
  return std::ranges::any_of(suites,
                             [&](const TaskSuite& suite) { return std::ranges::any_of(suite.tasks, predicate); });
}

// Options that would be ignored.
void check_options(const EvalArguments& arguments, const std::vector<TaskSuite>& suites) {
  if (arguments.device == "cpu" && arguments.fp32) {
    throw usage_error("--fp32 has no effect on the CPU", "leave it out: it computes in fp32");
  }
  if (is_configuration(arguments.model)) {
    if (arguments.tokenizer.empty()) throw usage_error("a configuration without a tokenizer", "add --tokenizer FILE");
    if (!arguments.out.empty() || any_task(suites, &Task::is_generated)) {
      throw usage_error("--out, or answers that are written, with a configuration, whose weights are random",
                        "leave them out, or give a checkpoint");
    }
  } else if (!arguments.tokenizer.empty()) {
    throw usage_error("--tokenizer with a model, which has its own", "leave it out, or give a configuration (.toml)");
  }
  if (arguments.device != "cpu" && arguments.batch > 0 && !any_task(suites, &Task::is_generated)) {
    throw usage_error("--batch has no effect on texts that are scored on a GPU",
                      "leave it out: as many are worked on together as a pass of 32,768 tokens holds");
  }
  if (arguments.device != "cpu" && arguments.arithmetic && !any_task(suites, &Task::is_generated)) {
    throw usage_error("--arithmetic has no effect on texts that are scored on a GPU",
                      "leave it out: they are scored by passes of training");
  }
  check_drafts(arguments.draft);
  if (arguments.draft.kind != DraftKind::kNone && !any_task(suites, &Task::is_generated)) {
    throw usage_error("--draft has no effect on texts that are scored",
                      "leave it out, or name a task that writes answers");
  }
  if (arguments.fp32 && any_task(suites, &Task::is_generated)) {
    throw usage_error("--fp32 has no effect on answers that are written",
                      "leave it out: they are written in fp32 where the checkpoint's run.precision is fp32");
  }
}

// Where the context has no room for a prompt in front of the longest answer that may be written.
void check_room(const std::vector<TaskSuite>& suites, int64_t context) {
  for (const TaskSuite& suite : suites) {
    for (const Task& task : suite.tasks) {
      if (!task.is_generated() || task.generation.max_tokens < context) continue;
      throw usage_error(fmt::format("task {}/{} has answers of up to {} tokens, and this model's context is {}",
                                    suite.name, task.name, task.generation.max_tokens, context),
                        fmt::format("allow longer texts: --context {}", 4 * task.generation.max_tokens));
    }
  }
}

std::unique_ptr<const Sandbox> make_sandbox(const std::vector<TaskSuite>& suites) {
  const auto runs_code = [](const Task& task) {
    return task.is_generated() && task.generation.metric == AnswerMetric::kCode;
  };
  return any_task(suites, runs_code) ? std::make_unique<const Sandbox>() : nullptr;
}

// Into the metrics of the run that the checkpoint is of, at its step, where those are.
void record(const fs::path& checkpoint, const CheckpointInfo& info, const EvalReport& report) {
  const fs::path runs = fs::weakly_canonical(checkpoint).parent_path().parent_path().parent_path();
  const fs::path metrics = runs / "metrics" / info.run_id;
  if (info.run_id.empty() || !fs::exists(metrics)) return;
  try {
    add_metrics(metrics / "rank_0.duckdb", {.step = info.step, .ts_ms = now_ms(), .scalars = report_metrics(report)});
  } catch (const Error& error) {
    say("warning: the run's metrics have nothing of this evaluation: {}\n", error.what());
  }
}

}  // namespace

void check_evaluation(const EvalArguments& arguments) {
  const std::vector<TaskSuite> suites = suites_of(arguments);
  check_options(arguments, suites);
  make_sandbox(suites);
  check_limit(suites, arguments.limit, "--limit");
  for (const TaskSuite& suite : suites) {
    for (const Task& task : suite.tasks) {
      if (task.kind == TaskKind::kText) {
        find_data_file(arguments.data, task.file);
      } else {
        TaskData(task, arguments.data, arguments.limit);
      }
    }
  }
}

EvalReport evaluate_model(const EvalArguments& arguments) {
  check_evaluation(arguments);  // nothing is scored before all is there
  EvalOptions options{.suites = suites_of(arguments), .data_dir = arguments.data, .limit = arguments.limit};
  const std::unique_ptr<const Sandbox> sandbox = make_sandbox(options.suites);
  std::optional<ModelFolder> folder;
  if (!is_configuration(arguments.model)) folder.emplace(arguments);
  const Subject subject = folder ? stored_subject(folder->path()) : random_subject(arguments);
  with_arithmetic(subject.config, arguments.arithmetic);  // refused before anything is scored
  const Config& config = subject.config;
  const int64_t of_model = config.model.max_positions > 0 ? config.model.max_positions : config.data.seq_len;
  const TokenRules rules{.tokenizer = subject.tokenizer.get(),
                         .begin_ids = begin_ids(subject),
                         .max_tokens = arguments.context > 0 ? arguments.context : of_model};
  check_room(options.suites, rules.max_tokens);
  EvaluatedModel model(subject, arguments, rules.max_tokens);
  const EvalModels models{.scorer = [&]() -> Scorer& { return model.scorer(); },
                          .engine = [&]() -> InferenceEngine& { return model.engine(); },
                          .stop_ids = subject.settings.stop_ids,
                          .sandbox = sandbox.get()};
  std::optional<EvalJournal> journal;
  if (!arguments.out.empty()) {
    journal.emplace(
        arguments.out,
        fmt::format("weights {}, tokenizer {}, texts begin with [{}], answers end at [{}], up to {} tokens, {} in {}{}",
                    combined_sha256(subject.checkpoint->model()),
                    subject.tokenizer->hash_with_end(subject.tokenizer->eos_id()), fmt::join(rules.begin_ids, ", "),
                    fmt::join(subject.settings.stop_ids, ", "), rules.max_tokens, arguments.device,
                    arguments.device == "cpu" || arguments.fp32 ? "fp32" : "bf16",
                    !arguments.arithmetic                                      ? ""
                    : *arguments.arithmetic == GenerationArithmetic::kTraining ? ", in training's arithmetic"
                                                                               : ", in latent space"));
  }
  std::optional<ProgressLine> line;
  std::string current;
  options.progress = [&](const std::string& task, int64_t done, int64_t total) {
    if (task != current) {
      current = task;
      line.reset();
      line.emplace(task, "item", total);
    }
    line->update(done, "", /*milestone=*/done == total);
  };
  ThreadPool pool(arguments.threads);
  EvalReport report = evaluate(models, rules, options, pool, journal ? &*journal : nullptr);
  line.reset();
  if (!arguments.out.empty()) {
    write_file_atomically(fs::path(arguments.out) / "items.jsonl", item_lines(report));
    write_file_atomically(fs::path(arguments.out) / "report.json", report_json(report));
  }
  if (subject.checkpoint) record(subject.checkpoint->path(), subject.checkpoint->info(), report);
  return report;
}

}  // namespace nmoe::cli
