// The program's commands. command_line.cpp turns arguments into these structs; each command is one function here and
// one file beside it. Results go to standard output, progress and reports to standard error. Failures throw Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/speculate_bench.h"
#include "chat/checkpoint_settings.h"
#include "checkpoint/merge.h"
#include "config/config.h"
#include "data/prep/prep.h"
#include "data/synthetic/write.h"
#include "data/tokenizer/bpe_train.h"
#include "eval/generation_parity.h"
#include "hf/export.h"
#include "hf/import.h"
#include "hf/parity.h"
#include "infer/draft/drafter.h"
#include "infer/sampler.h"
#include "track/tags/losses.h"

namespace nmoe::cli {

// A configuration file and what --set changes in it.
struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;  // "section.key=value"
};

struct TrainArguments {
  ConfigArguments config;
  bool resume = false;
  bool fit = false;  // with the keys that choose_fit() chooses
};
void train_command(const TrainArguments& arguments);

struct SpeedrunArguments {
  ConfigArguments config;
  std::vector<std::string> tasks = {"core"};
  std::string data = "data/eval";
  std::string leaderboard = "LEADERBOARD.json";
  int64_t batch = 0;  // as EvalArguments
  bool list = false;  // only print the leaderboard
};
// Trains to train.target_loss, evaluates, and adds an entry to the leaderboard (docs/speedrun.md). Error (runtime)
// where the run ends before its target: then there is no entry.
void speedrun_command(const SpeedrunArguments& arguments);

struct PlanArguments {
  ConfigArguments config;
  bool resume = false;        // for a run that goes on: its name is taken
  std::string device_memory;  // a part's name or a size, to plan for instead of a device that is here; "": not
  bool fit = false;           // print which choices fit (train/plan/fit_plan.h), instead of the configured one
  bool json = false;          // these as JSON
};
void plan_command(const PlanArguments& arguments);

struct ConfigCommandArguments {
  ConfigArguments config;
  // Instead of a file:
  bool all = false;             // the reference of all keys
  std::string config_template;  // this one to begin with (config/templates.h)
  std::string hf_model;         // that of a model in this folder of Hugging Face's
};
void config_command(const ConfigCommandArguments& arguments);

// Models of Hugging Face, in and out.
struct ImportArguments {
  ImportOptions options;
  bool dry_run = false;  // only reads config.json
};
void import_command(const ImportArguments& arguments);
struct ExportArguments {
  ExportOptions options;      // but for the conversations
  std::string chat_template;  // as ChatTemplate takes it
};
void export_command(const ExportArguments& arguments);

struct ParityArguments {
  ParityOptions options;
  std::string precision = "fp32";  // or "bf16", "fp8", "mxfp8", "nvfp4"
  // Not given: 1e-5, 1e-4 and 1e-4; in another precision than fp32, none.
  std::optional<double> loss_tolerance;      // nats
  std::optional<double> logit_tolerance;     // absolute
  std::optional<double> gradient_tolerance;  // relative, of each tensor
};
// Error (runtime) when anything is beyond its tolerance.
void parity_command(const ParityArguments& arguments);

struct GenerationParityArguments {
  std::string checkpoint;
  std::string prompt_file;  // empty: none
  GenerationParityOptions options;
};
// Error (runtime) when anything differs.
void generation_parity_command(GenerationParityArguments arguments);

void prep_command(PrepOptions options);
void synthesize_command(const SynthesizeOptions& options);

// What a run reads of which source, before it runs.
void data_plan_command(const ConfigArguments& arguments);

// `dir` holds the splits of a dataset, or is one.
void data_verify_command(const std::string& dir);
struct DataInfoArguments {
  std::string dir;
  int64_t seq_len = DataConfig{}.seq_len;  // of the windows that are counted
};
void data_info_command(const DataInfoArguments& arguments);

struct DataSampleArguments {
  std::string dir;
  std::string split = "train";
  // One of the three, or none: the first documents.
  std::optional<int64_t> position = {};  // of a token
  std::optional<int64_t> document = {};
  std::optional<uint64_t> seed = {};
  int64_t count = 1;
};
void data_sample_command(const DataSampleArguments& arguments);

