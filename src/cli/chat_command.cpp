#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "chat/chat_template.h"
#include "chat/reply_channels.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "cli/line_reader.h"
#include "cli/standard_output.h"
#include "infer/engine.h"

namespace nmoe::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kHelp =
    "What you type is said to the model, and its reply follows.\n"
    "\"\"\"           begins a message of several lines; \"\"\" at the end of a line ends it\n"
    "/reset        forget the conversation; the system prompt stays\n"
    "/system TEXT  replace the system prompt; without TEXT, have none\n"
    "/save FILE    add the conversation to FILE, a line of JSON: n prep FILE --messages-field messages\n"
    "/help         this\n"
    "/exit         leave, as Ctrl-D does\n"
    "Ctrl-C stops a reply, and leaves where none is being written. A message that begins with / needs a space "
    "before.\n";

constexpr std::string_view kFence = "\"\"\"";

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
      : tokenizer_(CheckpointReader::open(checkpoint).tokenizer()),
        settings_(read_checkpoint_settings(checkpoint, *tokenizer_)),
        template_(settings_, arguments.chat_template, *tokenizer_),
        engine_(checkpoint, {.device = arguments.device,
                             .num_threads = arguments.threads,
                             .max_sequences = 1,
                             .max_context = arguments.context,
                             .arithmetic = arguments.arithmetic,
                             .draft = arguments.draft}),
        sampling_(sampling_of(arguments.sampling, settings_.sampling)),
        seed_(arguments.seed),
        max_tokens_(arguments.max_tokens),
        system_(arguments.system) {
    if (const auto end = template_.end_of_turn(*tokenizer_)) settings_.stop_ids.push_back(*end);
    channels_ = channel_marks(template_, *tokenizer_);
    if (!channels_) return;
    settings_.stop_ids.insert(settings_.stop_ids.end(), channels_->stops.begin(), channels_->stops.end());
  }

  size_t num_messages() const { return turns_.size(); }
  void set_system(std::string text) { system_ = std::move(text); }
  void reset() { turns_ = ordered_json::array(); }

  // The system prompt, where there is one, and what was said.
  ordered_json messages(const ordered_json& turns) const {
    ordered_json all = ordered_json::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    all.insert(all.end(), turns.begin(), turns.end());
    return all;
  }

  // Adds a line {"messages": [...]} to the file. Error (runtime): it cannot be written.
  void save(const std::string& file) const {
    const std::string line = json_text(ordered_json{{"messages", messages(turns_)}});
    std::ofstream out(file, std::ios::app);
    out << line << "\n";
    out.close();
    if (!out) throw runtime_error(fmt::format("cannot write {}", file), "name a file in a folder that is there");
  }

  // Streams the reply to standard output. Error: the template refuses the conversation, or it is too long; then it is
  // as before.
  void say(const std::string& text) {
    ordered_json turns = turns_;
    turns.push_back({{"role", "user"}, {"content", text}});
    GenerationRequest request;
    request.prompt = encode_rendered(
        template_.render(messages(turns), /*add_generation_prompt=*/true, ordered_json::object()), *tokenizer_);
    const auto length = static_cast<int64_t>(request.prompt.size());
    if (length > engine_.max_context()) {
      throw runtime_error(fmt::format("the conversation has {} tokens, the context {}", length, engine_.max_context()),
                          "begin a new one with /reset, or load the model with a larger --context");
    }
    request.max_tokens = max_tokens_ > 0 ? max_tokens_ : engine_.max_context();
    request.sampling = sampling_;
    request.sampling.seed = seed_ + turns.size() / 2;
    request.stop_ids = settings_.stop_ids;

    std::string reply, thoughts;
    const auto print = [&](std::string_view piece, bool is_thought) {
      if (is_thought && thoughts.empty()) fmt::print("[thinking] ");
      if (!is_thought && reply.empty() && !thoughts.empty()) fmt::print("\n[reply] ");
      (is_thought ? thoughts : reply) += piece;
      print_text(piece);
      std::fflush(stdout);
    };
    GenerationListener listener;
    std::optional<ReplyChannels> channels;
    if (channels_) {
      channels.emplace(*channels_);
      listener.on_token = [&](const GeneratedToken& token) { channels->add_token(token); };
    }
    listener.on_text = [&](std::string_view piece) {
      if (!channels) return print(piece, false);
      for (const ReplyChannels::Piece& part : channels->add_text(piece)) print(part.text, part.is_thought);
    };
    FinishReason reason = FinishReason::kStop;
    listener.on_finish = [&](const GenerationResult& result) { reason = result.reason; };
    const RequestId id = engine_.submit(std::move(request), std::move(listener));
    const StopSignal stop;  // Ctrl-C
    while (engine_.step()) {
      if (stop.requested()) engine_.cancel(id);
    }
    if (channels) {
      for (const ReplyChannels::Piece& part : channels->finish()) print(part.text, part.is_thought);
    }
    fmt::print("\n");
    std::fflush(stdout);
    if (reason == FinishReason::kLength) fmt::print(stderr, "[cut off by --max-tokens or by the context's end]\n");
    turns.push_back({{"role", "assistant"}, {"content", reply}});
    if (!thoughts.empty()) turns.back()["thinking"] = thoughts;  // as templates of channels call it
    turns_ = std::move(turns);
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  CheckpointSettings settings_;
  ChatTemplate template_;
  std::optional<ChannelMarks> channels_;
  InferenceEngine engine_;  // after what can be wrong at once: loading takes time
  SamplingOptions sampling_;
  uint64_t seed_;
  int64_t max_tokens_;
  std::string system_;
  ordered_json turns_ = ordered_json::array();  // of user and assistant, in turn
};

