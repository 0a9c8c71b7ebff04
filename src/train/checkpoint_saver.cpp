#include "train/checkpoint_saver.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint.h"

namespace nmoe {
namespace {

// Those of `tensors` that this rank writes.
std::vector<TensorPart> written_here(std::span<const StagedTensor> tensors) {
  std::vector<TensorPart> chosen;
  for (const StagedTensor& staged : tensors) {
    if (!staged.is_written) continue;
    const NamedTensor tensor{staged.name, staged.tensor};
    chosen.push_back({in_memory(std::span(&tensor, 1)).front(), staged.shape, staged.slices});
  }
  return chosen;
}

}  // namespace

CheckpointSaver::CheckpointSaver(fs::path dir, int64_t keep_last, const Rank& rank)
    : dir_(std::move(dir)), keep_last_(keep_last), rank_(rank), writer_(dir_, keep_last) {}

void CheckpointSaver::begin(Engine& engine, CheckpointHead head) {
  NMOE_CHECK(draft_ == nullptr && !writer_.busy(), "a checkpoint is begun while another is written");
  engine.stage();
  const int64_t step = rank_.communicator.all_gather_values(head.info.step).front();
  if (rank_.is_first()) draft_ = std::make_shared<CheckpointDraft>(dir_, step);
  const std::string folder = rank_.communicator.all_gather(draft_ ? draft_->folder().string() : std::string()).front();
  if (!draft_) {
    const fs::path joined = dir_ / fs::path(folder).filename();  // which may have another path here
    if (!fs::is_directory(joined)) {
      throw runtime_error(
          fmt::format("rank {} does not see '{}', in which rank 0 writes a checkpoint", rank_.index(), joined.string()),
          "give all processes a run.dir on a file system that their hosts share");
    }
    draft_ = std::shared_ptr<CheckpointDraft>(new CheckpointDraft(CheckpointDraft::joined(dir_, step, joined)));
  }
  head_ = std::move(head);
  // Where experts are changes while training goes on; what is staged is as they were.
  writer_.submit_work([this, &engine, draft = draft_, model = written_here(engine.staging().model),
                       optimizer = written_here(engine.staging().optimizer)] {
    engine.wait_staged();
    ThreadPool pool(1);  // training has the other processors
    written_ = draft->write({.index = static_cast<int>(rank_.index()), .count = static_cast<int>(rank_.count())}, model,
                            optimizer, pool);
  });
}

void CheckpointSaver::publish() {
  if (draft_ == nullptr) return;
  const auto draft = std::exchange(draft_, nullptr);
  wait_for_all_writers();
  writer_.wait();
  std::vector<WrittenPart> parts;
  for (const std::string& text : rank_.communicator.all_gather(print_written_part(written_))) {
    if (rank_.is_first()) parts.push_back(parse_written_part(text));
  }
  if (!rank_.is_first()) return;
  writer_.submit_work([this, draft, parts = std::move(parts)] {
    ThreadPool pool(1);
    draft->publish(head_, parts, {}, pool);
    prune_checkpoints(dir_, keep_last_);
  });
}

void CheckpointSaver::finish() {
  publish();
  wait_for_all_writers();
  writer_.wait();
}

// Disks may take longer than a rank may be waited for: all keep meeting meanwhile.
void CheckpointSaver::wait_for_all_writers() {
  const auto any_busy = [&] {
    const auto busy = rank_.communicator.all_gather_values<int64_t>(writer_.busy() ? 1 : 0);
    return std::ranges::find(busy, 1) != busy.end();
  };
  while (any_busy()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace nmoe