struct TokenizerTrainArguments {
  BpeTrainOptions options;  // specials: besides ChatML's
  bool no_chatml = false;   // leave those out
  std::string out;
};
void tokenizer_train_command(const TokenizerTrainArguments& arguments);
// Reads text from standard input, prints ids; and the reverse. `allowed` are special tokens that count in the text, or
// "all".
void tokenizer_encode_command(const std::string& tokenizer, const std::vector<std::string>& allowed);
void tokenizer_decode_command(const std::string& tokenizer);
void tokenizer_info_command(const std::string& tokenizer);

void checkpoint_info_command(const std::string& path);
void checkpoint_verify_command(const std::string& path);
void checkpoint_merge_command(MergeOptions options);

struct GenerateArguments {
  std::string checkpoint;
  std::vector<std::string> prompts;  // "-": standard input; none: the same, unless that is a terminal
  int64_t max_tokens = 200;
  SamplingOptions sampling{.temperature = 0.8, .top_p = 0.95};
  std::vector<std::string> stop;
  std::string device = "cpu";  // or "cuda"
  int threads = 0;
  int64_t context = 0;                             // 0: the model's
  int64_t cache_positions = 0;                     // of all texts together; 0: the context for each
  std::optional<GenerationArithmetic> arithmetic;  // in place of the checkpoint's
  DraftOptions draft;
};
// Error (usage) where standard input is asked for twice. Without any prompt: the start of a document.
void generate_command(const GenerateArguments& arguments);

struct ChatArguments {
  std::string checkpoint;
  std::string chat_template;  // as ChatTemplate takes it
  std::string system;
  SamplingDefaults sampling;  // before what the checkpoint says
  uint64_t seed = 1;
  int64_t max_tokens = 0;      // of a reply; 0: as many as there is room for
  std::string device = "cpu";  // or "cuda"
  int threads = 0;
  int64_t context = 0;                             // 0: the model's
  std::optional<GenerationArithmetic> arithmetic;  // in place of the checkpoint's
  DraftOptions draft;
};
// A conversation: lines of standard input are what the user says, replies go to standard output.
void chat_command(const ChatArguments& arguments);

struct ServeArguments {
  std::string checkpoint;
  std::string chat_template;
  std::string host = "127.0.0.1";
  int port = 8000;
  int64_t max_sequences = 8;
  int64_t cache_positions = 0;  // 0: max_sequences times the context
  int64_t max_context = 0;      // 0: the model's
  int64_t max_queue = 64;
  std::string api_key_file;  // "": NMOE_API_KEY, if that is set
  std::vector<std::string> allowed_hosts;
  std::string max_body = "8MiB";
  std::string max_header = "16KiB";
  int64_t max_connections = 1024;
  int64_t client_timeout = 20;  // seconds
  std::string model_name;       // "": run.name
  std::string device = "cpu";   // or "cuda"
  int threads = 0;
  std::optional<GenerationArithmetic> arithmetic;  // in place of the checkpoint's
  DraftOptions draft;
};
// Serves OpenAI's API over HTTP until a signal to stop (base/signals.h; docs/serving.md).
void serve_command(const ServeArguments& arguments);

struct EvalArguments {
  std::string model;               // a checkpoint, a folder of them, a Hugging Face model's, or a configuration
  std::string tokenizer;           // of a configuration, whose weights are random
  std::vector<std::string> tasks;  // suites, tasks of them, files of tasks
  std::vector<std::string> texts;  // files of documents, whose bits per byte are told
  std::string data = "data/eval";
  std::string out;      // "": nothing is kept
  int64_t limit = 0;    // items of a task; 0: all
  int64_t context = 0;  // tokens of a text; 0: the model's
  int64_t batch = 0;    // items, on cuda answers, at a time; 0: what suits the device
  std::string device = "cpu";
  bool fp32 = false;  // on cuda, instead of bf16
  int threads = 0;
  bool share_prefixes = true;
  bool json = false;
  std::optional<GenerationArithmetic> arithmetic;  // in place of the checkpoint's
  DraftOptions draft;
};
void eval_command(const EvalArguments& arguments);

struct EvalCompareArguments {
  std::string a, b;  // folders that eval_command() wrote
  bool json = false;
};
void eval_compare_command(const EvalCompareArguments& arguments);

