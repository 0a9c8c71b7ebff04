// Across: the ranks that hold the same part of a model in all domains (ops/peers.h), one from each, and sums over them.
// They cannot access each other's memory. Made by parallel/domain.h.
//
// Threads: used by the thread that drives the rank's device, except for abort().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace nmoe {

// A device's own link to the devices of other domains, if it has one.
class AcrossLink {
 public:
  virtual ~AcrossLink() = default;
  AcrossLink() = default;
  AcrossLink(const AcrossLink&) = delete;
  AcrossLink& operator=(const AcrossLink&) = delete;

  // Called when a rank has failed: whatever waits for others on this device, now or later, ends without a result.
  // Returns at once. From any thread.
  virtual void abort() noexcept = 0;
};

// Collects the bytes of every domain, in the order of domains; all call it together.
using GatherAcross = std::function<std::vector<std::string>(std::string_view bytes)>;
// Sums tensors in the host's memory as SumAcross describes; all call it together.
using SumInHost = std::function<void(std::span<const Tensor> tensors)>;

class Across {
 public:
  // Domain `index` of `count`, not yet connected to the others. `sum` is for devices without a link.
  Across(int64_t index, int64_t count, SumInHost sum) : index_(index), count_(count), sum_(std::move(sum)) {}

  int64_t index() const { return index_; }  // of this rank's domain
  int64_t count() const { return count_; }  // of domains
  bool alone() const { return count_ == 1; }

  void set_link(std::unique_ptr<AcrossLink> link) { link_ = std::move(link); }
  AcrossLink* link() const { return link_.get(); }  // null: the host sums
  void sum_in_host(std::span<const Tensor> tensors) const { sum_(tensors); }

 private:
  int64_t index_, count_;
  SumInHost sum_;
  std::unique_ptr<AcrossLink> link_;
};

// --- how a link divides the work. Tensors are exchanged in rounds of pieces; of each
// piece, every domain sums one part for all domains.

// Elements [begin, end) of a flattened tensor.
struct AcrossPiece {
  size_t tensor = 0;
  int64_t begin = 0, end = 0;
  int64_t element_bytes = 0;

  // Where the part of domain `domain` begins and that of the domain before it ends. Parts are whole blocks of 128
  // bytes, except for the last.
  int64_t edge(int64_t domain, int64_t num_domains) const;
  // Bytes that the largest part needs, in whole blocks.
  int64_t part_room(int64_t num_domains) const;
};
using AcrossRound = std::vector<AcrossPiece>;

// Divides all elements of all tensors into rounds of at most about `round_bytes`.
std::vector<AcrossRound> across_rounds(std::span<const Tensor> tensors, int64_t round_bytes);

}  // namespace nmoe
