#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/say.h"
#include "base/signals.h"
#include "chat/chat_template.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "infer/engine.h"
#include "serve/server.h"

namespace nmoe::cli {
namespace {

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

void serve_command(const ServeArguments& arguments) {
  const CheckpointReader reader = CheckpointReader::open(arguments.checkpoint);
  const fs::path& checkpoint = reader.path();
  const CheckpointSettings settings = read_checkpoint_settings(checkpoint, *reader.tokenizer());

  // Completions need no template: only one that was asked for must be there and good.
  std::optional<ChatTemplate> chat;
  std::string no_chat;
  try {
    chat.emplace(settings, arguments.chat_template);
  } catch (const Error& error) {
    if (!arguments.chat_template.empty()) throw;
    no_chat = fmt::format("{}. Start the server with --chat-template FILE.jinja", error.what());
    say("note: no /v1/chat/completions: {}\n", no_chat);
  }

  InferenceEngine engine(checkpoint, {.num_threads = arguments.threads,
                                      .max_sequences = arguments.max_sequences,
                                      .max_context = arguments.max_context});

  ServerOptions options;
  options.host = arguments.host;
  options.port = arguments.port;
  options.max_queue = arguments.max_queue;
  options.api_key = arguments.api_key;
  options.model_name = arguments.model_name.empty() ? engine.config().run.name : arguments.model_name;
  if (!is_loopback(options.host) && options.api_key.empty()) {
    say("note: without --api-key, everyone who reaches {} can use this server\n", options.host);
  }
  const StopSignal stop;
  ApiServer server(engine, settings, chat ? &*chat : nullptr, no_chat, options);
  const bool v6 = options.host.find(':') != std::string::npos;
  say("serving {} at http://{}{}{}:{} ({} at once, {} tokens each)\n", options.model_name, v6 ? "[" : "",
             options.host, v6 ? "]" : "", server.port(), engine.load().max_sequences, engine.max_context());
  server.run(stop);
  say("stopped by {}\n", stop.name());
}

}  // namespace nmoe::cli