struct RunsArguments {
  std::string dir = "runs";
  // Of the list.
  int64_t limit = 20;
  std::vector<std::string> filters;
  std::string sort;
  bool grouped = false;
  bool json = false;
  // Of what is done with runs.
  std::vector<std::string> runs;
  // Of compare.
  std::string goal;  // empty: see RunReportOptions
  std::string direction = "min";
  std::string by = "tokens";
  bool markdown = false;
  std::string tag = std::string(tags::kLoss.tag);
  std::string format = "csv";
  std::string out;
  std::string note;
};
void runs_command(const RunsArguments& arguments);
void runs_show_command(const RunsArguments& arguments);
void runs_compare_command(const RunsArguments& arguments);
void runs_plot_command(const RunsArguments& arguments);
void runs_export_command(const RunsArguments& arguments);
void runs_note_command(const RunsArguments& arguments);
void runs_rm_command(const RunsArguments& arguments);
void runs_prune_command(const RunsArguments& arguments);
void runs_tags_command();

struct SelfTestArguments {
  std::string device = "cpu";
  bool fp32 = false;
  int threads = 0;
};
// Error (runtime) with the name of the operation that is not what the CPU makes of it.
void selftest_command(const SelfTestArguments& arguments);

struct MonArguments {
  std::string dir = "runs";
  std::string run;  // "": the newest
  bool no_colour = false;
};
void mon_command(const MonArguments& arguments);

struct VizArguments {
  std::string dir = "runs";
  std::string host = "127.0.0.1";
  int port = 8010;
  std::vector<std::string> allowed_hosts;
  std::string memory = "2GiB";
};
// Serves a page that shows runs, until a signal to stop (base/signals.h; docs/viz.md).
void viz_command(const VizArguments& arguments);

struct BenchTrainArguments {
  ConfigArguments config;
  int64_t steps = 10;
  int64_t warmup = 3;
  std::string
      products;  // file with a table of dense products' algorithms (ops/products/products.h), instead of the program's
  bool json = false;
};
void bench_train_command(const BenchTrainArguments& arguments);

struct BenchTuneArguments {
  std::vector<std::string> configs;    // files
  std::vector<std::string> overrides;  // of each
  std::string out;                     // a table that is there is kept, but for the lines of products that are timed
};
void bench_tune_command(const BenchTuneArguments& arguments);

struct BenchOpsArguments {
  RunConfig run;     // device, precision and threads of it
  std::string only;  // part of the names of the operations to time; "": all
  bool json = false;
};
void bench_ops_command(const BenchOpsArguments& arguments);

struct BenchDecodeArguments {
  std::string model;                   // a checkpoint, a folder of them, or a configuration: random weights
  std::vector<std::string> overrides;  // of a configuration
  std::string device;                  // "": a configuration's run.device, for checkpoints "cpu"
  int threads = 0;
  int64_t tokens = 256;          // of the longest text
  std::vector<int64_t> batches;  // texts at a time; empty: the device's own
  int64_t prompts = 0;           // instead: prompts to be read, of
  std::string prompt_tokens = "256:4096";
  int64_t pass_rows = 0;  // of a pass; 0: the device's own number
  bool json = false;
};
void bench_decode_command(const BenchDecodeArguments& arguments);

struct BenchSpeculateArguments {
  std::string model;  // as BenchDecodeArguments has it, as the next two
  std::vector<std::string> overrides;
  std::string device;
  std::vector<int64_t> batches;   // texts at a time; empty: 1 and, on cuda, 32
  SpeculateBenchOptions options;  // but for device and batches
  bool json = false;
};
void bench_speculate_command(const BenchSpeculateArguments& arguments);

struct BenchExchangeArguments {
  ConfigArguments config;
  std::vector<int64_t> blocks;  // empty: as many as fill the device
  double skew = 1.0;
  bool json = false;
};
void bench_exchange_command(const BenchExchangeArguments& arguments);

struct BenchLoaderArguments {
  ConfigArguments config;
  int64_t megabytes = 1000;  // of tokens to read
};
void bench_loader_command(const BenchLoaderArguments& arguments);

struct BenchTokenizerArguments {
  std::string tokenizer;
  std::string file;  // "": standard input
  int threads = 0;   // the most; 0: one per available CPU
  bool json = false;
};
void bench_tokenizer_command(const BenchTokenizerArguments& arguments);

// Of all the above.
struct BenchArguments {
  BenchTrainArguments train;
  BenchTuneArguments tune;
  BenchOpsArguments ops;
  BenchDecodeArguments decode;
  BenchSpeculateArguments speculate;
  BenchExchangeArguments exchange;
  BenchLoaderArguments loader;
  BenchTokenizerArguments tokenizer;
};

}  // namespace nmoe::cli
