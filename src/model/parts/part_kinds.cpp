#include "model/parts/part_kinds.h"

#include "base/error.h"
#include "model/parts/gated_deltanet.h"
#include "model/parts/gqa.h"
#include "model/parts/mamba2.h"
#include "model/parts/mla.h"
#include "model/parts/mlp.h"
#include "model/parts/moe.h"
#include "model/spec/names.h"

namespace nmoe {

std::unique_ptr<Part> make_part(const LayerPart& part, WeightSet& weights, std::vector<Moe*>& routing) {
  switch (part.spec.kind) {
    case PartKind::kMla:
      return std::make_unique<LatentAttention>(part, weights);
    case PartKind::kGqa:
      return std::make_unique<GroupedQueryAttention>(part, weights);
    case PartKind::kMamba2:
      return std::make_unique<Mamba2>(part, weights);
    case PartKind::kGatedDeltaNet:
      return std::make_unique<GatedDeltaNet>(part, weights);
    case PartKind::kDense:
      return std::make_unique<Mlp>(part, mlp_prefix(part), part.spec.hidden, weights, Intermediate::kMlpHidden);
    case PartKind::kMoe: {
      auto moe = std::make_unique<Moe>(part, weights);
      routing.push_back(moe.get());
      return moe;
    }
  }
  NMOE_CHECK(false, "no part of kind {}", static_cast<int>(part.spec.kind));
}

}  // namespace nmoe
