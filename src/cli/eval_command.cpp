#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/error.h"
#include "base/progress.h"
#include "base/say.h"
#include "base/text.h"
#include "base/version.h"
#include "chat/checkpoint_settings.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "config/load.h"
#include "eval/cached_scorer.h"
#include "eval/evaluate.h"
#include "eval/packed_scorer.h"
#include "hf/import.h"
#include "track/metrics.h"
#include "train/run_config.h"
#include "train/training_data.h"

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
  Config config;
  std::shared_ptr<const Tokenizer> tokenizer;
};

bool is_configuration(const std::string& model) { return model.ends_with(".toml") && !fs::is_directory(model); }

Subject random_subject(const EvalArguments& arguments) {
  if (arguments.tokenizer.empty()) throw usage_error("a configuration without a tokenizer", "add --tokenizer FILE");
  if (!arguments.out.empty()) {
    throw usage_error("--out with a configuration, whose weights are random", "leave it out, or give a checkpoint");
  }
  Subject subject{.checkpoint = {}, .config = load_run_config(arguments.model, {}), .tokenizer = {}};
  subject.tokenizer = load_tokenizer(arguments.tokenizer);
  subject.config = resolve_vocab_size(subject.config, *subject.tokenizer);
  return subject;
}

Subject stored_subject(const fs::path& path) {
  Subject subject{.checkpoint = CheckpointReader::open(path), .config = {}, .tokenizer = {}};
  const CheckpointReader& reader = *subject.checkpoint;
  subject.config = parse_config(reader.config_toml(), (reader.path() / "config.toml").string());
  subject.tokenizer = reader.tokenizer();
  return subject;
}

std::unique_ptr<Scorer> make_scorer(const Subject& subject, const EvalArguments& arguments) {
  constexpr int64_t kSlots = 16, kManySlots = 256, kSequences = 16;
  const bool on_cpu = arguments.device == "cpu";
  const auto at_a_time = [&](int64_t unless_given) { return arguments.batch > 0 ? arguments.batch : unless_given; };
  if (on_cpu && arguments.fp32) {
    throw usage_error("--fp32 has no effect on the CPU", "leave it out: it computes in fp32");
  }
  if (on_cpu || arguments.share_prefixes) {
    const CachedScorerOptions options{.device = arguments.device,
                                      .fp32 = arguments.fp32,
                                      .num_threads = arguments.threads,
                                      .num_slots = at_a_time(on_cpu ? kSlots : kManySlots),
                                      .capacity = arguments.context,
                                      .share_prefixes = arguments.share_prefixes};
    if (subject.checkpoint) return std::make_unique<CachedScorer>(subject.checkpoint->path(), options);
    return std::make_unique<CachedScorer>(
        std::make_unique<CachedModel>(subject.config, subject.tokenizer, CachedScorer::model_options(options)),
        options.share_prefixes);
  }
  const PackedScorerOptions options{.device = arguments.device,
                                    .compute_dtype = arguments.fp32 ? DType::kF32 : DType::kBF16,
                                    .num_threads = arguments.threads,
                                    .num_seqs = at_a_time(kSequences),
                                    .seq_len = arguments.context};
  if (subject.checkpoint) return std::make_unique<PackedScorer>(subject.checkpoint->path(), options);
  return std::make_unique<PackedScorer>(subject.config, options);
}

// What every text begins with, as generation does it (chat/prompt.h).
std::vector<int32_t> begin_ids(const Subject& subject) {
  if (subject.checkpoint) {
    const CheckpointSettings settings = read_checkpoint_settings(subject.checkpoint->path(), *subject.tokenizer);
    if (settings.imported) return settings.bos_id ? std::vector{*settings.bos_id} : std::vector<int32_t>{};
  }
  if (subject.config.data.mask_documents) return {};
  return {subject.tokenizer->eos_id()};
}

std::vector<TaskSuite> suites_of(const EvalArguments& arguments) {
  std::vector<TaskSuite> suites;
  for (const std::string& name : arguments.tasks) suites.push_back(find_task_suite(name));
  if (arguments.texts.empty()) return suites;
  TaskSuite texts{.name = "text"};
  for (const std::string& file : arguments.texts) {
    texts.tasks.push_back(
        {.name = file, .kind = TaskKind::kText, .file = fs::absolute(file).string(), .prompt = "{text}"});
  }
  suites.push_back(std::move(texts));
  return suites;
}

