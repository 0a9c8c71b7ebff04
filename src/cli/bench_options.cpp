#include "cli/bench_options.h"

#include <string>

#include "cli/command_options.h"

namespace nmoe::cli {
namespace {

void add_train(CLI::App& bench, BenchTrainArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand("train", "time training steps of a configuration");
  add_config_arguments(command, arguments.config);
  command->add_option("--steps", arguments.steps, "steps to time")->check(number(1))->capture_default_str();
  command->add_option("--warmup", arguments.warmup, "steps before those; the first is timed from the program's start")
      ->check(number(1))
      ->capture_default_str();
  command->add_option("--products", arguments.products,
                      "on cuda: table of algorithms for dense products, instead of the program's; an empty one: "
                      "cuBLASLt's choice for all");
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_train_command(arguments); }; });
}

void add_tune(CLI::App& bench, BenchTuneArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand(
      "tune", "find algorithms of dense products that are faster than cuBLASLt's first choices, on cuda");
  command->add_option("config", arguments.configs, "configuration files (TOML) whose products are timed")
      ->required()
      ->type_name("FILE");
  add_repeatable(command, "--set", arguments.overrides, "change one key of all configurations (repeatable)",
                 "KEY=VALUE");
  command
      ->add_option("--out", arguments.out,
                   "table to write; in an existing one, only products that are timed are replaced")
      ->required()
      ->type_name("FILE");
  command->callback([&arguments, &run] { run = [&arguments] { bench_tune_command(arguments); }; });
}

void add_ops(CLI::App& bench, BenchOpsArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand("ops", "time each operation of a training step against its bound");
  add_device(command, arguments.run.device, "cpu or cuda");
  command->add_flag_callback(
      "--fp32", [&arguments] { arguments.run.precision = Precision::kFp32; }, "on cuda: fp32 instead of bf16");
  command->add_flag_callback(
      "--fp8", [&arguments] { arguments.run.precision = Precision::kFp8; },
      "layers' products with fp8 operands; the time includes rounding activations");
  add_threads(command, arguments.run.threads);
  command->add_option("--only", arguments.only, "only operations whose names contain this")->type_name("TEXT");
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_ops_command(arguments); }; });
}

void add_decode(CLI::App& bench, BenchDecodeArguments& arguments, std::function<void()>& run) {
  CLI::App* command =
      bench.add_subcommand("decode", "time generation, compared with recomputing the text for every token");
  command->add_option("model", arguments.model, "a checkpoint, or a configuration (.toml), for random weights")
      ->required();
  add_repeatable(command, "--set", arguments.overrides, "change one key of a configuration (repeatable)", "KEY=VALUE");
  CLI::Option* const tokens =
      command->add_option("--tokens", arguments.tokens, "tokens of the longest text, where texts are written")
          ->check(number(1))
          ->capture_default_str();
  CLI::Option* const batches =
      command
          ->add_option("--batches", arguments.batches,
                       "texts written at a time; unless given, 1, 4 and 16 on the CPU, 1, 16 and 256 on cuda")
          ->type_name("N,N...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(number(1));
  CLI::Option* const prompts = command->add_option("--prompts", arguments.prompts, "time reading so many prompts alone")
                                   ->check(number(1))
                                   ->excludes(tokens)
                                   ->excludes(batches);
  command->add_option("--prompt-tokens", arguments.prompt_tokens, "the shortest and the longest of them, in tokens")
      ->type_name("MIN:MAX")
      ->needs(prompts)
      ->capture_default_str();
  command->add_option("--pass-rows", arguments.pass_rows, "most tokens of a pass; unless given, the device's number")
      ->check(number(1));
  command->add_option("--device", arguments.device, "cpu or cuda; unless given, run.device of a configuration, or cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(command, arguments.threads);
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_decode_command(arguments); }; });
}

