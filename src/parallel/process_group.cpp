#include "parallel/process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallel/tensor_sums.h"
#include "tensor/convert.h"

namespace nmoe {
namespace {

constexpr size_t kChunkBytes = 1 << 20;  // that travel at once

std::string layout_of(std::span<const Tensor> tensors) {
  WireWriter layout;
  for (const Tensor& tensor : tensors) {
    layout.number(static_cast<int64_t>(tensor.dtype())).number(tensor.num_elements());
  }
  return layout.take();
}

// What a process brings to a call: who it takes part in and, of its ranks, what is to be gathered.
struct Offer {
  int64_t call = 0;
  std::string name;
  std::string layout;
  std::string bytes;
};

std::string encode(const Offer& offer) {
  return WireWriter().number(offer.call).text(offer.name).text(offer.layout).text(offer.bytes).take();
}

Offer decode_offer(std::string_view text) {
  WireReader reader(text);
  Offer offer;
  offer.call = reader.number();
  offer.name = reader.text();
  offer.layout = reader.text();
  offer.bytes = reader.text();
  reader.end();
  return offer;
}

std::string pack(std::span<const std::string> texts) {
  WireWriter packed;
  for (const std::string& text : texts) packed.text(text);
  return packed.take();
}

std::vector<std::string> unpack(std::string_view packed, int64_t count) {
  WireReader reader(packed);
  std::vector<std::string> texts;
  for (int64_t i = 0; i < count; ++i) texts.emplace_back(reader.text());
  reader.end();
  return texts;
}

void check_same(const Offer& mine, const Offer& other, const std::string& process) {
  NMOE_CHECK(mine.call == other.call && mine.name == other.name && mine.layout.size() == other.layout.size(),
             "ranks differ in call {}: {} with {} bytes of layout in process 0, in {} call {}: {} with {}", mine.call,
             mine.name, mine.layout.size(), process, other.call, other.name, other.layout.size());
  WireReader a(mine.layout), b(other.layout);
  for (size_t i = 0; i < mine.layout.size() / (2 * sizeof(int64_t)); ++i) {
    const auto [dtype, other_dtype] = std::pair(static_cast<DType>(a.number()), static_cast<DType>(b.number()));
    const auto [size, other_size] = std::pair(a.number(), b.number());
    NMOE_CHECK(dtype == other_dtype && size == other_size,
               "ranks differ in tensor {} of {} in call {}: {} elements of {} in process 0, {} of {} in {}", i,
               mine.name, mine.call, size, dtype_name(dtype), other_size, dtype_name(other_dtype), process);
  }
}

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

}  // namespace

// Tensors one behind the other, cut between elements into chunks of at most kChunkBytes. BF16 travels widened to F32,
// in which it is added; it is rounded where it is stored.
class ProcessGroup::Chunks {
 public:
  explicit Chunks(std::span<const Tensor> tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto size = static_cast<size_t>(tensors[i].num_elements());
      const DType dtype = tensors[i].dtype(), travels = dtype == DType::kBF16 ? DType::kF32 : dtype;
      const size_t element = dtype_bytes(travels);
      for (size_t begin = 0; begin < size;) {
        if (chunks_.empty() || chunks_.back().bytes + element > kChunkBytes) chunks_.emplace_back();
        Chunk& chunk = chunks_.back();
        const size_t count = std::min(size - begin, (kChunkBytes - chunk.bytes) / element);
        chunk.pieces.push_back({.tensor = i,
                                .begin = begin * dtype_bytes(dtype),
                                .count = count,
                                .bytes = count * element,
                                .dtype = dtype,
                                .travels = travels});
        chunk.bytes += count * element;
        begin += count;
      }
    }
  }

  int64_t count() const { return static_cast<int64_t>(chunks_.size()); }
  size_t bytes(int64_t chunk) const { return chunks_[static_cast<size_t>(chunk)].bytes; }

  // Tensors to `buffer` and back.
  void load(int64_t chunk, std::span<const Tensor> tensors, std::byte* buffer) const {
    for (const Piece& piece : pieces(chunk)) {
      convert(piece.dtype, bytes_of(tensors[piece.tensor]) + piece.begin, piece.travels, buffer, piece.count);
      buffer += piece.bytes;
    }
  }
  void store(int64_t chunk, const std::byte* buffer, std::span<const Tensor> tensors) const {
    for (const Piece& piece : pieces(chunk)) {
      convert(piece.travels, buffer, piece.dtype, bytes_of(tensors[piece.tensor]) + piece.begin, piece.count);
      buffer += piece.bytes;
    }
  }
  void add(int64_t chunk, std::span<const Tensor> tensors, std::byte* buffer) const {
    std::vector<float> widened;
    for (const Piece& piece : pieces(chunk)) {
      const std::byte* values = bytes_of(tensors[piece.tensor]) + piece.begin;
      if (piece.travels != piece.dtype) {
        widened.resize(piece.count);
        widen(piece.dtype, values, widened.data(), piece.count);
        values = reinterpret_cast<const std::byte*>(widened.data());
      }
      add_bytes(piece.travels, buffer, values, piece.bytes);
      buffer += piece.bytes;
    }
  }

