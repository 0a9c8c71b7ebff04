#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "chat/prompt.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "cli/standard_input.h"
#include "cli/standard_output.h"

namespace nmoe::cli {

namespace {

constexpr std::string_view kStandardInput = "-";

// The prompts as texts. The end of the last line is that of the shell's echo, not of the text to go on from.
std::vector<std::string> read_prompts(std::vector<std::string> prompts) {
  if (std::ranges::count(prompts, kStandardInput) > 1) {
    throw usage_error("--prompt - twice: standard input can be read once", "give one of the prompts as text");
  }
  if (prompts.empty()) prompts.emplace_back(::isatty(STDIN_FILENO) != 0 ? "" : kStandardInput);
  for (std::string& prompt : prompts) {
    if (prompt != kStandardInput) continue;
    prompt = read_standard_input();
    if (prompt.ends_with('\n')) prompt.pop_back();
    if (prompt.ends_with('\r')) prompt.pop_back();
  }
  return prompts;
}

}  // namespace

// One text is shown as it is written; several are written together and shown in their order when all are there.
void generate_command(const GenerateArguments& arguments) {
  const std::vector<std::string> prompts = read_prompts(arguments.prompts);
  constexpr int64_t kMostAtOnce = 32;  // more wait until one of these is done
  const fs::path checkpoint = CheckpointReader::open(arguments.checkpoint).path();
  InferenceEngine engine(checkpoint, {.device = arguments.device,
                                      .num_threads = arguments.threads,
                                      .max_sequences = std::min(kMostAtOnce, static_cast<int64_t>(prompts.size())),
                                      .max_context = arguments.context,
                                      .cache_positions = arguments.cache_positions,
                                      .arithmetic = arguments.arithmetic,
                                      .draft = arguments.draft});
  const CheckpointSettings settings = read_checkpoint_settings(checkpoint, engine.tokenizer());
  const bool stream = prompts.size() == 1;
  std::vector<std::string> texts = prompts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request;
    request.prompt = encode_prompt(settings, engine, prompts[i]);
    request.stop_ids = settings.stop_ids;
    request.max_tokens = arguments.max_tokens;
    request.sampling = arguments.sampling;
    request.stop = arguments.stop;
    GenerationListener listener;
    listener.on_text = [&text = texts[i], stream](std::string_view piece) {
      if (!stream) {
        text += piece;
        return;
      }
      print_text(piece);
      std::fflush(stdout);
    };
    engine.submit(std::move(request), std::move(listener));
  }
  if (stream) print_text(prompts.front());
  while (engine.step()) {
  }
  if (stream) {
    fmt::print("\n");
    return;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    fmt::print("--- {}\n", i + 1);
    print_text(texts[i] + '\n');
  }
}

}  // namespace nmoe::cli
