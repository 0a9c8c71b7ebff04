#include "serve/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "base/authentication.h"
#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "base/text.h"
#include "chat/prompt.h"
#include "serve/page.h"

namespace nmoe {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kGrace = std::chrono::seconds(4);    // for what runs when the server stops
constexpr auto kLookForClient = milliseconds(200);  // how often a generation sees whether anyone waits for it
constexpr const char* kJson = "application/json";

constexpr std::string_view kOtherRoute = "other";

// The file that a path of the chat page stands for; "" of another path.
std::string_view page_file_of(std::string_view path) {
  if (path == "/") return "chat.html";
  constexpr std::string_view kFiles[] = {"/chat.js", "/dom.js", "/theme.js", "/style.css"};
  const auto* const found = std::ranges::find(kFiles, path);
  return found == std::end(kFiles) ? "" : found->substr(1);
}

// The name of a path that is served, and kOtherRoute for others.
std::string_view route_of(std::string_view path) {
  if (!page_file_of(path).empty()) return "/";
  if (path.starts_with("/v1/models/")) return "/v1/models";
  constexpr std::string_view kRoutes[] = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health",
                                          "/metrics"};
  const auto* const found = std::ranges::find(kRoutes, path);
  return found == std::end(kRoutes) ? kOtherRoute : *found;
}

// The field of a request that errors in its prompt name.
const char* prompt_field(bool is_chat) { return is_chat ? "messages" : "prompt"; }

HttpReply json_reply(int status, std::string body) {
  return {.status = status, .type = kJson, .body = std::move(body), .headers = {}, .note = {}};
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply = json_reply(error.status(), error.json());
  if (error.status() == 429 || error.status() == 503) reply.headers.emplace_back("Retry-After", "1");
  reply.note = error.what();
  return reply;
}

// For one line of a log or a message: what a client sends must not break it.
std::string printable(std::string_view whole) {
  constexpr size_t kMost = 200;
  std::string text(whole.substr(0, kMost));
  if (whole.size() > kMost) text += "...";
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return text;
}

// What `action` returns, or the error it throws as the API answers it.
template <class Action>
std::optional<HttpReply> reply_of(Action&& action) {
  try {
    return action();
  } catch (const ApiError& error) {
    return error_reply(error);
  } catch (const Error& error) {
    const bool bad_request = error.kind() == ErrorKind::kUsage;
    return error_reply(ApiError(bad_request ? 400 : 500, fmt::format("{} ({})", error.what(), error.remedy())));
  }
}

constexpr const char* kEffort = "reasoning_effort";

// Thoughts under the name that a template of channels has for them.
ordered_json with_thinking(ordered_json messages) {
  for (ordered_json& message : messages) {
    const auto thoughts = message.find("reasoning_content");
    if (thoughts == message.end()) continue;
    message["thinking"] = *thoughts;
    message.erase("reasoning_content");
  }
  return messages;
}

// ApiError where a part of the conversation would be lost on a template.
void check_template_writes(const ApiRequest& request, const ChatTemplate& chat) {
  const auto lost = [](const std::string& what, const std::string& field) {
    return ApiError(400, fmt::format("the chat template of this model does not write {}", what), field,
                    "unsupported_parameter");
  };
  if (request.template_variables.contains("tools") && !chat.mentions("tools")) throw lost("tools", "tools");
  if (request.template_variables.contains(kEffort) && !chat.mentions(kEffort)) throw lost("an effort", kEffort);
  for (size_t i = 0; i < request.messages.size(); ++i) {
    if (!request.messages[i].contains("tool_calls") || chat.mentions("tool_calls")) continue;
    throw lost("calls of tools", fmt::format("messages[{}].tool_calls", i));
  }
  if (const auto unwritten = chat.unwritten_message(request.messages, request.template_variables)) {
    throw lost(fmt::format("a message of the role {}", request.messages[*unwritten]["role"].dump()),
               fmt::format("messages[{}]", *unwritten));
  }
}

// A connection needs a worker only while its answer is made: one for each generation there is room for, and some for
// those that are refused.
int num_workers(int64_t capacity) { return static_cast<int>(std::min<int64_t>(capacity, 1024)) + 16; }

}  // namespace

