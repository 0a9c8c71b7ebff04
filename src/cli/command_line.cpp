#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/version.h"
#include "chat/conversation_encoder.h"
#include "cli/bench_options.h"
#include "cli/command_options.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/coordinates_command.h"
#include "cli/eval_options.h"
#include "cli/help.h"
#include "cli/named_checkpoint.h"
#include "cli/run_options.h"
#include "cli/sweep_command.h"
#include "config/templates.h"
#include "ops/factory.h"

namespace nmoe::cli {
namespace {

constexpr const char* kDocumentInputs = "files, folders (all .txt, .jsonl, .ndjson and .parquet below) or globs";
constexpr const char* kCheckpoint = "a checkpoint, or a folder of them, for the latest";
constexpr const char* kSkipBad = "unusable records to skip before it is an error";

}  // namespace

class CommandLine::Commands {
 public:
  Commands() {
    app_.set_version_flag("--version",
                          [] { return fmt::format("nmoe {} ({})\n{}", version(), commit(), compiled_devices()); });
    app_.require_subcommand(1);
    app_.formatter(std::make_shared<HelpFormatter>());  // commands inherit it
    add_training(app_);
    add_data(app_);
    add_checkpoints(app_);
    add_hugging_face(app_);
    add_conversation(app_);
    add_evaluation(app_, eval_, eval_compare_, run_);
    add_research(app_);
    add_measurement(app_);
    add_help(app_);
  }

