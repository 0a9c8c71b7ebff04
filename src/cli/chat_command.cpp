#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/say.h"
#include "base/signals.h"
#include "chat/chat_template.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "infer/engine.h"

namespace nmoe::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kHelp =
    "/reset        forget the conversation\n"
    "/system TEXT  replace the system prompt; without TEXT, have none\n"
    "/help         this\n"
    "/exit         leave, as the end of input does\n"
    "Ctrl-C stops a reply, and leaves where none is being written.\n";

SamplingOptions sampling_of(const SamplingDefaults& chosen, const SamplingDefaults& checkpoint) {
  // Where nobody says anything: what n generate does.
  const GenerateArguments usual;
  const auto pick = [](const auto& first, const auto& second, auto last) {
    return first ? *first : second ? *second : last;
  };
  SamplingOptions sampling;
  sampling.temperature = pick(chosen.temperature, checkpoint.temperature, usual.sampling.temperature);
  sampling.top_p = pick(chosen.top_p, checkpoint.top_p, usual.sampling.top_p);
  sampling.top_k = pick(chosen.top_k, checkpoint.top_k, usual.sampling.top_k);
  sampling.min_p = pick(chosen.min_p, checkpoint.min_p, usual.sampling.min_p);
  sampling.repetition_penalty =
      pick(chosen.repetition_penalty, checkpoint.repetition_penalty, usual.sampling.repetition_penalty);
  return sampling;
}

class Conversation {
 public:
  Conversation(const fs::path& checkpoint, const ChatArguments& arguments)
      : settings_(read_checkpoint_settings(checkpoint, *CheckpointReader::open(checkpoint).tokenizer())),
        template_(settings_, arguments.chat_template),
        engine_(checkpoint, {.num_threads = arguments.threads, .max_sequences = 1, .max_context = arguments.context}),
        sampling_(sampling_of(arguments.sampling, settings_.sampling)),
        seed_(arguments.seed),
        max_tokens_(arguments.max_tokens),
        system_(arguments.system) {}

  void set_system(std::string text) { system_ = std::move(text); }
  void reset() { turns_ = ordered_json::array(); }

  // Streams the reply to standard output. Error: the template refuses the conversation, or it is too long; then it is
  // as before.
  void say(const std::string& text) {
    ordered_json turns = turns_;
    turns.push_back({{"role", "user"}, {"content", text}});
    ordered_json messages = ordered_json::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    messages.insert(messages.end(), turns.begin(), turns.end());
    GenerationRequest request;
    request.prompt = encode_rendered(template_.render(messages, /*add_generation_prompt=*/true, ordered_json::object()),
                                     engine_.tokenizer());
    const auto length = static_cast<int64_t>(request.prompt.size());
    if (length > engine_.max_context()) {
      throw runtime_error(fmt::format("the conversation has {} tokens, the context {}", length, engine_.max_context()),
                          "begin a new one with /reset, or load the model with a larger --context");
    }
    request.max_tokens = max_tokens_ > 0 ? max_tokens_ : engine_.max_context();
    request.sampling = sampling_;
    request.sampling.seed = seed_ + turns.size() / 2;
    request.stop_ids = settings_.stop_ids;

    std::string reply;
    GenerationListener listener;
    listener.on_text = [&](std::string_view piece) {
      reply += piece;
      fmt::print("{}", piece);
      std::fflush(stdout);
    };
    FinishReason reason = FinishReason::kStop;
    listener.on_finish = [&](const GenerationResult& result) { reason = result.reason; };
    const RequestId id = engine_.submit(std::move(request), std::move(listener));
    const StopSignal stop;  // Ctrl-C
    while (engine_.step()) {
      if (stop.requested()) engine_.cancel(id);
    }
    fmt::print("\n");
    std::fflush(stdout);
    if (reason == FinishReason::kLength) say("[cut off by --max-tokens or by the context's end]\n");
    turns.push_back({{"role", "assistant"}, {"content", reply}});
    turns_ = std::move(turns);
  }

 private:
  CheckpointSettings settings_;
  ChatTemplate template_;
  InferenceEngine engine_;  // after what can be wrong at once: loading takes time
  SamplingOptions sampling_;
  uint64_t seed_;
  int64_t max_tokens_;
  std::string system_;
  ordered_json turns_ = ordered_json::array();  // of user and assistant, in turn
};

}  // namespace

void chat_command(const ChatArguments& arguments) {
  Conversation conversation(CheckpointReader::open(arguments.checkpoint).path(), arguments);
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) say("/help lists the commands\n");
  while (true) {
    if (terminal) say("> ");
    std::string line;
    if (!std::getline(std::cin, line)) break;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    if (command == "/exit") break;
    if (command == "/help") {
      say("{}", kHelp);
    } else if (command == "/reset") {
      conversation.reset();
    } else if (command == "/system") {
      conversation.set_system(space == std::string::npos ? "" : line.substr(space + 1));
    } else if (command.starts_with('/')) {
      say("there is no command {}; /help lists them\n", command);
    } else {
      try {
        conversation.say(line);
      } catch (const Error& error) {
        if (!terminal) throw;
        say("error: {}\nremedy: {}\n", error.what(), error.remedy());
      }
    }
  }
}

}  // namespace nmoe::cli
