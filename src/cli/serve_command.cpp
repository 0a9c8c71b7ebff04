#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/say.h"
#include "base/signals.h"
#include "base/text.h"
#include "chat/chat_template.h"
#include "checkpoint/reader.h"
#include "cli/commands.h"
#include "infer/engine.h"
#include "serve/server.h"

namespace nmoe::cli {
namespace {

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// The key that clients have to send; "": none. It is no option: everyone on the machine sees those (ps).
std::string api_key(const std::string& file) {
  const char* variable = std::getenv("NMOE_API_KEY");
  const std::string from_environment = variable == nullptr ? "" : variable;
  if (file.empty()) return from_environment;
  if (!from_environment.empty()) {
    throw usage_error("there are --api-key-file and NMOE_API_KEY", "give the key in one place");
  }
  const std::string text = read_file(file);
  const std::string key(text.substr(0, text.find_first_of("\r\n")));
  if (key.empty()) throw usage_error(fmt::format("{} begins with no key", file), "write the key into its first line");
  return key;
}

int64_t limit(const std::string& text, std::string_view option) {
  constexpr int64_t kLeast = 1024, kMost = int64_t{1} << 30;
  const int64_t bytes = parse_bytes(text, option);
  if (bytes < kLeast || bytes > kMost) {
    throw usage_error(fmt::format("{} is {}", option, text), "give a size from 1KiB to 1GiB");
  }
  return bytes;
}

}  // namespace

void serve_command(const ServeArguments& arguments) {
  ServerOptions options;
  options.host = arguments.host;
  options.port = arguments.port;
  options.max_queue = arguments.max_queue;
  options.api_key = api_key(arguments.api_key_file);
  options.allowed_hosts = arguments.allowed_hosts;
  options.limits.max_body = limit(arguments.max_body, "--max-body");
  options.limits.max_header = limit(arguments.max_header, "--max-header");
  options.limits.max_held = std::max(options.limits.max_held, 4 * options.limits.max_body);
  options.limits.max_connections = arguments.max_connections;
  options.limits.timeout = std::chrono::seconds(arguments.client_timeout);
  const CheckpointReader reader = CheckpointReader::open(arguments.checkpoint);
  const fs::path& checkpoint = reader.path();
  const std::shared_ptr<const Tokenizer> tokenizer = reader.tokenizer();
  const CheckpointSettings settings = read_checkpoint_settings(checkpoint, *tokenizer);

  // Completions need no template: only one that was asked for must be there and good.
  std::optional<ChatTemplate> chat;
  std::string no_chat;
  try {
    chat.emplace(settings, arguments.chat_template, *tokenizer);
  } catch (const Error& error) {
    if (!arguments.chat_template.empty()) throw;
    no_chat = fmt::format("{}. Start the server with --chat-template FILE.jinja", error.what());
    say("note: no /v1/chat/completions: {}\n", no_chat);
  }

  InferenceEngine engine(checkpoint, {.device = arguments.device,
                                      .num_threads = arguments.threads,
                                      .max_sequences = arguments.max_sequences,
                                      .max_context = arguments.max_context,
                                      .cache_positions = arguments.cache_positions,
                                      .arithmetic = arguments.arithmetic,
                                      .draft = arguments.draft});

  options.model_name = arguments.model_name.empty() ? engine.config().run.name : arguments.model_name;
  if (!is_loopback(options.host) && options.api_key.empty()) {
    say("note: without a key (--api-key-file), everyone who reaches {} can use this server\n", options.host);
  }
  const StopSignal stop;
  ApiServer server(engine, settings, chat ? &*chat : nullptr, no_chat, options);
  const bool v6 = options.host.find(':') != std::string::npos;
  say("serving {} at http://{}{}{}:{} ({} at once, {} tokens each)\n", options.model_name, v6 ? "[" : "", options.host,
      v6 ? "]" : "", server.port(), engine.load().max_sequences, engine.max_context());
  server.run(stop);
  say("stopped by {}\n", stop.name());
}

}  // namespace nmoe::cli
