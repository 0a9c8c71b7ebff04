#include "ops/across.h"

#include <algorithm>

namespace nmoe {
namespace {

constexpr int64_t kBlockBytes = 128;  // a packet of NVLink; keeps parts aligned to vectors

}  // namespace

int64_t AcrossPiece::edge(int64_t domain, int64_t num_domains) const {
  const int64_t block = kBlockBytes / element_bytes, size = end - begin, blocks = (size + block - 1) / block;
  return begin + std::min(size, blocks * domain / num_domains * block);
}

int64_t AcrossPiece::part_room(int64_t num_domains) const {
  const int64_t blocks = ((end - begin) * element_bytes + kBlockBytes - 1) / kBlockBytes;
  return (blocks + num_domains - 1) / num_domains * kBlockBytes;
}

std::vector<AcrossRound> across_rounds(std::span<const Tensor> tensors, int64_t round_bytes) {
  std::vector<AcrossRound> rounds;
  int64_t room = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto element = static_cast<int64_t>(dtype_bytes(tensors[i].dtype()));
    const int64_t size = tensors[i].num_elements();
    for (int64_t begin = 0; begin < size;) {
      if (room < kBlockBytes) {
        rounds.emplace_back();
        room = round_bytes;
      }
      const int64_t end = std::min(size, begin + room / kBlockBytes * kBlockBytes / element);
      rounds.back().push_back({.tensor = i, .begin = begin, .end = end, .element_bytes = element});
      room -= (end - begin) * element;
      begin = end;
    }
  }
  return rounds;
}

}  // namespace nmoe
