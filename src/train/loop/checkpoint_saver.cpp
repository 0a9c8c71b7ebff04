#include "train/loop/checkpoint_saver.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/failure.h"
#include "base/say.h"
#include "base/thread_pool.h"

namespace nmoe {
namespace {

// In what ranks tell each other: behind a failure, and in it before the remedy.
constexpr char kFieldEnd = '\0';
constexpr char kRemedy = '\x1f';

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    return fmt::format("{}{}{}", error.what(), kRemedy, error.remedy());
  }
}

// What ranks wait for between two meetings.
constexpr std::chrono::milliseconds kBetweenMeetings{5};

// Of a rank's writer for which training waits: so many hash about as fast as a fast disk writes.
constexpr int64_t kMostThreads = 4;

// Those of `tensors`, the model's or the optimizer's of the ring, that this rank writes.
std::vector<TensorPart> written_here(StateRing& ring, std::span<const StateTensor> tensors) {
  std::vector<TensorPart> chosen;
  for (const StateTensor& tensor : tensors) {
    if (!tensor.is_written) continue;
    TensorSource source{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape_here(), .read = {}};
    source.read = [&ring, &tensor](size_t begin, std::span<std::byte> scratch) {
      ring.read(tensor, begin, scratch);
      return std::span<const std::byte>(scratch);
    };
    chosen.push_back({std::move(source), tensor.shape(), tensor.slices()});
  }
  return chosen;
}

}  // namespace

CheckpointSaver::CheckpointSaver(fs::path dir, int64_t keep_last, const Rank& rank)
    : dir_(std::move(dir)), keep_last_(keep_last), rank_(rank) {}

// Where rank 0 writes, for all; "" when it cannot.
void CheckpointSaver::open_draft(int64_t step) {
  if (rank_.is_first()) {
    try {
      draft_ = std::make_shared<CheckpointDraft>(dir_, step);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  const std::string folder = rank_.mesh().all().all_gather(draft_ ? draft_->folder().string() : std::string()).front();
  if (rank_.is_first() || folder.empty()) return;
  const fs::path joined = dir_ / fs::path(folder).filename();  // which may have another path here
  if (fs::is_directory(joined)) {
    draft_ = std::shared_ptr<CheckpointDraft>(new CheckpointDraft(CheckpointDraft::joined(dir_, step, joined)));
    return;
  }
  failure_ = std::make_exception_ptr(
      runtime_error(fmt::format("it does not see '{}', in which rank 0 writes a checkpoint", joined.string()),
                    "give all processes a run.dir on a file system that their hosts share"));
}

void CheckpointSaver::begin(Engine& engine, CheckpointHead head) {
  NMOE_CHECK(is_idle(), "a checkpoint is begun while another is written");
  StateRing& ring = engine.state_ring();
  ring.begin();
  begun_ = true;
  written_.reset();
  open_draft(rank_.mesh().all().all_gather_values(head.info.step).front());
  head_ = std::move(head);
  if (draft_) {
    // Where all of the state is copied at once, training goes on meanwhile and has the other processors.
    const int64_t share = available_cpus() / rank_.mesh().process().count();
    const int64_t threads = ring.holds_all() ? 1 : std::clamp<int64_t>(share, 1, kMostThreads);
    // Where experts are changes while training goes on: written_here() says it as it is now.
    writer_.submit([this, threads, draft = draft_, model = written_here(ring, ring.model()),
                    rest = written_here(ring, ring.optimizer())] {
      ThreadPool pool(static_cast<int>(threads));
      written_ = draft->write({.index = static_cast<int>(rank_.index()), .count = static_cast<int>(rank_.count())},
                              model, rest, pool);
    });
  }
  try {
    hand_over(ring);
  } catch (...) {
    ring.abandon();  // the writer must not wait for what nobody will copy
    drop();
    throw;
  }
}

// Gives up the checkpoint that was begun, on this rank: it cannot be published any more.
void CheckpointSaver::drop() {
  wait_for_writer();
  failure_ = nullptr;  // what ended the checkpoint is on its way to the caller
  draft_ = nullptr;
  begun_ = false;
}

// Fills the ring until it has had all of the state, on all ranks. They keep meeting meanwhile, and if one of them
// cannot write its part, all give up the checkpoint.
void CheckpointSaver::hand_over(StateRing& ring) {
  enum Standing : int64_t { kComplete, kFilling, kFailed };
  for (;;) {
    Standing mine = ring.fill() ? kComplete : kFilling;
    if (!writer_.busy() && !ring.is_read()) mine = kFailed;
    const auto all = rank_.mesh().all().all_gather_values<int64_t>(mine);
    const int64_t worst = std::ranges::max(all);
    if (worst == kFailed) ring.abandon();
    if (worst != kFilling) return;
    ring.wait_for_room(kBetweenMeetings);
  }
}

std::optional<Error> CheckpointSaver::publish() {
  if (!begun_) return std::nullopt;
  wait_for_all_writers();
  wait_for_writer();
  begun_ = false;
  const auto draft = std::exchange(draft_, nullptr);
  std::vector<std::string> texts;
  if (auto error = gather(written_ ? print_written_part(*written_) : "", texts)) return error;
  if (std::ranges::find(texts, "") != texts.end()) {
    return runtime_error("a checkpoint was given up: its state was not copied to its end",
                         "the next one is written as if this one had not been begun");
  }
  if (!rank_.is_first()) return std::nullopt;
  std::vector<WrittenPart> parts;
  for (const std::string& text : texts) parts.push_back(parse_written_part(text));
  writer_.submit([this, draft, parts = std::move(parts)] {
    ThreadPool pool(1);
    draft->publish(head_, parts, {}, pool);
    try {
      prune_checkpoints(dir_, keep_last_);
    } catch (const std::exception& error) {  // the new one is there all the same
      say("warning: older checkpoints are not removed: {}\n", error.what());
    }
  });
  return std::nullopt;
}

std::optional<Error> CheckpointSaver::finish() {
  if (auto error = publish()) return error;
  wait_for_all_writers();
  wait_for_writer();
  std::vector<std::string> texts;
  return gather("", texts);
}

void CheckpointSaver::wait_for_writer() {
  try {
    writer_.wait();
  } catch (const StateRing::Abandoned&) {
    // Because another rank has failed, which will say so.
  } catch (...) {
    failure_ = std::current_exception();
  }
}

// What each rank has to tell, or the first failure of one.
std::optional<Error> CheckpointSaver::gather(const std::string& mine, std::vector<std::string>& all) {
  const std::string failure = failure_ ? text_of(std::exchange(failure_, nullptr)) : "";
  all = rank_.mesh().all().all_gather(failure + kFieldEnd + mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t end = all[rank].find(kFieldEnd);
    if (end > 0) {
      const size_t split = all[rank].find(kRemedy);
      const std::string what = all[rank].substr(0, split);
      return runtime_error(all.size() == 1 ? what : fmt::format("rank {}: {}", rank, what),
                           all[rank].substr(split + 1, end - split - 1));
    }
    all[rank].erase(0, end + 1);
  }
  return std::nullopt;
}

// Disks may take longer than a rank may be waited for: all keep meeting meanwhile.
void CheckpointSaver::wait_for_all_writers() {
  const auto any_busy = [&] {
    const auto busy = rank_.mesh().all().all_gather_values<int64_t>(writer_.busy() ? 1 : 0);
    return std::ranges::find(busy, 1) != busy.end();
  };
  while (any_busy()) std::this_thread::sleep_for(kBetweenMeetings);
}

}  // namespace nmoe
