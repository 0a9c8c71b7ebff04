#include "serve/generation_queue.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/say.h"
#include "base/start_thread.h"

namespace nmoe {

using Clock = std::chrono::steady_clock;

struct Reply::Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<ReplyEvent> events;  // guarded by mutex

  void put(ReplyEvent event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    arrived.notify_all();
  }
};

Reply::Reply(InferenceEngine& engine) : engine_(engine), mailbox_(std::make_shared<Mailbox>()) {}

Reply::~Reply() {
  for (const RequestId id : ids_) engine_.cancel(id);
}

std::optional<ReplyEvent> Reply::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mailbox_->mutex);
  if (!mailbox_->arrived.wait_for(lock, timeout, [&] { return !mailbox_->events.empty(); })) return std::nullopt;
  ReplyEvent event = std::move(mailbox_->events.front());
  mailbox_->events.pop_front();
  return event;
}

GenerationQueue::GenerationQueue(InferenceEngine& engine, int64_t max_queue, std::shared_ptr<ServerMetrics> metrics)
    : engine_(engine),
      capacity_(engine.load().max_sequences + max_queue),
      metrics_(std::move(metrics)),
      in_flight_(std::make_shared<std::atomic<int64_t>>(0)),
      thread_(start_thread("to generate", [this] { drive(); })) {}

GenerationQueue::~GenerationQueue() {
  stop_ = true;
  thread_.join();
}

std::exception_ptr GenerationQueue::failure() const { return failed_ ? failure_ : nullptr; }

std::unique_ptr<Reply> GenerationQueue::submit(std::vector<GenerationRequest> requests,
                                               const std::optional<ChannelMarks>& channels) {
  const auto count = static_cast<int64_t>(requests.size());
  if (in_flight_->fetch_add(count) + count > capacity_) {
    *in_flight_ -= count;
    return nullptr;
  }
  // Gives its place back when the engine lets go of the generation's listener, however that comes about.
  struct Place {
    std::shared_ptr<std::atomic<int64_t>> in_flight;
    std::shared_ptr<Reply::Mailbox> mailbox;
    size_t choice;
    bool finished = false;
    bool begun = false;  // it has a token
    std::optional<ReplyChannels> channels;
    const Clock::time_point queued = Clock::now();
    Place(std::shared_ptr<std::atomic<int64_t>> counter, std::shared_ptr<Reply::Mailbox> box, size_t index)
        : in_flight(std::move(counter)), mailbox(std::move(box)), choice(index) {}
    void put_text(std::string_view text) {
      if (!channels) return mailbox->put({choice, ReplyEvent::Text{std::string(text)}});
      put_pieces(channels->add_text(text));
    }
    void put_pieces(std::vector<ReplyChannels::Piece> pieces) {
      for (auto& [text, is_thought] : pieces) mailbox->put({choice, ReplyEvent::Text{std::move(text), is_thought}});
    }
    ~Place() {
      *in_flight -= 1;
      if (!finished) mailbox->put({choice, ReplyEvent::Failed{}});
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
  };
  std::unique_ptr<Reply> reply(new Reply(engine_));
  std::vector<std::shared_ptr<Place>> places;
  for (size_t i = 0; i < requests.size(); ++i) {
    places.push_back(std::make_shared<Place>(in_flight_, reply->mailbox_, i));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::shared_ptr<Place> place = std::move(places[i]);
    if (channels) place->channels.emplace(*channels);
    GenerationListener listener;
    listener.on_text = [place](std::string_view piece) { place->put_text(piece); };
    listener.on_token = [place, metrics = metrics_, wanted = requests[i].logprobs](const GeneratedToken& token) {
      if (!std::exchange(place->begun, true)) metrics->count_first_token(Clock::now() - place->queued);
      if (place->channels) place->channels->add_token(token);
      if (wanted) place->mailbox->put({place->choice, token});
    };
    if (requests[i].prompt_logprobs) {
      listener.on_prompt = [place](std::span<const PromptToken> tokens) {
        place->mailbox->put({place->choice, ReplyEvent::Prompt{{tokens.begin(), tokens.end()}}});
      };
    }
    listener.on_finish = [place, metrics = metrics_](const GenerationResult& result) {
      if (place->channels) place->put_pieces(place->channels->finish());
      place->finished = true;
      metrics->count_generation(result);
      place->mailbox->put({place->choice, result});
    };
    reply->ids_.push_back(engine_.submit(std::move(requests[i]), std::move(listener)));
  }
  return reply;
}

void GenerationQueue::drive() {
  constexpr int kMaxErrors = 100;  // in a row
  int errors = 0;
  try {
    while (!stop_) {
      try {
        if (!engine_.step()) engine_.wait(std::chrono::milliseconds(50));
        errors = 0;
      } catch (const Error& error) {
        // One generation ended so; the others go on.
        say("error: {}\nremedy: {}\n", error.what(), error.remedy());
        if (++errors > kMaxErrors) throw;
      }
    }
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
  }
}

}  // namespace nmoe
