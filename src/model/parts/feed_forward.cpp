#include "model/parts/feed_forward.h"

#include "model/parts/mlp.h"
#include "model/parts/moe.h"

namespace nmoe {

void describe_feed_forward(const Layer& layer, WeightList& weights) {
  switch (layer.spec.feed_forward) {
    case FeedForwardKind::kDense:
      weights.begin_part(WeightPart::kDense);
      return Mlp::describe(layer, "mlp.", layer.spec.hidden, weights);
    case FeedForwardKind::kMoe:
      return Moe::describe(layer, weights);
  }
}

std::unique_ptr<FeedForward> make_feed_forward(const Layer& layer, WeightSet& weights) {
  switch (layer.spec.feed_forward) {
    case FeedForwardKind::kDense:
      return std::make_unique<Mlp>(layer, "mlp.", layer.spec.hidden, weights, Intermediate::kMlpHidden);
    case FeedForwardKind::kMoe:
      return std::make_unique<Moe>(layer, weights);
  }
  NMOE_CHECK(false, "no feed-forward part of kind {}", static_cast<int>(layer.spec.feed_forward));
}

}  // namespace nmoe