 private:
  struct Piece {
    size_t tensor;
    size_t begin;  // byte of the tensor
    size_t count;  // elements
    size_t bytes;  // that travel
    DType dtype, travels;
  };
  struct Chunk {
    std::vector<Piece> pieces;
    size_t bytes = 0;
  };
  const std::vector<Piece>& pieces(int64_t chunk) const { return chunks_[static_cast<size_t>(chunk)].pieces; }

  std::vector<Chunk> chunks_;
};

// Rank `local_rank` of this process. Whatever group it meets, processes meet as a whole: each call is one of all ranks.
class ProcessGroup::Member : public Communicator {
 public:
  Member(ProcessGroup& group, int64_t local_rank) : group_(group), local_rank_(local_rank) {}

  Communicator& process() override { return group_.threads_.communicator(local_rank_); }

  void check() override { process().check(); }
  void fail(const std::exception_ptr& failure) override {
    group_.announce(local_rank_, failure);
    group_.threads_.fail(local_rank_, failure);
  }
  // Other processes wait for this one as long as for the rank here that asked for most.
  void set_patience(std::chrono::milliseconds patience) override {
    process().set_patience(patience);
    const std::lock_guard lock(group_.patience_mutex_);
    group_.patience_[static_cast<size_t>(local_rank_)] = patience;
    group_.links_.set_patience(std::ranges::max(group_.patience_));
  }
  std::shared_ptr<void> on_failure(std::function<void()> told) override {
    return process().on_failure(std::move(told));
  }
  void keep(std::shared_ptr<void> used_by_others) override { process().keep(std::move(used_by_others)); }

  void barrier() override {
    group_.call(local_rank_, {.name = "barrier"},
                [&](Calls calls) { group_.exchange(calls[0]->name, calls[0]->tensors, ""); });
  }

 protected:
  // Of all ranks.
  std::vector<std::string> gather(std::string_view bytes) {
    group_.call(local_rank_, {.name = "all_gather", .bytes = std::string(bytes)},
                [&](Calls calls) { group_.gather(calls); });
    return group_.gathered_;
  }

  ProcessGroup& group_;
  const int64_t local_rank_;
};

// The ranks with one index in all processes. All groups of counterparts meet at the same time.
class ProcessGroup::Counterparts final : public Member {
 public:
  Counterparts(ProcessGroup& group, int64_t local_rank) : Member(group, local_rank) {}

  int64_t index() const override { return group_.links_.process(); }
  int64_t count() const override { return group_.links_.num_processes(); }
  Communicator& counterparts() override { return *this; }

  std::vector<std::string> all_gather(std::string_view bytes) override {
    std::vector<std::string> of_counterparts;
    const std::vector<std::string> all = gather(bytes);
    const auto each = static_cast<size_t>(group_.num_ranks_ / count());
    for (auto rank = static_cast<size_t>(local_rank_); rank < all.size(); rank += each) {
      of_counterparts.push_back(all[rank]);
    }
    return of_counterparts;
  }

  void all_reduce_sum(std::span<const Tensor> tensors, Lane) override {
    for (const Tensor& tensor : tensors) {
      if (tensor.dtype() != DType::kBF16) check_summable(std::span(&tensor, 1));
    }
    if (!has_data(tensors)) return;
    group_.call(local_rank_, {.name = "all_reduce_sum of counterparts", .tensors = tensors, .alike = false},
                [&](Calls calls) { group_.sum_counterparts(calls); });
  }

  void broadcast(std::span<const Tensor>, Lane) override { NMOE_CHECK(false, "a broadcast among counterparts"); }
};

class ProcessGroup::AllRanks final : public Member {
 public:
  AllRanks(ProcessGroup& group, int64_t local_rank) : Member(group, local_rank) {}

  int64_t index() const override { return group_.first_rank_ + local_rank_; }
  int64_t count() const override { return group_.num_ranks_; }
  Communicator& counterparts() override { return *group_.counterparts_[static_cast<size_t>(local_rank_)]; }

  std::vector<std::string> all_gather(std::string_view bytes) override { return gather(bytes); }