// The message of several lines that begins with `first`. Either fence may have a line of its own. Error (runtime): the
// input ends before it does.
std::string read_lines(const std::string& first, LineReader& reader) {
  std::string message = first.substr(kFence.size());
  while (!message.ends_with(kFence)) {
    const std::optional<std::string> line = reader.read(". ");
    if (!line) {
      throw runtime_error("the message of several lines has no end", "end it with a line that ends with \"\"\"");
    }
    if (!message.empty()) message += '\n';
    message += *line;
  }
  message.resize(message.size() - kFence.size());
  if (message.ends_with('\n')) message.pop_back();
  return message;
}

// One of the commands that kHelp lists. False: leave.
bool obey(const std::string& line, Conversation& conversation) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space);
  const size_t begin = line.find_first_not_of(' ', std::min(space, line.size()));
  const std::string argument = begin == std::string::npos ? "" : line.substr(begin);
  if (command == "/exit") return false;
  if (command == "/help") {
    say("{}", kHelp);
  } else if (command == "/reset") {
    say("[forgotten: {} messages]\n", conversation.num_messages());
    conversation.reset();
  } else if (command == "/system") {
    conversation.set_system(argument);
    say("[{}]\n", argument.empty() ? "no system prompt" : "system prompt: " + argument);
  } else if (command == "/save") {
    if (argument.empty()) throw runtime_error("/save needs the name of a file", "/save chats.jsonl");
    if (conversation.num_messages() == 0) throw runtime_error("there is nothing to save", "say something first");
    conversation.save(argument);
    say("[saved: {} messages, added to {}]\n", conversation.num_messages(), argument);
  } else {
    const std::vector<std::string> commands = {"/exit", "/help", "/reset", "/save", "/system"};
    const std::string typo = nearest(command, commands);
    say("[there is no command {}{}; /help lists them. To say it, put a space before it]\n", command,
        typo.empty() ? "" : fmt::format("; did you mean {}?", typo));
  }
  return true;
}

}  // namespace

void chat_command(const ChatArguments& arguments) {
  Conversation conversation(CheckpointReader::open(arguments.checkpoint).path(), arguments);
  LineReader reader;
  if (reader.at_terminal()) say("/help lists the commands\n");
  while (true) {
    try {
      const std::optional<std::string> line = reader.read("> ");
      if (!line) return;
      if (line->starts_with('/')) {
        if (!obey(*line, conversation)) return;
        continue;
      }
      const std::string message = line->starts_with(kFence) ? read_lines(*line, reader) : *line;
      if (message.find_first_not_of(" \t\n") != std::string::npos) conversation.say(message);
    } catch (const Error& error) {
      if (!reader.at_terminal()) throw;
      say("error: {}\nremedy: {}\n", error.what(), error.remedy());
    }
  }
}

}  // namespace nmoe::cli
