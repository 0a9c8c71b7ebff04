// What the names of a part's weights begin with.
#pragma once

#include <string>

#include "model/spec/part.h"

namespace nmoe {

inline std::string attention_prefix(const LayerPart& part) { return part.prefix + "attention."; }
inline std::string mamba2_prefix(const LayerPart& part) { return part.prefix + "mamba2."; }
inline std::string gated_deltanet_prefix(const LayerPart& part) { return part.prefix + "gated_deltanet."; }
inline std::string mlp_prefix(const LayerPart& part) { return part.prefix + "mlp."; }
inline std::string moe_prefix(const LayerPart& part) { return part.prefix + "moe."; }
inline std::string shared_experts_prefix(const LayerPart& part) { return moe_prefix(part) + "shared."; }
// Of all weights of a part of any kind, but its norm's (LayerPart::norm_name).
inline std::string part_prefix(const LayerPart& part) {
  if (part.spec.kind == PartKind::kMamba2) return mamba2_prefix(part);
  if (part.spec.kind == PartKind::kGatedDeltaNet) return gated_deltanet_prefix(part);
  if (is_mixer(part.spec.kind)) return attention_prefix(part);
  return part.spec.kind == PartKind::kMoe ? moe_prefix(part) : mlp_prefix(part);
}

}  // namespace nmoe