// A generation and the answer made of it.
struct ApiServer::Exchange {
  Exchange(ApiRequest the_request, std::vector<ReplyPrompt> prompts, const std::string& model,
           const Tokenizer& tokenizer, std::atomic<int64_t>& count)
      : num_exchanges(count), request(std::move(the_request)), reply(request, std::move(prompts), model, tokenizer) {
    ++num_exchanges;
  }
  ~Exchange() { --num_exchanges; }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  std::atomic<int64_t>& num_exchanges;
  ApiRequest request;
  ApiReply reply;
  std::unique_ptr<Reply> events;
};

ApiServer::ApiServer(InferenceEngine& engine, const CheckpointSettings& settings, const ChatTemplate* chat,
                     std::string no_chat, ServerOptions options)
    : engine_(engine),
      settings_(settings),
      chat_(chat),
      no_chat_(std::move(no_chat)),
      end_of_turn_(chat == nullptr ? std::nullopt : chat->end_of_turn(engine.tokenizer())),
      channels_(chat == nullptr ? std::nullopt : channel_marks(*chat, engine.tokenizer())),
      options_(std::move(options)),
      hosts_(options_.host, options_.allowed_hosts),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      queue_(engine, options_.max_queue, metrics_),
      seeds_(std::random_device()()),
      http_(*this, options_.host, options_.port, options_.limits, num_workers(queue_.capacity())) {}

ApiServer::~ApiServer() = default;

std::optional<HttpReply> ApiServer::on_head(const HttpRequest& request) {
  return reply_of([&]() -> std::optional<HttpReply> {
    check_host(request);
    const std::string_view route = route_of(request.path);
    if (route == kOtherRoute) {  // in OpenAI's words
      throw ApiError(404, fmt::format("Invalid URL ({} {})", printable(request.method), printable(request.path)), "",
                     "unknown_url");
    }
    const std::string_view method = route.ends_with("/completions") ? "POST" : "GET";
    if (request.method != method) {
      throw ApiError(405, fmt::format("this path takes {}", method), "", "method_not_allowed");
    }
    if (route == "/") return page_file(page_file_of(request.path), request);  // it asks for the key itself
    if (route != "/health") check_key(request);
    if (method == "GET") return get(request);
    // A page in a browser can send other types to this machine without asking.
    const std::string type = lower(request.header("Content-Type"));
    if (type != kJson && !type.starts_with(std::string(kJson) + ";")) {
      throw ApiError(415, "Content-Type must be application/json", "", "unsupported_media_type");
    }
    if (!request.header("Content-Encoding").empty()) {
      throw ApiError(415, "a body must not be compressed", "", "unsupported_media_type");
    }
    return std::nullopt;
  });
}

void ApiServer::check_host(const HttpRequest& request) const {
  if (const auto refusal = hosts_.refusal(request)) {
    throw ApiError(refusal->status, refusal->message, "", refusal->status == 403 ? "host_not_allowed" : "");
  }
}

void ApiServer::check_key(const HttpRequest& request) const {
  if (options_.api_key.empty()) return;
  if (!same_bytes(request.header("Authorization"), "Bearer " + options_.api_key)) {
    throw ApiError(401, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'", "",
                   "invalid_api_key");
  }
}

HttpReply ApiServer::get(const HttpRequest& request) const {
  if (request.path == "/health") {
    const EngineLoad load = engine_.load();
    const ordered_json health = {{"status", stopping_ ? "stopping" : "ok"},
                                 {"running", load.running},
                                 {"waiting", load.waiting},
                                 {"max_sequences", load.max_sequences}};
    return json_reply(stopping_ ? 503 : 200, json_text(health));
  }
  if (request.path == "/metrics") {
    HttpReply reply;
    reply.type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_->text(engine_.load(), num_exchanges_);
    return reply;
  }
  const std::string name = request.path.substr(std::min(request.path.size(), std::string("/v1/models/").size()));
  if (!name.empty() && name != options_.model_name) {
    throw ApiError(404, fmt::format("the model '{}' does not exist", name), "model", "model_not_found");
  }
  const ordered_json model = {{"id", options_.model_name},
                              {"object", "model"},
                              {"created", created_},
                              {"owned_by", "nmoe"},
                              {"max_model_len", engine_.max_context()}};
  const ordered_json list = {{"object", "list"}, {"data", ordered_json::array({model})}};
  return json_reply(200, json_text(name.empty() ? list : model));
}

void ApiServer::on_request(const HttpRequest& request, HttpAnswer& answer) {
  std::optional<HttpReply> error = reply_of([&]() -> std::optional<HttpReply> {
    generate(request, answer);
    return std::nullopt;
  });
  if (error) answer.send(std::move(*error));
}

