// How optimizers round moments to BF16, for host and device: at random (stochastic rounding: Gupta et al., arXiv
// 1502.02551, section 3.1), up with the probability of the way from the lower neighbour to the upper one, so that the
// mean over the random bits is the value itself. To nearest a moment would stand still where it moves by less than half
// of what neighbours are apart, 2^-8 to 2^-7 of it. Rounded at random, moments stay what they would be in F32 in the
// mean, since they are linear in what was rounded. A step itself takes them as they are before they are rounded.
//
// Which bits belong to which element: MomentRounding (ops/contracts/optimizer.h).
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "tensor/low_precision.h"

namespace nmoe::moments {

// The random bits of elements 8 * group to 8 * group + 7 of a tensor, and the 16 of element `index` in them. Where an
// element has a second moment, that has the same with their bytes exchanged: each moment's are uniform, and which way
// it goes is decided by the upper byte nearly always.
NMOE_HOST_DEVICE inline random::Words rounding_words(uint64_t key, uint64_t stream, int64_t group) {
  return rounding_bytes(key, stream, static_cast<uint64_t>(group));
}
NMOE_HOST_DEVICE inline uint32_t first_bits(const random::Words& words, int index) {
  return words.word[index / 2] >> (16 * (index % 2)) & 0xFFFFU;
}
NMOE_HOST_DEVICE inline uint32_t second_bits(uint32_t first) { return (first << 8 | first >> 8) & 0xFFFFU; }

// The bits of x, of which the upper 16 are x in BF16, rounded at random by 16 bits. What is not finite stays as it is;
// beyond BF16's largest number infinity is the upper neighbour.
NMOE_HOST_DEVICE inline uint32_t to_bf16(float x, uint32_t random) {
  const uint32_t bits = low_precision::bits_of(x);
  return bits + ((bits & low_precision::kInfinity) == low_precision::kInfinity ? 0U : random);
}

}  // namespace nmoe::moments