void add_speculate(CLI::App& bench, BenchSpeculateArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand(
      "speculate", "time generation with guesses (--draft) against generation without, by SPEED-Bench's measures");
  SpeculateBenchOptions& options = arguments.options;
  command->add_option("model", arguments.model, "a checkpoint, or a configuration (.toml), for random weights")
      ->required();
  add_repeatable(command, "--set", arguments.overrides, "change one key of a configuration (repeatable)", "KEY=VALUE");
  add_draft(command, options.draft);
  command
      ->add_option("--prompts", options.prompts,
                   "qualitative: texts of 11 categories; throughput: prompts of given lengths and of low to high "
                   "entropy, and random tokens; FILE: JSON lines or Parquet with question_id, category and turns")
      ->type_name("qualitative|throughput|FILE")
      ->capture_default_str();
  const auto numbers = [command](const char* name, std::vector<int64_t>& values, const char* what, double most) {
    return command->add_option(name, values, what)
        ->type_name("N,N...")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(number(1, most));
  };
  numbers("--batches", arguments.batches, "texts at a time, up to 512; unless given, 1, and 32 on cuda", 512);
  numbers("--input-tokens", options.input_tokens, "tokens of each prompt of throughput", 1e6)->capture_default_str();
  command
      ->add_option("--limit", options.limit,
                   "prompts of each category, the first; 0: all, of throughput as many as are written at a time, at "
                   "least 4")
      ->check(number(0))
      ->capture_default_str();
  command->add_option("--tokens", options.tokens, "most tokens of an answer")->check(number(2))->capture_default_str();
  command->add_option("--runs", options.runs, "runs with guesses and without that are timed, in turns")
      ->check(number(1))
      ->capture_default_str();
  command->add_option("--context", options.context, "tokens of prompt and answers together; 0: as many as are needed")
      ->check(number(0))
      ->capture_default_str();
  command
      ->add_option("--cache-positions", options.cache_positions,
                   "tokens that all texts together have room for in the cache; 0: the context for each")
      ->check(number(0))
      ->capture_default_str();
  command->add_option("--device", arguments.device, "cpu or cuda; unless given, run.device of a configuration, or cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_threads(command, options.num_threads);
  add_sampling(command, options.sampling);
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_speculate_command(arguments); }; });
}

void add_exchange(CLI::App& bench, BenchExchangeArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand("exchange", "time the exchange of tokens between ranks by itself");
  add_config_arguments(command, arguments.config);
  add_ranks(command, arguments.config);
  command
      ->add_option("--blocks", arguments.blocks,
                   "thread blocks that send rows, each measured; 0, the default: as many as fill the GPU")
      ->type_name("N,N...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number(0));
  command
      ->add_option("--skew", arguments.skew,
                   "share of choices that fall on rank 0's experts, over the mean of ranks; 1: balanced")
      ->check(number(1))
      ->capture_default_str();
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_exchange_command(arguments); }; });
}

void add_loader(CLI::App& bench, BenchLoaderArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand("loader", "time reading batches, without training");
  add_config_arguments(command, arguments.config);
  command->add_option("--megabytes", arguments.megabytes, "megabytes of tokens to read, at 4 bytes each")
      ->check(number(1))
      ->capture_default_str();
  command->callback([&arguments, &run] { run = [&arguments] { bench_loader_command(arguments); }; });
}

void add_tokenizer(CLI::App& bench, BenchTokenizerArguments& arguments, std::function<void()>& run) {
  CLI::App* command = bench.add_subcommand("tokenizer", "time a tokenizer on a text");
  command->add_option("tokenizer", arguments.tokenizer, kTokenizerSource)->required();
  command->add_option("file", arguments.file, "text to encode; unless given, standard input");
  add_threads(command, arguments.threads, "most threads to try; 0: one per available CPU");
  add_json(command, arguments.json);
  command->callback([&arguments, &run] { run = [&arguments] { bench_tokenizer_command(arguments); }; });
}

}  // namespace

void add_bench(CLI::App& app, BenchArguments& arguments, std::function<void()>& run) {
  CLI::App* bench = app.add_subcommand("bench", "measure speed")->require_subcommand(1);
  add_train(*bench, arguments.train, run);
  add_tune(*bench, arguments.tune, run);
  add_ops(*bench, arguments.ops, run);
  add_decode(*bench, arguments.decode, run);
  add_speculate(*bench, arguments.speculate, run);
  add_exchange(*bench, arguments.exchange, run);
  add_loader(*bench, arguments.loader, run);
  add_tokenizer(*bench, arguments.tokenizer, run);
}

}  // namespace nmoe::cli