void print_task(const TaskReport& task) {
  if (task.has_accuracy()) {
    std::string others;
    if (task.task.chooses()) {
      others = fmt::format("{:>8.2f}{:>8.2f}{:>8.2f}", 100 * task.accuracy_by(ChoiceScore::kToken),
                           100 * task.accuracy_by(ChoiceScore::kSum), 100 * task.accuracy_by(ChoiceScore::kCharacter));
    }
    fmt::print("{:<38}{:>7}{:>9.2f}{:>7.2f}{:>9.4f}{:>24}", task.name(), task.items, 100 * task.accuracy(),
               100 * task.standard_error(), task.centred(), others);
  } else {
    fmt::print("{:<38}{:>7}{:>33}{:>16}", task.name(), task.items, "bits per byte",
               fmt::format("{:.4f}", task.bits_per_byte()));
  }
  fmt::print("{:>9}{:>10}{:>9}\n", task.cropped, human_count(static_cast<double>(task.tokens)),
             human_seconds(task.seconds));
}

void print_report(const EvalReport& report) {
  fmt::print("{:<38}{:>7}{:>9}{:>7}{:>9}{:>8}{:>8}{:>8}{:>9}{:>10}{:>9}\n", "task", "items", "correct%", "+-",
             "centred", "token", "sum", "char", "cropped", "tokens", "time");
  for (const TaskReport& task : report.tasks) {
    print_task(task);
    if (!task.groups.empty()) {
      fmt::print("  macro average over {} groups {:.2f} %\n", task.groups.size(), 100 * task.macro_accuracy());
    }
  }
  for (const SuiteMean& mean : report.means) {
    fmt::print("{} {:.4f} +- {:.4f}; with the baselines of 2025 (v2) {:.4f} +- {:.4f}\n", mean.name, mean.value,
               mean.standard_error, mean.value_v2, mean.standard_error_v2);
  }
}

// Into the metrics of the run that the checkpoint is of, at its step, where those are.
void record(const fs::path& checkpoint, const CheckpointInfo& info, const EvalReport& report) {
  const fs::path runs = fs::weakly_canonical(checkpoint).parent_path().parent_path().parent_path();
  const fs::path metrics = runs / "metrics" / info.run_id;
  if (info.run_id.empty() || !fs::exists(metrics)) return;
  MetricsWriter writer(metrics / "rank_0.duckdb");
  for (const auto& [tag, value] : report_metrics(report)) writer.add(info.step, tag, value);
  try {
    writer.flush();
  } catch (const Error& error) {
    say("warning: the run's metrics have nothing of this evaluation: {}\n", error.what());
  }
}

}  // namespace

void eval_command(const EvalArguments& arguments) {
  EvalOptions options{.suites = suites_of(arguments), .data_dir = arguments.data, .limit = arguments.limit};
  std::optional<ModelFolder> folder;
  if (!is_configuration(arguments.model)) folder.emplace(arguments);
  const Subject subject = folder ? stored_subject(folder->path()) : random_subject(arguments);
  const auto scorer = make_scorer(subject, arguments);
  const TokenRules rules{
      .tokenizer = subject.tokenizer.get(), .begin_ids = begin_ids(subject), .max_tokens = scorer->max_tokens()};
  std::optional<EvalJournal> journal;
  if (!arguments.out.empty()) {
    journal.emplace(
        arguments.out,
        fmt::format("weights {}, tokenizer {}, texts begin with [{}] and have up to {} tokens, {} in {}",
                    combined_sha256(subject.checkpoint->model()), subject.tokenizer->hash(),
                    fmt::join(rules.begin_ids, ", "), rules.max_tokens,
                    arguments.device == "cpu" || arguments.share_prefixes ? arguments.device : "cuda, packed",
                    arguments.device == "cpu" || arguments.fp32 ? "fp32" : "bf16"));
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
  const EvalReport report = evaluate(*scorer, rules, options, pool, journal ? &*journal : nullptr);
  line.reset();
  if (!arguments.out.empty()) {
    write_file_atomically(fs::path(arguments.out) / "items.jsonl", item_lines(report));
    write_file_atomically(fs::path(arguments.out) / "report.json", report_json(report));
  }
  if (subject.checkpoint) record(subject.checkpoint->path(), subject.checkpoint->info(), report);
  if (arguments.json) {
    fmt::print("{}", report_json(report));
  } else {
    print_report(report);
  }
}

}  // namespace nmoe::cli
