#include "model/parts/feed_forward.h"

#include "model/parts/mlp.h"
#include "model/parts/moe.h"
#include "model/spec/names.h"

namespace nmoe {

std::unique_ptr<FeedForward> make_feed_forward(const LayerPart& part, WeightSet& weights) {
  switch (part.spec.kind) {
    case PartKind::kDense:
      return std::make_unique<Mlp>(part, mlp_prefix(part), part.spec.hidden, weights, Intermediate::kMlpHidden);
    case PartKind::kMoe:
      return std::make_unique<Moe>(part, weights);
    case PartKind::kMla:
    case PartKind::kGqa:
      break;
  }
  NMOE_CHECK(false, "no feed-forward part of kind {}", static_cast<int>(part.spec.kind));
}

}  // namespace nmoe
