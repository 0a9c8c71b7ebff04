// Arena: the only owner of tensor storage. One allocation, bump-pointer, released by rewinding to a mark.
//
// A run is planned by executing the same step code against *counting* arenas, which hand out tensors without
// data and record the highest use; then each arena is reserved once with that capacity. Nothing allocates
// inside a step. Not thread-safe: one owner at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// Where an arena's one block comes from. Implemented by each device (ops/cpu: prefaulted anonymous pages).
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(int64_t bytes) = 0;  // zeroed; Error (runtime) with a remedy when there is none
  virtual void release(void* block, int64_t bytes) noexcept = 0;
  // What an allocation of `bytes` takes.
  virtual int64_t allocation_bytes(int64_t bytes) const { return bytes; }
};

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes; every tensor starts on one
  // What a tensor of `bytes` takes.
  static constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  explicit Arena(std::string name) : name_(std::move(name)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Leaves counting mode: takes `capacity` bytes from `source`, which must outlive the arena.
  void reserve(MemorySource& source, int64_t capacity);
  bool counting() const { return source_ == nullptr; }

  // A tensor at the top of the arena. In counting mode it has no data. Contents are whatever was there before
  // (zero at first use). Running over the capacity is a bug in the plan, hence a check.
  Tensor allocate(DType dtype, Shape shape);

  int64_t mark() const { return used_; }
  void rewind(int64_t mark);  // frees everything allocated since `mark`

  // [bytes] u8 at the end of the memory, before what is already lent: out of the reach of allocate(), and kept by
  // rewind(), until end_loans(). For counting, what is lent is in use.
  Tensor lend(int64_t bytes);
  // Ends all loans but the first ones, of `kept` bytes together.
  void end_loans(int64_t kept = 0);
  // `make_room` is called with the bytes that allocate() lacks beside loans, to end some of them. Not while counting.
  // Nothing: loans last.
  void when_full(std::function<void(int64_t lacking)> make_room) { make_room_ = std::move(make_room); }

  const std::string& name() const { return name_; }
  int64_t used() const { return used_; }
  int64_t high_water() const { return high_water_; }  // most bytes ever in use, or lent
  int64_t capacity() const { return capacity_; }
  void* block() const { return block_; }  // where its memory begins; null while counting

 private:
  int64_t take(int64_t wanted, const Shape& shape);

  std::string name_;
  MemorySource* source_ = nullptr;
  char* block_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t lent_ = 0;
  int64_t high_water_ = 0;
  std::function<void(int64_t lacking)> make_room_;
};

// Rewinds an arena when a scope ends.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
  Tensor allocate(DType dtype, Shape shape) { return arena_.allocate(dtype, shape); }

 private:
  Arena& arena_;
  int64_t mark_;
};

}  // namespace nmoe