  void all_reduce_sum(std::span<const Tensor> tensors, Lane) override {
    check_summable(tensors);
    if (!has_data(tensors)) return;
    group_.call(local_rank_, {.name = "all_reduce_sum", .tensors = tensors}, [&](Calls calls) { group_.sum(calls); });
  }

  void broadcast(std::span<const Tensor> tensors, Lane) override {
    if (!has_data(tensors)) return;
    group_.call(local_rank_, {.name = "broadcast", .tensors = tensors}, [&](Calls calls) { group_.spread(calls); });
  }
};

ProcessGroup::ProcessGroup(Meeting meeting, LinkTiming timing)
    : first_rank_(meeting.processes[static_cast<size_t>(meeting.process)].first_rank),
      num_ranks_(meeting.processes.back().first_rank + meeting.processes.back().num_ranks),
      threads_(meeting.processes.front().num_ranks, timing.timeout, first_rank_),
      links_(std::move(meeting), timing,
             [this](const PeerFailure& failure) { threads_.fail(/*rank=*/0, std::make_exception_ptr(failure)); }) {
  for (int64_t rank = 0; rank < num_ranks_ / links_.num_processes(); ++rank) {
    all_ranks_.push_back(std::make_unique<AllRanks>(*this, rank));
    counterparts_.push_back(std::make_unique<Counterparts>(*this, rank));
    patience_.push_back(timing.timeout);
  }
}

ProcessGroup::~ProcessGroup() = default;

Communicator& ProcessGroup::communicator(int64_t local_rank) { return *all_ranks_[static_cast<size_t>(local_rank)]; }

void ProcessGroup::run(const std::function<void()>& prepare, const std::function<void(Communicator&)>& drive,
                       const ThreadGroup::LastWords& last_words) {
  try {
    prepare();
  } catch (...) {
    announce(0, std::current_exception());
    links_.finish();
    throw;
  }
  threads_.run([&](int64_t rank) { drive(communicator(rank)); },
               [&](int64_t rank, const std::exception_ptr& failure) { announce(rank, failure); }, last_words);
  links_.finish();
  if (const std::exception_ptr failure = threads_.first_failure()) std::rethrow_exception(failure);
  if (const std::optional<PeerFailure> failure = links_.peer_failure()) throw *failure;
}

// What came from another rank, it or its process tells itself.
void ProcessGroup::announce(int64_t local_rank, const std::exception_ptr& failure) {
  if (is_peer_failure(failure)) return;
  links_.fail(first_rank_ + local_rank, reason_of(failure), remedy_of(failure));
}

void ProcessGroup::call(int64_t local_rank, ThreadGroup::Call call, const ThreadGroup::Completion& complete) {
  const std::string_view name = call.name;
  threads_.together(local_rank, std::move(call), [&](Calls calls) {
    try {
      links_.come(name);
      complete(calls);
      links_.complete();
    } catch (...) {  // known to all ranks here before anyone can make another call
      threads_.fail(0, std::current_exception());
      throw;
    }
  });
  if (local_rank == 0) links_.return_from_call();
}

// What the processes offer, by process; the same everywhere. All have come when it returns.
std::vector<std::string> ProcessGroup::exchange(std::string_view name, std::span<const Tensor> tensors,
                                                const std::string& offer) {
  const Offer mine = {.call = links_.call(), .name = std::string(name), .layout = layout_of(tensors), .bytes = offer};
  const int64_t count = links_.num_processes();
  if (!is_first()) {
    links_.send(0, FrameKind::kOffer, encode(mine));
    return unpack(links_.receive(0, FrameKind::kResult), count);
  }
  std::vector<std::string> offers = {offer};
  for (int64_t process = 1; process < count; ++process) {
    Offer other = decode_offer(links_.receive(process, FrameKind::kOffer));
    check_same(mine, other, links_.describe(process));
    offers.push_back(std::move(other.bytes));
  }
  const std::string result = pack(offers);
  for (int64_t process = 1; process < count; ++process) links_.send(process, FrameKind::kResult, result);
  return offers;
}

void ProcessGroup::gather(Calls calls) {
  std::vector<std::string> mine;
  for (const ThreadGroup::Call* call : calls) mine.push_back(call->bytes);
  std::vector<std::string> all;
  for (const std::string& offer : exchange(calls[0]->name, calls[0]->tensors, pack(mine))) {
    std::ranges::move(unpack(offer, static_cast<int64_t>(calls.size())), std::back_inserter(all));
  }
  gathered_ = std::move(all);
}

void ProcessGroup::sum(Calls calls) {
  exchange(calls[0]->name, calls[0]->tensors, "");
  const Chunks chunks(calls[0]->tensors);
  is_first() ? sum_first(calls, chunks) : sum_other(calls, chunks);
}