HttpReply ApiServer::refusal(int status, const std::string& message) { return error_reply(ApiError(status, message)); }

void ApiServer::log(const HttpLogEntry& entry) {
  const bool known = !entry.method.empty();  // what is no request at all has no beginning
  const std::string line = fmt::format(
      "{} {} {} {} {}{}{}\n", entry.remote, known ? printable(entry.method) : "-", known ? printable(entry.path) : "-",
      entry.status, human_seconds(known ? entry.seconds : 0), entry.note.empty() ? "" : ": ", printable(entry.note));
  metrics_->count_request(std::string(route_of(entry.path)), entry.status, ServerMetrics::Duration(entry.seconds));
  write_to_standard_error(terminal_safe(line));  // what cannot be written must not end an answer
}

std::vector<int32_t> ApiServer::encode_chat(const ApiRequest& request) const {
  if (chat_ == nullptr) throw ApiError(400, no_chat_, "messages", "no_chat_template");
  try {
    check_template_writes(request, *chat_);
    const ordered_json messages = channels_ ? with_thinking(request.messages) : request.messages;
    return encode_rendered(chat_->render(messages, /*add_generation_prompt=*/true, request.template_variables),
                           engine_.tokenizer());
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages", "chat_template");
  }
}

ApiServer::Prompts ApiServer::encode_prompts(const ApiRequest& request, bool is_chat) const {
  Prompts prompts;
  const Tokenizer& tokenizer = engine_.tokenizer();
  if (is_chat) {
    prompts.ids.push_back(encode_chat(request));
    prompts.shown.emplace_back();
  }
  for (const auto& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      const std::vector<int32_t>& ids = prompts.ids.emplace_back(encode_prompt(settings_, engine_, *text));
      // The text's own ids are never special: an end of a document in front is ours.
      const size_t ours = settings_.begin_ids.empty() ? size_t{!ids.empty() && ids.front() == tokenizer.eos_id()}
                                                      : settings_.begin_ids.size();
      prompts.shown.push_back({.text = *text, .hidden_tokens = ours});
    } else {
      const auto& ids = prompts.ids.emplace_back(std::get<std::vector<int32_t>>(prompt));
      const bool known = std::ranges::all_of(ids, [&](int32_t id) { return id < tokenizer.vocab_size(); });
      if (!known) {
        throw ApiError(400, fmt::format("ids of a prompt must be below {}", tokenizer.vocab_size()),
                       prompt_field(is_chat));
      }
      prompts.shown.push_back({.text = tokenizer.decode(ids), .hidden_tokens = 0});
    }
  }
  return prompts;
}

std::vector<GenerationRequest> ApiServer::generations_of(const ApiRequest& request,
                                                         std::span<const std::vector<int32_t>> prompts, bool is_chat) {
  const uint64_t seed = request.seed.value_or(seeds_.fetch_add(static_cast<uint64_t>(request.n)));
  std::vector<GenerationRequest> generations;
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    if (prompt.empty() && (is_chat || !engine_.config().data.mask_documents)) {
      throw ApiError(400, "the prompt is empty", prompt_field(is_chat), "empty_prompt");
    }
    if (size > engine_.max_context()) {
      // In OpenAI's words: there are clients that cut their prompt when they read them.
      throw ApiError(
          400,
          fmt::format("This model's maximum context length is {} tokens. However, your prompt has {} tokens. "
                      "Please reduce the length of the prompt.",
                      engine_.max_context(), size),
          prompt_field(is_chat), "context_length_exceeded");
    }
    GenerationRequest generation;
    generation.prompt = prompt;
    generation.max_tokens = request.max_tokens.value_or(engine_.max_context());
    generation.sampling = request.sampling;
    generation.stop = request.stop;
    if (!request.ignore_eos) generation.stop_ids = settings_.stop_ids;
    if (!request.ignore_eos && is_chat && end_of_turn_) generation.stop_ids.push_back(*end_of_turn_);
    if (!request.ignore_eos && is_chat && channels_) {
      generation.stop_ids.insert(generation.stop_ids.end(), channels_->stops.begin(), channels_->stops.end());
    }
    generation.ignore_eos = request.ignore_eos;
    generation.logprobs = request.logprobs;
    generation.prompt_logprobs = request.logprobs && request.echo;
    generation.top_logprobs = request.top_logprobs;
    for (int64_t i = 0; i < request.n; ++i) {
      generation.sampling.seed = seed + static_cast<uint64_t>(i);
      generations.push_back(generation);
    }
  }
  return generations;
}

