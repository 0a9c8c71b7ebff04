#include "model/spec/part_kinds.h"

#include "base/error.h"
#include "model/spec/gated_deltanet.h"
#include "model/spec/gqa.h"
#include "model/spec/mamba2.h"
#include "model/spec/mla.h"
#include "model/spec/mlp.h"
#include "model/spec/moe.h"

namespace nmoe {

PartTraits describe_part(const LayerPart& part, WeightList& weights) {
  switch (part.spec.kind) {
    case PartKind::kMla:
      return describe_mla(part, weights);
    case PartKind::kGqa:
      return describe_gqa(part, weights);
    case PartKind::kMamba2:
      return describe_mamba2(part, weights);
    case PartKind::kGatedDeltaNet:
      return describe_gated_deltanet(part, weights);
    case PartKind::kDense:
      return describe_dense(part, weights);
    case PartKind::kMoe:
      return describe_moe(part, weights);
  }
  NMOE_CHECK(false, "no part of kind {}", static_cast<int>(part.spec.kind));
}

}  // namespace nmoe