void ProcessGroup::sum_counterparts(Calls calls) {
  std::vector<Tensor> of_all;
  for (const ThreadGroup::Call* call : calls) of_all.insert(of_all.end(), call->tensors.begin(), call->tensors.end());
  exchange(calls[0]->name, of_all, "");
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const Chunks chunks(calls[rank]->tensors);
    is_first() ? sum_first(calls.subspan(rank, 1), chunks) : sum_other(calls.subspan(rank, 1), chunks);
  }
}

// Chunk c is with process p in round c + p - 1: each round every process has another chunk. Process 0 begins it before,
// and in the round of the last process it has the total, which goes to those that had to pass it on. Nobody waits for
// another in a circle: in a round, process 0 first sends and then receives, the others the other way round.
void ProcessGroup::sum_first(Calls calls, const Chunks& chunks) {
  const int64_t others = links_.num_processes() - 1, count = chunks.count();
  std::vector<std::vector<std::byte>> under_way(static_cast<size_t>(others), std::vector<std::byte>(kChunkBytes));
  const auto part = [&](int64_t chunk) {
    return std::span(under_way[static_cast<size_t>(chunk % others)]).first(chunks.bytes(chunk));
  };
  const auto exists = [&](int64_t chunk) { return chunk >= 0 && chunk < count; };
  for (int64_t round = 0; round < count + others - 1; ++round) {
    if (exists(round)) {
      chunks.load(round, calls[0]->tensors, part(round).data());
      for (const ThreadGroup::Call* call : calls.subspan(1)) chunks.add(round, call->tensors, part(round).data());
    }
    for (int64_t process = 1; process <= others; ++process) {
      if (exists(round - process + 1)) links_.send(process, part(round - process + 1));
    }
    for (int64_t process = 1; process <= others; ++process) {
      if (exists(round - process + 1)) links_.receive(process, part(round - process + 1));
    }
    const int64_t total = round - others + 1;
    if (!exists(total)) continue;
    for (int64_t process = 1; process < others; ++process) links_.send(process, part(total));
    for (const ThreadGroup::Call* call : calls) chunks.store(total, part(total).data(), call->tensors);
  }
}

void ProcessGroup::sum_other(Calls calls, const Chunks& chunks) {
  const int64_t others = links_.num_processes() - 1, count = chunks.count(), process = links_.process();
  std::vector<std::byte> buffer(kChunkBytes);
  const auto exists = [&](int64_t chunk) { return chunk >= 0 && chunk < count; };
  const auto store = [&](int64_t chunk) {
    for (const ThreadGroup::Call* call : calls) chunks.store(chunk, buffer.data(), call->tensors);
  };
  for (int64_t round = 0; round < count + others - 1; ++round) {
    if (const int64_t chunk = round - process + 1; exists(chunk)) {
      const auto part = std::span(buffer).first(chunks.bytes(chunk));
      links_.receive(0, part);
      for (const ThreadGroup::Call* call : calls) chunks.add(chunk, call->tensors, buffer.data());
      links_.send(0, part);
      if (process == others) store(chunk);
    }
    if (const int64_t total = round - others + 1; process < others && exists(total)) {
      links_.receive(0, std::span(buffer).first(chunks.bytes(total)));
      store(total);
    }
  }
}

void ProcessGroup::spread(Calls calls) {
  exchange(calls[0]->name, calls[0]->tensors, "");
  const Chunks chunks(calls[0]->tensors);
  std::vector<std::byte> buffer(kChunkBytes);
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    const auto part = std::span(buffer).first(chunks.bytes(chunk));
    if (is_first()) {
      chunks.load(chunk, calls[0]->tensors, buffer.data());
      for (int64_t process = 1; process < links_.num_processes(); ++process) links_.send(process, part);
    } else {
      links_.receive(0, part);
    }
    for (const ThreadGroup::Call* call : calls) chunks.store(chunk, buffer.data(), call->tensors);
  }
}

void run_ranks(const RankRun& run, const std::function<void()>& prepare,
               const std::function<void(Communicator&)>& drive) {
  const int64_t here = ranks_of_process(run.launch, run.ranks);
  if (run.launch.is_alone()) {
    prepare();
    return run_ranks(here, run.timeout, drive, run.last_words);
  }
  Meeting meeting = meet_processes(
      {.launch = run.launch, .ranks = run.ranks, .identity = run.identity, .timeout = run.timeout, .stop = run.stop});
  ProcessGroup(std::move(meeting), {.timeout = run.timeout}).run(prepare, drive, run.last_words);
}

}  // namespace nmoe