void ApiServer::generate(const HttpRequest& http_request, HttpAnswer& answer) {
  if (stopping_) throw ApiError(503, "the server is stopping", "", "stopping");
  const bool is_chat = http_request.path == "/v1/chat/completions";
  const auto parse = is_chat ? parse_chat_request : parse_completion_request;
  ApiRequest request = parse(http_request.body, settings_.sampling);
  answer.release_body();
  if (!request.model.empty() && request.model != options_.model_name) {
    throw ApiError(404, fmt::format("the model '{}' does not exist; this is '{}'", request.model, options_.model_name),
                   "model", "model_not_found");
  }
  const auto wanted = static_cast<int64_t>(std::max<size_t>(1, request.prompts.size())) * request.n;
  if (wanted > queue_.capacity()) {
    throw ApiError(400, fmt::format("{} texts at once; this server takes {}", wanted, queue_.capacity()),
                   prompt_field(is_chat), "too_many_texts");
  }

  Prompts prompts = encode_prompts(request, is_chat);
  std::vector<GenerationRequest> generations = generations_of(request, prompts.ids, is_chat);

  Exchange exchange(std::move(request), std::move(prompts.shown), options_.model_name, engine_.tokenizer(),
                    num_exchanges_);
  exchange.events = queue_.submit(std::move(generations), is_chat ? channels_ : std::nullopt);
  if (exchange.events == nullptr) {
    throw ApiError(
        429,
        fmt::format("{} texts are being written or wait, and there is no room for {} more", queue_.in_flight(), wanted),
        "", "queue_full");
  }
  send(exchange, answer);
}

void ApiServer::send(Exchange& exchange, HttpAnswer& answer) const {
  ApiReply& reply = exchange.reply;
  const bool stream = exchange.request.stream;
  const auto write_event = [&](const std::string& data) { return answer.write("data: " + data + "\n\n"); };
  const auto write_events = [&](const std::vector<std::string>& events) {
    return std::ranges::all_of(events, write_event);
  };
  // Without end(): the client, if it is still there, sees that the answer is not whole.
  const auto give_up = [&] {
    answer.set_note(answer.client_left() ? "the client left" : "the client reads too slowly");
  };
  HttpReply head = json_reply(200, "");
  head.headers.emplace_back("X-Request-Id", reply.id());
  if (stream) {
    head.type = "text/event-stream";
    head.headers.emplace_back("Cache-Control", "no-cache");
    if (!answer.begin(head) || !write_events(reply.first_chunks())) return give_up();
  }
  while (!reply.finished() && !aborting_) {
    const std::optional<ReplyEvent> event = exchange.events->next(kLookForClient);
    if (event && !write_events(reply.add(*event))) return give_up();
    if (answer.client_left()) return give_up();
  }
  if (aborting_ || reply.failed()) {
    const ApiError error(aborting_ ? 503 : 500, aborting_ ? "the server is stopping" : "the model failed");
    if (!stream) throw error;
    answer.set_note(aborting_ ? "given up, as the server stops" : "given up, see above");
    if (write_event(error.json())) answer.end();
    return;
  }
  answer.set_note(fmt::format("{} and {} tokens", reply.prompt_tokens(), reply.output_tokens()));
  if (!stream) {
    head.body = reply.whole();
    return answer.send(std::move(head));
  }
  if (!write_events(reply.last_chunks()) || !write_event("[DONE]")) return give_up();
  answer.end();
}

void ApiServer::run(const StopSignal& stop) {
  http_.start();
  const auto pause = [] { std::this_thread::sleep_for(milliseconds(20)); };
  while (!stop.requested() && queue_.failure() == nullptr) pause();
  stopping_ = true;
  const auto wait_for_exchanges = [&](Clock::duration most) {
    const Clock::time_point end = Clock::now() + most;
    while (num_exchanges_ > 0 && queue_.failure() == nullptr && Clock::now() < end) pause();
  };
  wait_for_exchanges(kGrace);
  aborting_ = true;
  wait_for_exchanges(2 * kLookForClient);
  http_.stop();
  if (queue_.failure() != nullptr) std::rethrow_exception(queue_.failure());
}

}  // namespace nmoe