  std::function<void()> parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& asked) {  // --help, --version
      return [this, asked] { app_.exit(asked); };
    } catch (const CLI::ParseError& error) {
      return fail_or_help(error);
    }
    return run_;
  }

 private:
  // What is wrong with the arguments, thrown as every other error. Without a command, where one is needed, its help.
  std::function<void()> fail_or_help(const CLI::ParseError& error) {
    const CLI::App* command = &app_;
    std::string path = app_.get_name();
    while (!command->get_subcommands().empty()) {
      command = command->get_subcommands().front();
      path += ' ' + command->get_name();
    }
    if (command->get_require_subcommand_min() == 0) {
      throw usage_error(fmt::format("{}: {}", path, error.what()), fmt::format("see {} --help", path));
    }
    const std::vector<std::string> unknown = app_.remaining(/*recurse=*/true);
    if (!unknown.empty()) fail_unknown_command(*command, path, unknown.front());
    return [command, path] {
      fmt::print("{}", command->get_formatter()->make_help(command, path, CLI::AppFormatMode::Normal));
    };
  }

  void add_training(CLI::App& app) {
    CLI::App* train = app.add_subcommand("train", "train a model");
    add_config_arguments(train, train_.config);
    add_ranks(train, train_.config);
    train->add_flag("--resume", train_.resume, "continue from the run's latest checkpoint, if there is one");
    train->add_flag("--fit", train_.fit, "choose recomputation, microbatch and offload: the first of n plan --fit");
    train->callback([this] { run_ = [this] { train_command(train_); }; });

    add_speedrun(app);

    CLI::App* plan = app.add_subcommand("plan", "print the memory and work that a run will take");
    add_config_arguments(plan, plan_.config);
    add_ranks(plan, plan_.config);
    plan->add_flag("--resume", plan_.resume, "for n train --resume: a run of this name may have begun");
    plan->add_option("--device-memory", plan_.device_memory,
                     "plan for a GPU that is not here: h100-80g, h200-141g, b200-192g, or its memory, such as 80GiB")
        ->type_name("PART|SIZE");
    CLI::Option* fit = plan->add_flag(
        "--fit", plan_.fit, "print the choices of recomputation, microbatch and offload that fit, fastest first");
    plan->add_flag("--json", plan_.json, "print them as JSON")->needs(fit);
    plan->callback([this] { run_ = [this] { plan_command(plan_); }; });

    add_config(app);

    add_run_commands(app, runs_, mon_, viz_, run_);
  }

  void add_config(CLI::App& app) {
    CLI::App* config = app.add_subcommand("config", "print a configuration with every value resolved, or all keys");
    CLI::Option* file = add_config_arguments(config, config_command_.config)->required(false);
    CLI::Option* all =
        config->add_flag("--all", config_command_.all, "print all keys with their meanings, as in docs/config.md");
    CLI::Option* begin =
        config->add_option("--template", config_command_.config_template, "print a configuration to start from")
            ->check(CLI::IsMember(config_template_names()))
            ->type_name("NAME");
    CLI::Option* from =
        config->add_option("--from", config_command_.hf_model, "print that of a Hugging Face model, with its [model]")
            ->type_name("HF_DIR");
    all->excludes(file)->excludes(begin)->excludes(from);
    begin->excludes(file)->excludes(from);
    from->excludes(file);
    config->callback([this, file, all, begin, from] {
      if (file->empty() && all->empty() && begin->empty() && from->empty()) {
        throw CLI::RequiredError("a configuration file, --all, --template or --from");
      }
      if (file->empty() && !config_command_.config.overrides.empty()) {
        throw CLI::RequiredError("a configuration file, whose keys --set changes,");
      }
      run_ = [this] { config_command(config_command_); };
    });
  }

  // What tells of the other commands, which are all declared by then.
  void add_help(CLI::App& app) {
    CLI::App* help = app.add_subcommand("help", "explain a command and its options");
    help->add_option("command", help_path_, "for example: tokenizer train; without it, all commands");
    help->add_flag("--man", manual_, "print the manual page");
    help->callback([this, &app] {
      run_ = [this, &app] {
        fmt::print("{}", manual_ ? manual_page(app, std::string(version())) : help_of(app, help_path_));
      };
    });

    CLI::App* completion = app.add_subcommand("completion", "print a completion script for a shell");
    completion->add_option("shell", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    completion->callback([this, &app] { run_ = [this, &app] { fmt::print("{}", completion_script(app, shell_)); }; });
  }

  void add_data(CLI::App& app) {
    add_prep(app);
    add_dataset(app);

    CLI::App* tokenizer = app.add_subcommand("tokenizer", "train and use tokenizers")->require_subcommand(1);
    CLI::App* train = tokenizer->add_subcommand("train", "learn a byte-level BPE from text, JSON and Parquet");
    BpeTrainOptions& options = tokenizer_train_.options;
    train->add_option("inputs", options.inputs, kDocumentInputs)->required();
    train->add_option("--vocab-size", options.vocab_size, "number of ids, special tokens included")
        ->capture_default_str();
    add_repeatable(train, "--special", options.specials,
                   "a special token to add, besides <|endoftext|> and ChatML's (repeatable)", "TOKEN");
    train->add_flag("--no-chatml", tokenizer_train_.no_chatml,
                    "leave out ChatML's special tokens, <|im_start|> and <|im_end|>, which n chat needs unless a chat "
                    "template has others");
    train->add_option("--text-field", options.records.text_field, "field of JSON and Parquet that holds the text")
        ->capture_default_str();
    train->add_option("--messages-field", options.records.messages_field, "instead: field that holds conversations");
    add_threads(train, options.threads);
    train->add_option("--skip-bad", options.skip_bad, kSkipBad)->check(number(0))->capture_default_str();
    train->add_option("-o,--out", tokenizer_train_.out, "file to write (tokenizer.json)")->required();
    train->callback([this] { run_ = [this] { tokenizer_train_command(tokenizer_train_); }; });
    const auto add_use = [&](const char* name, const char* what, std::function<void()> command) {
      CLI::App* use = tokenizer->add_subcommand(name, what);
      use->add_option("tokenizer", tokenizer_, kTokenizerSource)->required();
      use->callback([this, command] { run_ = command; });
      return use;
    };
    CLI::App* encode = add_use("encode", "print the ids of the text on standard input",
                               [this] { tokenizer_encode_command(tokenizer_, allowed_specials_); });
    add_repeatable(encode, "--allow-special", allowed_specials_,
                   "a special token to recognise in the text, or \"all\" (repeatable)", "TOKEN");
    add_use("decode", "print the text of the ids on standard input", [this] { tokenizer_decode_command(tokenizer_); });
    add_use("info", "print kind, patterns, vocabulary, special tokens and hash",
            [this] { tokenizer_info_command(tokenizer_); });
  }

  void add_prep(CLI::App& app) {
    CLI::App* prep = app.add_subcommand("prep", "turn text, JSON and Parquet files into shards of tokens");
    prep->add_option("inputs", prep_.inputs, kDocumentInputs)->required();
    prep->add_option("--valid", prep_.valid_inputs, "files for the validation split");
    prep->add_option("--valid-fraction", prep_.valid_fraction,
                     "instead: share of documents for validation, chosen by hash");
    prep->add_option("--valid-tail", prep_.valid_tail, "instead: share of each text file for validation, from its end");
    prep->add_option("--text-field", prep_.records.text_field, "field of JSON and Parquet that holds the text")
        ->capture_default_str();
    prep->add_option("--id-field", prep_.records.id_field, "field that identifies a document in dropped.jsonl");
    CLI::Option* prompt = prep->add_option("--prompt-field", prep_.records.prompt_field,
                                           "field that goes before the text and carries no loss");
    CLI::Option* messages = prep->add_option("--messages-field", prep_.records.messages_field,
                                             "field with lists of {role, content}; loss on the assistant's turns only");
    messages->excludes(prompt);
    prep->add_option(
            "--chat-template", conversations_.chat_template,
            "template of conversations: chatml, a Jinja file, or the folder of a model or checkpoint that has one")
        ->needs(messages)
        ->capture_default_str();
    prep->add_option("--template-date", conversations_.date, "the date that a chat template writes, as YYYY-MM-DD")
        ->needs(messages)
        ->capture_default_str();
    add_repeatable(
        prep, "--ignore-field", conversations_.ignored_fields,
        "field of records or messages that means nothing, though the template does not look at it (repeatable)", "NAME")
        ->needs(messages);
    prep->add_option("--split-on", prep_.records.split_on,
                     "line that separates documents within a text file; \"\": blank lines");
    prep->add_option("--max-record", max_record_, "largest record to read; unless given, 512MiB");
    prep->add_option("--tokenizer", prep_.tokenizer, kTokenizerSource)->capture_default_str();
    prep->add_option("--dataset", prep_.dataset, "name of the dataset, part of its files' names")
        ->capture_default_str();
    prep->add_option("--tokens-per-shard", prep_.tokens_per_shard, "most tokens per file")->capture_default_str();
    add_threads(prep, prep_.threads);
    prep->add_option("--skip-bad", prep_.skip_bad, kSkipBad)->check(number(0))->capture_default_str();
    prep->add_option("--checkpoint-every", prep_.checkpoint_seconds,
                     "seconds between saves: the most work that a kill can lose")
        ->check(number(0))
        ->capture_default_str();
    prep->add_option("-o,--out", prep_.out, "folder to write; an unfinished preparation there is continued")
        ->required();
    prep->add_flag("--force", prep_.force, "replace an existing dataset");

    constexpr const char* kFilters = "Filters (all off unless given)";
    const auto add_filter = [prep](const char* name, auto& value, const char* what) {
      return prep->add_option(name, value, what)->group(kFilters);
    };
    FilterOptions& filters = prep_.filters;
    add_filter("--min-chars", filters.min_chars, "drop documents with fewer characters")->check(number(0));
    add_filter("--max-chars", filters.max_chars, "drop documents with more characters")->check(number(0));
    add_filter("--min-tokens", filters.min_tokens, "drop documents with fewer tokens")->check(number(0));
    add_filter("--max-tokens", filters.max_tokens, "drop documents with more tokens")->check(number(0));
    add_filter("--max-symbols", filters.max_symbols, "drop documents with a larger share of symbols (usual: 0.3)")
        ->check(number(0, 1));
    add_filter("--max-repeated-lines", filters.max_repeated_lines,
               "drop documents with a larger share of repeated lines (Gopher: 0.3)")
        ->check(number(0, 1));
    CLI::Option* ngrams = add_filter("--max-repeated-ngrams", filters.max_repeated_ngrams,
                                     "drop documents with more text in repeated n-grams (Gopher: 0.1 for n = 10)");
    ngrams->check(number(0, 1));
    add_filter("--ngram-words", filters.ngram_words, "words per n-gram")
        ->needs(ngrams)
        ->check(number(2))
        ->capture_default_str();
    prep->add_flag("--dedup", prep_.dedup, "drop documents equal to an earlier one")->group(kFilters);
    CLI::Option* near_dedup =
        prep->add_flag("--near-dedup", near_dedup_, "drop documents similar to an earlier one (MinHash; slow)")
            ->group(kFilters);
    add_filter("--near-dedup-threshold", near_dedup_threshold_, "Jaccard index from which documents count as similar")
        ->needs(near_dedup)
        ->check(number(0, 1))
        ->capture_default_str();
    prep->callback([this] {
      if (near_dedup_) prep_.near_dedup = near_dedup_threshold_;
      if (!max_record_.empty()) {
        prep_.records.max_bytes = static_cast<size_t>(parse_bytes(max_record_, "--max-record"));
      }
      if (!prep_.records.messages_field.empty()) {
        prep_.records.ignored_fields = conversations_.ignored_fields;
        prep_.conversations = [this](std::shared_ptr<const Tokenizer> tokenizer) {
          conversations_.chat_template = template_source(conversations_.chat_template);
          return make_conversation_encoder(conversations_, std::move(tokenizer));
        };
      }
      run_ = [this] { prep_command(prep_); };
    });
  }

  void add_dataset(CLI::App& app) {
    CLI::App* data = app.add_subcommand("data", "plan, generate, check and inspect data")->require_subcommand(1);
    CLI::App* plan = data->add_subcommand("plan", "print how much a run reads of each source, and how often");
    add_config_arguments(plan, config_);
    plan->callback([this] { run_ = [this] { data_plan_command(config_); }; });

    CLI::App* synthesize = data->add_subcommand("synthesize", "generate a corpus from a distribution of known entropy");
    synthesize->add_option("kind", synthesize_.kind, "cfg, khop or arithmetic")->required();
    synthesize->add_option("out", synthesize_.out, "folder to write")->required();
    synthesize->add_option("--documents", synthesize_.documents, "documents for training")
        ->check(number(1))
        ->required();
    synthesize->add_option("--valid-documents", synthesize_.valid_documents, "documents for validation")
        ->check(number(0))
        ->capture_default_str();
    synthesize->add_option("--seed", synthesize_.seed)->capture_default_str();
    add_repeatable(synthesize, "--set", synthesize_.settings, "change one setting of this kind of corpus (repeatable)",
                   "KEY=VALUE");
    synthesize->add_option("--tokens-per-shard", synthesize_.tokens_per_shard, "most tokens per file")
        ->capture_default_str();
    add_threads(synthesize, synthesize_.threads);
    synthesize->add_flag("--all-tokens", synthesize_.all_tokens, "train on the questions too, not only on the answers");
    synthesize->add_flag("--force", synthesize_.force, "replace an existing dataset");
    synthesize->callback([this] { run_ = [this] { synthesize_command(synthesize_); }; });

    CLI::App* verify = data->add_subcommand("verify", "check checksums, ids and indexes of every shard");
    verify->add_option("dir", data_dir_, "a folder written by n prep, or one of its splits")->required();
    verify->callback([this] { run_ = [this] { data_verify_command(data_dir_); }; });

    CLI::App* info = data->add_subcommand("info", "print tokenizer, counts and lengths of documents");
    info->add_option("dir", data_info_.dir, "a folder written by n prep, or one of its splits")->required();
    info->add_option("--seq-len", data_info_.seq_len,
                     "with a loss mask, count windows of so many tokens (data.seq_len) that have a token to learn")
        ->check(number(1, 1 << 30))
        ->capture_default_str();
    info->callback([this] { run_ = [this] { data_info_command(data_info_); }; });

    CLI::App* sample = data->add_subcommand("sample", "print documents as text");
    sample->add_option("dir", data_sample_.dir, "a folder written by n prep")->required();
    sample->add_option("--split", data_sample_.split)->capture_default_str();
    auto* position = sample->add_option("--position", data_sample_.position, "start with the document at this token");
    auto* document =
        sample->add_option("--document", data_sample_.document, "start with this document, counted from 0");
    sample->add_option("--seed", data_sample_.seed, "instead: seed to draw documents at random")
        ->excludes(position)
        ->excludes(document);
    position->excludes(document);
    sample->add_option("--count", data_sample_.count, "documents to print")->check(number(1))->capture_default_str();
    sample->callback([this] { run_ = [this] { data_sample_command(data_sample_); }; });
  }

  void add_research(CLI::App& app) {
    CLI::App* research = app.add_subcommand("research", "questions that take several models")->require_subcommand(1);
    add_coordinates(*research, coordinates_, run_);
    add_sweep(*research, sweep_, run_);
  }

  void add_checkpoints(CLI::App& app) {
    CLI::App* checkpoint = app.add_subcommand("checkpoint", "inspect and merge checkpoints")->require_subcommand(1);
    const auto add_use = [&](const char* name, const char* what, void (*command)(const std::string&)) {
      CLI::App* use = checkpoint->add_subcommand(name, what);
      use->add_option("checkpoint", checkpoint_, kCheckpoint)->required();
      use->callback([this, command] { run_ = [this, command] { command(checkpoint_); }; });
    };
    add_use("info", "print step, tokens, fingerprints and the hash of all weights", checkpoint_info_command);
    add_use("verify", "hash everything again and report the first bad tensor", checkpoint_verify_command);
    CLI::App* merge = checkpoint->add_subcommand("merge", "write the mean of several checkpoints' weights as another");
    merge->add_option("checkpoint", merge_.checkpoints, "checkpoints, or folders of them, for the latest of each")
        ->required()
        ->expected(2, 1000)
        ->type_name("CHECKPOINT");
    merge->add_option("-o,--out", merge_.out, "folder to write the checkpoint to, as step_...")->required();
    merge
        ->add_option_function<std::string>(
            "--weights",
            [this](const std::string& name) {
              merge_.weights = name == "linear" ? MergeWeights::kLinear : MergeWeights::kUniform;
            },
            "uniform: all alike; linear: 1, 2, 3, ... in their order (default: uniform)")
        ->check(CLI::IsMember({"uniform", "linear"}));
    add_threads(merge, merge_.num_threads);
    merge->callback([this] { run_ = [this] { checkpoint_merge_command(merge_); }; });

    CLI::App* generate = app.add_subcommand("generate", "write text with a trained model");
    generate->add_option("checkpoint", generate_.checkpoint, kCheckpoint)->required();
    add_repeatable(generate, "--prompt", generate_.prompts,
                   "text to continue (repeatable: generated together); -, or none in a pipe: standard input", "TEXT");
    generate
        ->add_option("--max-tokens", generate_.max_tokens,
                     "most tokens to generate per text; fewer if the context is full")
        ->check(number(0))
        ->capture_default_str();
    add_repeatable(generate, "--stop", generate_.stop, "end a text before this (repeatable)", "TEXT");
    add_device(generate, generate_.device);
    add_threads(generate, generate_.threads);
    add_arithmetic(generate, generate_.arithmetic);
    add_draft(generate, generate_.draft);
    generate->add_option("--context", generate_.context, "tokens of prompt and text together; 0: the model's")
        ->check(number(0))
        ->capture_default_str();
    generate
        ->add_option("--cache-positions", generate_.cache_positions,
                     "tokens that all texts together have room for in the cache; 0: the context for each")
        ->check(number(0))
        ->capture_default_str();
    add_sampling(generate, generate_.sampling);
    generate->callback([this] { run_ = [this] { generate_command(generate_); }; });
  }

  void add_hugging_face(CLI::App& app) {
    // Without it, nothing is converted.
    const auto add_dtype = [](CLI::App* command, std::optional<DType>& dtype, const char* meaning) {
      command
          ->add_option_function<std::string>(
              "--dtype", [&dtype](const std::string& name) { dtype = name == "bf16" ? DType::kBF16 : DType::kF32; },
              meaning)
          ->check(CLI::IsMember({"bf16", "fp32"}))
          ->type_name("bf16|fp32");
    };
    CLI::App* imported = app.add_subcommand("import", "turn a Hugging Face model into a checkpoint");
    ImportOptions& import = import_.options;
    imported->add_option("model", import.source, "its folder: config.json, safetensors, tokenizer")->required();
    CLI::Option* out = imported->add_option("out", import.out, "folder to write the checkpoint to, as step_00000000");
    CLI::Option* dry_run =
        imported->add_flag("--dry-run", import_.dry_run, "only say whether it can be imported, from config.json alone")
            ->excludes(out);
    imported
        ->add_flag_callback(
            "--train-mtp", [&import] { import.predictions = PredictionLayers::kTrained; },
            "its multi-token-prediction layers become part of the model; else they are carried along, untrained")
        ->excludes(dry_run);
    imported
        ->add_option("--end-of-document", import.end_of_document,
                     "special token that ends documents; unless given, as n prep takes it from the same folder")
        ->type_name("TOKEN");
    add_dtype(imported, import.dtype, "dtype of the weights; unless given, as they are (FP8 becomes bf16)");
    add_threads(imported, import.num_threads);
    imported->callback([this, out] {
      if (out->empty() && !import_.dry_run) throw CLI::RequiredError("out");
      run_ = [this] { import_command(import_); };
    });

    CLI::App* exported = app.add_subcommand("export", "turn a checkpoint into a Hugging Face model");
    exported->add_option("checkpoint", export_.options.checkpoint, kCheckpoint)->required();
    exported->add_option("out", export_.options.out, "folder to create for the model")->required();
    add_dtype(exported, export_.options.dtype, "dtype of the weights; unless given, the checkpoint's");
    exported->add_flag("--keep-format", export_.options.keep_format,
                       "FP8 weights that were imported are FP8 again, the same bytes where they are unchanged");
    exported->add_option("--shard-size", shard_size_, "largest file of weights; unless given, 5GB");
    exported
        ->add_option(
            "--chat-template", export_.chat_template,
            "template of conversations to write: chatml or a Jinja file; unless given, as n chat would have it")
        ->type_name("FORM");
    add_threads(exported, export_.options.num_threads);
    exported->callback([this] {
      run_ = [this] {
        if (!shard_size_.empty()) export_.options.shard_bytes = parse_bytes(shard_size_, "--shard-size");
        export_command(export_);
      };
    });

    add_parity(app);
  }

  void add_parity(CLI::App& app) {
    CLI::App* parity = app.add_subcommand(
        "parity", "compare a Hugging Face model with what transformers computes, or generation with training");
    CLI::Option* model = parity->add_option("model", parity_.options.model, "its folder: config.json, safetensors");
    CLI::Option* expected = parity->add_option("expected", parity_.options.expected,
                                               "its loss, logits and gradients, from scripts/hf_fixture.py");
    CLI::Option* generation = add_generation_parity(parity);
    generation->excludes(model)->excludes(expected);
    const auto add_tolerance = [parity, generation](const char* name, std::optional<double>& tolerance,
                                                    const char* meaning) {
      parity->add_option(name, tolerance, meaning)->check(number(0))->excludes(generation);
    };
    add_tolerance("--loss-tolerance", parity_.loss_tolerance, "tolerance of the loss, in nats [1e-05]");
    add_tolerance("--logit-tolerance", parity_.logit_tolerance, "tolerance of each logit [0.0001]");
    add_tolerance("--gradient-tolerance", parity_.gradient_tolerance,
                  "relative tolerance of each tensor's gradient [0.0001]");
    parity
        ->add_option("--precision", parity_.precision,
                     "arithmetic (bf16: on cuda); the expected cost of a low precision is reported too")
        ->check(CLI::IsMember({"fp32", "bf16", "fp8", "mxfp8", "nvfp4"}))
        ->capture_default_str()
        ->excludes(generation);
    add_device(parity, parity_.options.device, "device to compute on, a Hugging Face model in fp32: cpu or cuda");
    add_threads(parity, parity_.options.num_threads);
    parity->callback([this, model, expected, generation] {
      for (const CLI::Option* required : {model, expected}) {
        if (generation->empty() && required->empty()) throw CLI::RequiredError(required->get_name());
      }
      if (generation->empty()) {
        run_ = [this] { parity_command(parity_); };
        return;
      }
      generation_parity_.options.device = parity_.options.device;
      generation_parity_.options.num_threads = parity_.options.num_threads;
      run_ = [this] { generation_parity_command(generation_parity_); };
    });
  }

  // The option --generation, and those that go with it.
  CLI::Option* add_generation_parity(CLI::App* parity) {
    CLI::Option* generation = parity->add_option(
        "--generation", generation_parity_.checkpoint,
        "a checkpoint: compare the log-probabilities and experts of what it generates with its training's");
    parity->add_option("--tokens", generation_parity_.options.tokens, "tokens to sample with each size of batch")
        ->check(number(1))
        ->capture_default_str()
        ->needs(generation);
    parity->add_option("--batches", generation_parity_.options.batches, "sequences at a time, one size after the other")
        ->delimiter(',')
        ->capture_default_str()
        ->needs(generation);
    parity->add_option("--longest", generation_parity_.options.longest, "tokens of a sequence with its prompt, at most")
        ->check(number(2))
        ->capture_default_str()
        ->needs(generation);
    parity->add_option("--seed", generation_parity_.options.seed, "of prompts and samples")
        ->capture_default_str()
        ->needs(generation);
    parity->add_option("--prompt-file", generation_parity_.prompt_file, "text to cut prompts from [random ids]")
        ->needs(generation);
    parity
        ->add_option("--align-documents", generation_parity_.options.align_documents,
                     "training's documents begin at multiples of so many tokens, as data.align_documents has them "
                     "[128 on CUDA, anywhere on the CPU]")
        ->check(number(1))
        ->needs(generation);
    add_arithmetic(parity, generation_parity_.options.arithmetic)->needs(generation);
    return generation;
  }

  void add_conversation(CLI::App& app) {
    constexpr const char* kTemplate =
        "template of conversations: chatml or a Jinja file; unless given, the checkpoint's own, or else chatml";
    CLI::App* chat = app.add_subcommand("chat", "chat with a model");
    chat->add_option("checkpoint", chat_.checkpoint, kCheckpoint)->required();
    chat->add_option("--system", chat_.system, "the system prompt")->type_name("TEXT");
    chat->add_option("--chat-template", chat_.chat_template, kTemplate)->type_name("FORM");
    chat->add_option("--max-tokens", chat_.max_tokens, "most tokens of a reply; 0: as many as the context has room for")
        ->check(number(0))
        ->capture_default_str();
    add_device(chat, chat_.device);
    add_threads(chat, chat_.threads);
    add_arithmetic(chat, chat_.arithmetic);
    add_draft(chat, chat_.draft);
    chat->add_option("--context", chat_.context, "tokens of the whole conversation; 0: the model's")
        ->check(number(0))
        ->capture_default_str();
    constexpr const char* kSampling = "Sampling (unless given, as the checkpoint says, else as n generate)";
    SamplingDefaults& sampling = chat_.sampling;
    chat->add_option("--repetition-penalty", sampling.repetition_penalty)->check(number(0))->group(kSampling);
    chat->add_option("--temperature", sampling.temperature)->check(number(0))->group(kSampling);
    chat->add_option("--top-k", sampling.top_k)->check(number(0))->group(kSampling);
    chat->add_option("--top-p", sampling.top_p)->check(number(0, 1))->group(kSampling);
    chat->add_option("--min-p", sampling.min_p)->check(number(0, 1))->group(kSampling);
    chat->add_option("--seed", chat_.seed)->capture_default_str()->group(kSampling);
    chat->callback([this] { run_ = [this] { chat_command(chat_); }; });

    CLI::App* serve = app.add_subcommand("serve", "serve a model over HTTP, as OpenAI's API");
    serve->add_option("checkpoint", serve_.checkpoint, kCheckpoint)->required();
    serve->add_option("--host", serve_.host, "address to listen on")->capture_default_str();
    serve->add_option("--port", serve_.port, "port to listen on; 0: any free one")
        ->check(number(0, 65535))
        ->capture_default_str();
    serve->add_option("--max-sequences", serve_.max_sequences, "texts generated at the same time")
        ->check(number(1))
        ->capture_default_str();
    serve
        ->add_option("--max-context", serve_.max_context,
                     "tokens of a prompt and its completion together; 0: the model's")
        ->check(number(0))
        ->capture_default_str();
    serve
        ->add_option("--cache-positions", serve_.cache_positions,
                     "tokens that all texts together have room for in the cache; 0: --max-sequences times the context")
        ->check(number(0))
        ->capture_default_str();
    serve->add_option("--max-queue", serve_.max_queue, "texts that may wait; more are refused")
        ->check(number(0, 100000))
        ->capture_default_str();
    serve
        ->add_option("--api-key-file", serve_.api_key_file,
                     "file whose first line is the key that clients must send; unless given, NMOE_API_KEY")
        ->type_name("FILE");
    serve
        ->add_option("--allow-host", serve_.allowed_hosts,
                     "a name to accept in the Host header, besides this machine's")
        ->type_name("NAME");
    serve->add_option("--max-body", serve_.max_body, "largest body of a request")->capture_default_str();
    serve->add_option("--max-header", serve_.max_header, "largest request line and headers together")
        ->capture_default_str();
    serve
        ->add_option("--max-connections", serve_.max_connections,
                     "most connections; beyond that, those that keep the server waiting are closed")
        ->check(number(1, 100000))
        ->capture_default_str();
    serve
        ->add_option("--client-timeout", serve_.client_timeout,
                     "seconds for a client to send headers, to send a body, or to receive 64 KiB")
        ->check(number(1, 3600))
        ->capture_default_str();
    serve->add_option("--model-name", serve_.model_name, "name of the model for clients; unless given, the run's name");
    serve->add_option("--chat-template", serve_.chat_template, kTemplate)->type_name("FORM");
    add_device(serve, serve_.device);
    add_threads(serve, serve_.threads);
    add_arithmetic(serve, serve_.arithmetic);
    add_draft(serve, serve_.draft);
    serve->callback([this] { run_ = [this] { serve_command(serve_); }; });
  }

  void add_speedrun(CLI::App& app) {
    CLI::App* speedrun = app.add_subcommand("speedrun", "train to a loss, evaluate, and enter the leaderboard");
    CLI::Option* file = add_config_arguments(speedrun, speedrun_.config)->required(false);
    add_ranks(speedrun, speedrun_.config);
    speedrun->add_option("--tasks", speedrun_.tasks, "tasks, as in n eval")
        ->type_name("NAME,NAME...")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
    speedrun->add_option("--data", speedrun_.data, "folder of the tasks' data (scripts/eval_data.sh)")
        ->type_name("DIR")
        ->capture_default_str();
    speedrun->add_option("--batch", speedrun_.batch, "as in n eval")->check(number(0))->capture_default_str();
    speedrun->add_option("--leaderboard", speedrun_.leaderboard, "file to add an entry to")
        ->type_name("FILE")
        ->capture_default_str();
    CLI::Option* list = speedrun->add_flag("--list", speedrun_.list, "print the leaderboard");
    list->excludes(file);
    speedrun->callback([this, file, list] {
      if (file->empty() && list->empty()) throw CLI::RequiredError("a configuration file or --list");
      run_ = [this] { speedrun_command(speedrun_); };
    });
  }

  void add_measurement(CLI::App& app) {
    CLI::App* selftest = app.add_subcommand("selftest", "compare every operation of a device with the CPU's");
    add_device(selftest, selftest_.device);
    selftest->add_flag("--fp32", selftest_.fp32, "on cuda: fp32 instead of bf16");
    add_threads(selftest, selftest_.threads);
    selftest->callback([this] { run_ = [this] { selftest_command(selftest_); }; });

    add_bench(app, bench_, run_);
  }

  CLI::App app_{"Trains Mixture-of-Experts language models.", "n"};
  std::function<void()> run_;
  TrainArguments train_;
  ConfigArguments config_;
  PlanArguments plan_;
  ConfigCommandArguments config_command_;
  std::vector<std::string> help_path_;
  bool manual_ = false;
  std::string shell_;
  RunsArguments runs_;
  MonArguments mon_;
  VizArguments viz_;
  ConversationOptions conversations_;
  PrepOptions prep_;
  SynthesizeOptions synthesize_;
  bool near_dedup_ = false;
  double near_dedup_threshold_ = 0.82;
  std::string data_dir_;
  DataInfoArguments data_info_;
  DataSampleArguments data_sample_;
  TokenizerTrainArguments tokenizer_train_;
  std::string tokenizer_;
  std::vector<std::string> allowed_specials_;
  std::string checkpoint_;
  MergeOptions merge_;
  CoordinatesArguments coordinates_;
  SweepArguments sweep_;
  GenerateArguments generate_;
  ImportArguments import_;
  ExportArguments export_;
  std::string shard_size_;
  std::string max_record_;
  ParityArguments parity_;
  GenerationParityArguments generation_parity_;
  ChatArguments chat_;
  ServeArguments serve_;
  SpeedrunArguments speedrun_;
  SelfTestArguments selftest_;
  EvalArguments eval_;
  EvalCompareArguments eval_compare_;
  BenchArguments bench_;
};

CommandLine::CommandLine() : commands_(std::make_unique<Commands>()) {}

CommandLine::~CommandLine() = default;

std::function<void()> CommandLine::parse(int argc, const char* const* argv) { return commands_->parse(argc, argv); }

}  // namespace nmoe::cli
